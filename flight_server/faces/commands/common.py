"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final

from flight_server.faces.commands.output import misuse
from flight_server.faces.commands.parameters import option
from store.model.names import dotted_name

_LISTED: Final = re.compile(r'(?:"(?:[^"]|"")*"|[^,])+')  # a name of a list
_IN_QUOTES: Final = re.compile(r'"(?:[^"]|"")+"')


class Answer(StrEnum):
    """Formats of what a command did."""

    TEXT = "text"
    JSON = "json"


AnswerFormat = Annotated[Answer, option("--format", "-f", help="How the outcome is written.")]


def pairs_of(texts: Iterable[str] | None, hint: str = "") -> dict[str, str]:
    """The values of the repeatable option `-o KEY=VALUE`."""
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            misuse(f"--option {text!r}: must be KEY=VALUE{hint}")
        pairs[key.strip()] = value
    return pairs


def names_of(texts: Sequence[str] | None) -> list[str] | None:
    """The names in the values of a repeatable option, each `a,b`: with commas in double quotes, any other may be too.
    None when the option is absent."""
    if not texts:
        return None
    names = [name.strip() for text in texts for name in _LISTED.findall(text) if name.strip()]
    names = [dotted_name(name) if set(",.") & set(name) or _IN_QUOTES.fullmatch(name) else name for name in names]
    return names or misuse("a list of names is empty")
