"""`PlanRequest`: a scan to be planned, the command `{"scan": "catalog.schema.table", …}` of descriptors and tickets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from flight_server.conditions.exact_json import dumps
from flight_server.conditions.sql import parse_where
from flight_server.wire.scan_request import (
    COMMAND_VERSION,
    CURRENT,
    check_query_id,
    parse_json,
    read_snapshot,
    refuse_unknown_keys,
)
from store.model.errors import InvalidArgument, InvalidField
from store.model.names import split_name
from store.model.predicates import tree
from store.model.predicates.tree import Node

KEYS: Final = ("scan", "where", "columns", "snapshot", "capture", "query_id", "version")
_MARK: Final = b'"scan"'


@dataclass(frozen=True)
class PlanRequest:
    """A validated scan of one table.

    Attributes:
        table: Full name of the table.
        node: Condition on its rows; None for all.
        columns: Names of the columns to be read; None for all.
        snapshot: "current" or an id.
        capture: Capture the table first if its files are not known.
        where: The condition as it came.
    """

    table: str
    node: Node | None = None
    columns: tuple[str, ...] | None = None
    snapshot: str | int = CURRENT
    capture: bool = False
    where: Any = None

    def ticket(self, snapshot_id: int) -> bytes:
        """The ticket of the scan at a snapshot: the command itself."""
        command = {"scan": self.table, "where": self.where, "columns": self.columns, "snapshot": snapshot_id}
        return dumps({key: value for key, value in command.items() if value is not None}).encode()


def find(data: bytes | None, header_query_id: str | None = None) -> PlanRequest | None:
    """The scan that a command or ticket asks to plan; None if it asks for something else.

    Args:
        data: Bytes of the command or ticket; None without one.
        header_query_id: Value of the header x-query-id; None without one.

    Raises:
        InvalidArgument: The command has the key `scan`, and is not valid.
    """
    if data is None or data[:1] != b"{" or _MARK not in data:
        return None
    body = parse_json(data, "command", exact=True)
    return of_json(body, header_query_id) if isinstance(body, dict) and "scan" in body else None


def of_json(body: dict[str, Any], header_query_id: str | None = None) -> PlanRequest:
    """The scan of a parsed command; all keys are validated before the table is looked up.

    Args:
        body: The command (see PROTOCOL.md).
        header_query_id: Value of the header x-query-id; None without one.

    Raises:
        InvalidArgument: The command is not valid.
    """
    refuse_unknown_keys(body, KEYS, "command")
    table, columns, capture = body["scan"], body.get("columns"), body.get("capture", False)
    if not isinstance(table, str):
        raise InvalidField("scan", "must be a string", expected="the full name of a table", actual=table)
    try:
        split_name(table)
    except ValueError as error:
        raise InvalidArgument(f"scan: {error}") from None
    if columns is not None and (not isinstance(columns, list) or not all(isinstance(c, str) for c in columns)):
        raise InvalidField("columns", "must be a list of names", expected='["id"]', actual=columns)
    if not isinstance(capture, bool):
        raise InvalidField("capture", "must be true or false", expected="true | false", actual=capture)
    version = body.get("version", COMMAND_VERSION)
    if isinstance(version, bool) or version != COMMAND_VERSION:
        raise InvalidField("version", "is unknown", expected=COMMAND_VERSION, actual=version)
    check_query_id(body.get("query_id"), header_query_id)
    snapshot = read_snapshot(body.get("snapshot"))
    return PlanRequest(
        table, condition_of(body.get("where")), None if not columns else tuple(columns),
        CURRENT if snapshot is None else snapshot, capture, body.get("where"),
    )  # fmt: skip


def condition_of(where: Any) -> Node | None:
    """The condition of a command.

    Args:
        where: SQL text, a filter tree or a list of trees; None for all rows.

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
