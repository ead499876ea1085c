"""The registry of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from flight_server.core.app import App
from flight_server.core.auth.principal import Principal
from flight_server.core.part import Action, Results
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.wire import flight_sql
from flight_server.core.wire.action_bodies import B, parse_body
from flight_server.core.wire.lag import Read
from store.model.structs import describe

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


ACTIONS: Final[dict[str, Action]] = {}


def functions() -> list[dict[str, str]]:
    """Rows of `sys.functions`: the actions of this server, and those of Flight SQL; those of parts apart."""
    standard = [
        {"name": name, "arguments": "a serialized message", "description": description}
        for name, description in flight_sql.ACTIONS.items()
    ]
    return [*(action.row for action in ACTIONS.values()), *standard]


Function = Callable[[Call, Any], Results | list[Any]]


def offered(
    body: type[B] | str, description: str, *, open: bool = False, exact: bool = False
) -> Callable[[Function], Action]:
    """Makes a function the action of its name, for a part to offer.

    Args:
        body: The struct of the body, which the function gets; or its description, and the function gets bytes.
        description: A sentence for `list_actions` and `sys.functions`.
        open: True if it needs no credentials.
        exact: See `scan_request.loads`.
    """

    def made(function: Function) -> Action:
        run: Run
        if isinstance(body, str):
            run = function
        else:

            def run(call: Call, data: bytes) -> Results | list[Any]:
                asked = parse_body(data, body, exact=exact)
                if isinstance(asked, Read):
                    call.app.role.check_read(asked.max_lag_ms, asked.min_generation)
                return function(call, asked)

        arguments = body if isinstance(body, str) else describe(body)
        return Action(function.__name__, run, arguments, description, open)

    return made


def action(
    body: type[B] | str, description: str, *, open: bool = False, exact: bool = False
) -> Callable[[Function], Run]:
    """Registers a function as the action of its name; see `offered`."""

    def add(function: Function) -> Run:
        made = offered(body, description, open=open, exact=exact)(function)
        ACTIONS[made.name] = made
        return made.run

    return add
