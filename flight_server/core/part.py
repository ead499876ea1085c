"""Parts of the server: what can be taken away from it, and how the core meets what is there.

`Part` is all that the core knows of one; `process/parts.py` lists them. A part lies in a folder of its own. One that is
missing, or that cannot be imported, leaves the rest working.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from flight_server.core.auth.principal import Principal
from flight_server.core.config import Settings
from flight_server.core.control.housekeeping import Background
from flight_server.core.reads.query import ArrowSource
from flight_server.core.reads.stream import Stream, never
from flight_server.core.wire import flight_sql
from store.duckdb.commit import Behind
from store.model.catalog_entries import TableEntry
from store.model.errors import PermissionDenied, Unimplemented
from store.role import Role

Judges: TypeAlias = Callable[[str, str], bool]  # by the full name of a table, and a column of it
Select: TypeAlias = Callable[[str, Principal], pa.Table]  # runs a SELECT for a caller
LeftBy: TypeAlias = "Callable[[TableEntry, int, Sequence[int | None]], list[dict[str, Any]]]"
"""Estimates what a condition leaves of a table at a snapshot, for each of some columns by their ids, None for none."""
Results: TypeAlias = Iterator[Any]  # JSON values, or bytes to send unchanged
Rows: TypeAlias = "pa.Table | Stream"  # a table if they are few; a stream is closed by its reader


@dataclass(frozen=True)
class Action:
    """An action and its row of `sys.functions`."""

    name: str
    run: Callable[[Any, bytes], Results | list[Any]]
    arguments: str
    description: str
    open: bool = False  # needs no credentials

    @property
    def row(self) -> dict[str, str]:
        """Its row of `sys.functions`."""
        return {"name": self.name, "arguments": self.arguments, "description": self.description}


class Asking(NamedTuple):
    """The caller of a command.

    Attributes:
        query_id: Id of the engine's query that the call is for, if its headers have one.
        capture: Runs the action `capture` for the caller; takes its body, returns the outcomes.
        check_read: `Role.check_read` of the server.
    """

    principal: Principal
    is_cancelled: Callable[[], bool]
    query_id: str | None
    capture: Callable[[bytes], list[Any]]
    check_read: Callable[[int | None, int | None], None] = Role().check_read


class Command(Protocol):
    """A command of a descriptor or ticket, which a part answers."""

    def schema(self) -> pa.Schema:
        """The schema of its rows."""

    def info(self) -> tuple[pa.Schema, bytes, int]:
        """The schema of its rows, a ticket for them, and how many they are, -1 if that is not known."""

    def get(self) -> tuple[str, pa.Schema, Rows]:
        """The name of what is read, for metrics; the schema; the rows."""

    def put(self, chunks: Iterator[pa.RecordBatch]) -> bytes:
        """Takes the batches of a put; returns the answer."""


class Commands(Protocol):
    """A language of commands. `actions` are names of its actions, whose bodies and results it makes itself."""

    actions: Collection[str]

    def find(self, data: bytes, asking: Asking) -> Command | None:
        """The command in bytes; None if they are of another language."""

    def act(self, name: str, body: bytes, asking: Asking) -> list[Any]:
        """Runs one of its actions; returns the results."""


class Part:
    """A part that adds nothing. Parts override what they add.

    A part reads what its settings name in its constructor, before a database is made. Its method `attach`, if it has
    one, then gets by name what it needs of the server: any of the keys of `App.offered`.
    """

    def __init__(self, settings: Settings):
        self.settings = settings

    def behind(self) -> Behind | None:
        """The store behind the database, if the part has one; read before the database is opened."""
        return None

    def judges(self) -> Judges | None:
        """Says which columns its rules need statistics of, by the full name of a table and a column; None without
        rules."""
        return None

    def flights(self) -> Mapping[str, ArrowSource]:
        """Sources of flights, by name."""
        return {}

    @staticmethod
    def actions() -> Sequence[Action]:
        """Actions; their functions find the part in `call.app.parts`."""
        return ()

    def commands(self) -> Iterable[Commands]:
        """Languages of commands that it answers."""
        return ()

    def left_by(self, where: Any, is_cancelled: Callable[[], bool]) -> LeftBy | None:  # noqa: ARG002
        """Reads a condition, as bodies have it; returns what estimates the rows that it leaves.

        Raises:
            InvalidArgument: It is not a condition.
        """
        return None

    def on_captured(self, table: TableEntry) -> None:
        """Called when rows of a table have become visible; must not wait."""

    def may_see(self, rule: str, table: str, sees: Callable[[str, str, str], bool]) -> bool:  # noqa: ARG002
        """True if a caller may see what a rule about other tables says of a table.

        Args:
            table: Full name of the rule's table.
            sees: True for the name of a table that the caller sees.
        """
        return False

    def background(self) -> Iterable[Background]:
        """Steps in threads of their own, while the server writes."""
        return ()

    def http(self, mounts: Mapping[str, Any], context: HttpContext) -> Mapping[str, Any]:  # noqa: ARG002
        """ASGI applications by the path that they serve.

        Args:
            mounts: Those of the parts before this one.
        """
        return {}

    def close(self) -> None:
        """Ends it, after the database was closed."""


class HttpContext(NamedTuple):
    """What applications of HTTP share.

    Attributes:
        guard: Authenticates callers, `auth.tokens.Guard`.
        probes: ASGI application of `/metrics` and `/health`.
    """

    guard: Any
    probes: Any


class Parts(Mapping[str, Any]):
    """The parts of one server, by name."""

    def __init__(self, parts: Mapping[str, Part]):
        self._parts = dict(parts)
        self.actions = {action.name: action for part in self._parts.values() for action in part.actions()}
        self._commands: list[Commands] = []

    def __getitem__(self, name: str) -> Any:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def attach(self, offered: Mapping[str, Any]) -> None:
        """Hands each part what its method `attach` names."""
        for part in self._parts.values():
            attach = getattr(part, "attach", None)
            if attach is not None:
                attach(**{name: offered[name] for name in inspect.signature(attach).parameters})
        self._commands = [commands for part in self._parts.values() for commands in part.commands()]

    def behind(self) -> Behind | None:
        """The store behind the database; None without one."""
        return next((found for part in self._parts.values() if (found := part.behind()) is not None), None)

    def judges(self) -> Judges | None:
        """Says which columns rules need statistics of (`Part.judges`); None without rules."""
        return next((found for part in self._parts.values() if (found := part.judges()) is not None), None)

    def left_by(self, where: Any, is_cancelled: Callable[[], bool]) -> LeftBy:
        """Reads a condition; see `Part.left_by`.

        Raises:
            InvalidArgument: It is not a condition.
            Unimplemented: No part estimates.
        """
        for part in self._parts.values():
            if (found := part.left_by(where, is_cancelled)) is not None:
                return found
        raise Unimplemented("estimates of what a condition leaves are not part of this build")

    def captured(self, table: TableEntry) -> None:
        """Tells the parts that rows of a table have become visible."""
        for part in self._parts.values():
            part.on_captured(table)

    def find(self, data: bytes | None, asking: Asking) -> Command | None:
        """The command in the bytes of a descriptor or ticket; None if they ask for rows of a flight.

        Raises:
            InvalidArgument: It is not valid.
            Unimplemented: It is of Flight SQL, and this build has none.
        """
        if data is None:
            return None
        for commands in self._commands:
            if (command := commands.find(data, asking)) is not None:
                return command
        if flight_sql.is_command(data):
            raise Unimplemented("Flight SQL is not part of this build")
        return None

    def act(self, name: str, body: bytes, asking: Asking) -> list[Any]:
        """Runs an action of a language of commands.

        Raises:
            Unimplemented: The language is not part of this build.
        """
        for commands in self._commands:
            if name in commands.actions:
                return commands.act(name, body, asking)
        raise Unimplemented("Flight SQL is not part of this build")

    def select(self, statement: str, caller: Principal, most: int | None = None) -> pa.Table:
        """Runs a SELECT for code of the server, with the limits and guards of any statement.

        Args:
            most: The number of rows after which no more are read; None for all.

        Raises:
            StatflightError: The statement's; ANALYZE is refused.
        """

        def capture(_: object) -> list[Any]:
            raise PermissionDenied("this statement may only read")

        data = flight_sql.write_any("CommandStatementQuery", (1, statement.encode()))
        command = self.find(data, Asking(caller, never, None, capture))
        assert command is not None
        _, schema, answer = command.get()
        if isinstance(answer, pa.Table):
            return answer.slice(0, most)
        batches, rows = [], 0
        with closing(answer):
            for batch in answer:
                batches.append(batch)
                rows += len(batch)
                if most is not None and rows >= most:
                    break
        return pa.Table.from_batches(batches, schema).slice(0, most)
