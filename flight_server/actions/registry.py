"""The registry of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from flight_server.app import App
from flight_server.auth.principal import Principal

Results = Iterator[Any]  # JSON values, or bytes to send unchanged
Run = Callable[["Call", bytes], Results | list[Any]]


class Call(NamedTuple):
    """The context of one call of an action."""

    app: App
    principal: Principal
    correlation_id: str
    is_cancelled: Callable[[], bool]
    query_id: str | None = None


@dataclass(frozen=True)
class Action:
    """An action and its row of `sys.functions`."""

    name: str
    run: Run
    arguments: str
    description: str
    open: bool = False  # needs no credentials


ACTIONS: Final[dict[str, Action]] = {}


def functions() -> list[dict[str, str]]:
    """Rows of `sys.functions`."""
    return [{"name": a.name, "arguments": a.arguments, "description": a.description} for a in ACTIONS.values()]


def action(arguments: str, description: str, open: bool = False) -> Callable[[Run], Run]:
    """Registers a function as the action of its name.

    Args:
        arguments: The body's JSON; `?` follows the names of optional fields.
        description: A sentence for `list_actions` and `sys.functions`.
        open: True if it needs no credentials.
    """

    def add(run: Run) -> Run:
        name = run.__name__
        ACTIONS[name] = Action(name, run, arguments, description, open)
        return run

    return add
