"""Answers of actions as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flight_server.commands.output import CommandError


def line_of(answer: Any) -> str:
    """An action's answer in a line: `key=value` for each value that is there."""
    if not isinstance(answer, Mapping):
        return str(answer)
    if not answer:
        raise CommandError("the server answered nothing")
    return "  ".join(f"{key}={value}" for key, value in answer.items() if value not in (None, "", [], {}))
