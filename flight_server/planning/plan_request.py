"""`PlanRequest`: a scan to be planned, the command `{"scan": "catalog.schema.table", …}` of descriptors and tickets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from flight_server.client.conditions.exact_json import dumps
from flight_server.client.conditions.sql import parse_where
from flight_server.core.wire.scan_request import CURRENT, Query, check_query_id, parse_json
from store.model.errors import InvalidArgument, InvalidField
from store.model.predicates import tree
from store.model.predicates.tree import Node
from store.model.structs import Table, Truth, read

_MARK: Final = b'"scan"'


class Command(Query, kw_only=True):
    """The JSON command (see PROTOCOL.md)."""

    scan: Table
    where: Any = None
    capture: Truth = False


@dataclass(frozen=True)
class PlanRequest:
    """A validated scan of one table.

    Attributes:
        table: Full name of the table.
        columns: Names of the columns to be read; None for all.
        snapshot: "current" or an id.
        capture: Capture the table first if its files are not known.
        where: The condition as it came.
        max_lag_ms: Greatest age of what is served, in milliseconds; None for any.
        min_generation: Commit that is served at least; None for none.
    """

    table: str
    node: Node | None = None
    columns: tuple[str, ...] | None = None
    snapshot: str | int = CURRENT
    capture: bool = False
    where: Any = None
    max_lag_ms: int | None = None
    min_generation: int | None = None

    def ticket(self, snapshot_id: int) -> bytes:
        """The ticket of the scan at a snapshot: the command itself."""
        command = {"scan": self.table, "where": self.where, "columns": self.columns, "snapshot": snapshot_id}
        command |= {"max_lag_ms": self.max_lag_ms, "min_generation": self.min_generation}
        return dumps({key: value for key, value in command.items() if value is not None}).encode()


def find(data: bytes | None, header_query_id: str | None = None) -> PlanRequest | None:
    """The scan that the bytes of a command or ticket ask to plan; None if they ask for something else.

    Raises:
        InvalidArgument: The command has the key `scan`, and is not valid.
    """
    if data is None or data[:1] != b"{" or _MARK not in data:
        return None
    body = parse_json(data, "command", exact=True)
    return of_json(body, header_query_id) if isinstance(body, dict) and "scan" in body else None


def of_json(body: dict[str, Any], header_query_id: str | None = None) -> PlanRequest:
    """The scan of a parsed command (see PROTOCOL.md); all keys are validated before the table is looked up.

    Raises:
        InvalidArgument: The command is not valid.
    """
    command = read(body, Command, "command")
    check_query_id(command.query_id, header_query_id)
    return PlanRequest(
        command.scan,
        condition_of(command.where),
        tuple(command.columns or ()) or None,
        CURRENT if command.snapshot is None else command.snapshot,
        command.capture,
        command.where,
        command.max_lag_ms,
        command.min_generation,
    )


def condition_of(where: Any) -> Node | None:
    """The condition of a command: SQL text, a filter tree or a list of trees, or None for all rows.

    Raises:
        InvalidArgument: It is not a condition.
    """
    if where is None:
        return None
    if isinstance(where, str):
        try:
            where = parse_where(where)
        except pa.ArrowInvalid as error:
            raise InvalidArgument("where: " + str(error).removeprefix("[INVALID_ARGUMENT] condition: ")) from None
    if isinstance(where, list):
        return tree.parse_predicates(where, "where")
    if not isinstance(where, dict):
        raise InvalidField("where", "is not a condition", expected="SQL text, or predicates", actual=where)
    return tree.parse(where, "where")
