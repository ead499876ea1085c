"""The registry of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from flight_server.core.app import App
from flight_server.core.auth.principal import Principal
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.wire import flight_sql
from flight_server.core.wire.action_bodies import B, parse_body
from store.model.structs import describe

Results = Iterator[Any]  # JSON values, or bytes to send unchanged
Run = Callable[["Call", bytes], Results | list[Any]]


class Call(NamedTuple):
    """The context of one call of an action."""

    app: App
    principal: Principal
    correlation_id: str
    is_cancelled: Callable[[], bool]
    query_id: str | None = None

    @property
    def reader(self) -> LocalReader:
        """Reads flights with the permissions of the caller."""
        return LocalReader(self.app.scanner, self.principal)


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
    """Rows of `sys.functions`: the actions of this server, and those of Flight SQL."""
    own = [(action.name, action.arguments, action.description) for action in ACTIONS.values()]
    standard = [(name, "a serialized message", description) for name, description in flight_sql.ACTIONS.items()]
    return [{"name": name, "arguments": arguments, "description": text} for name, arguments, text in own + standard]


def action(
    body: type[B] | str, description: str, *, open: bool = False, exact: bool = False
) -> Callable[[Callable[[Call, Any], Results | list[Any]]], Run]:
    """Registers a function as the action of its name.

    Args:
        body: The struct of the body, which the function gets; or its description, and the function gets bytes.
        description: A sentence for `list_actions` and `sys.functions`.
        open: True if it needs no credentials.
        exact: See `scan_request.loads`.
    """

    def add(function: Callable[[Call, Any], Results | list[Any]]) -> Run:
        if isinstance(body, str):
            run: Run = function
        else:
            run = lambda call, data: function(call, parse_body(data, body, exact=exact))  # noqa: E731
        arguments = body if isinstance(body, str) else describe(body)
        ACTIONS[function.__name__] = Action(function.__name__, run, arguments, description, open)
        return run

    return add
