"""Results of data checks: one for each rule, column and snapshot of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from store.duckdb.database import Connection, Database, insert_rows
from store.model.schemas import EXPECTED

SNAPSHOTS_KEPT: Final = 200  # per table; results of older snapshots are deleted


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of a rule about a column, or about the table itself (`column_name` None)."""

    column_name: str | None
    rule: str
    measure: str
    level: str
    state: str
    value: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a rule's state."""

    before: str | None  # None: the first result of the rule
    row: CheckRow


class CheckStore:
    """The check results in a database."""

    def __init__(self, database: Database):
        self._database = database

    def put(self, table_key: int, snapshot_id: int, rows: Sequence[CheckRow], at: datetime) -> list[StateChange]:
        """Stores the results of a table at a snapshot; replaces earlier ones of that snapshot.

        Args:
            snapshot_id: Snapshot whose statistics were checked.

        Returns:
            The rules whose state differs from their previous result.
        """
        return self._database.write(lambda connection: _put(connection, table_key, snapshot_id, rows, at))

    def expect(self, table_key: int, snapshot_id: int, column: str | None, rule: str, measure: str) -> None:
        """Marks the value of a learned rule at a snapshot as expected."""
        row = [table_key, snapshot_id, column, rule, measure, "fail", EXPECTED, None, None]
        self._database.write(lambda connection: connection.execute(
            "INSERT INTO checks SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, now(), now()", row
        ))  # fmt: skip


def _put(
    connection: Connection, table_key: int, snapshot_id: int, rows: Sequence[CheckRow], at: datetime
) -> list[StateChange]:
    before = {
        (column, rule): (state, changed_at)
        for column, rule, state, changed_at in connection.execute(
            "SELECT column_name, rule, arg_max(state, checked_at), arg_max(changed_at, checked_at) FROM checks"
            " WHERE table_key = ? AND state <> ? GROUP BY ALL", [table_key, EXPECTED],
        ).fetchall()
    }  # fmt: skip
    stored: list[list[Any]] = []
    changes = []
    for row in rows:
        state, changed_at = before.get((row.column_name, row.rule), (None, None))
        if state != row.state:
            changes.append(StateChange(state, row))
            changed_at = at
        stored.append([
            table_key, snapshot_id, row.column_name, row.rule, row.measure, row.level, row.state, row.value,
            row.detail or None, at, changed_at,
        ])  # fmt: skip
    connection.execute(
        "DELETE FROM checks WHERE table_key = ? AND snapshot_id = ? AND state <> ?", [table_key, snapshot_id, EXPECTED]
    )
    insert_rows(connection, "checks", stored)
    connection.execute(
        "DELETE FROM checks WHERE table_key = $1 AND snapshot_id NOT IN (SELECT snapshot_id FROM checks"
        f" WHERE table_key = $1 GROUP BY 1 ORDER BY max(checked_at) DESC LIMIT {SNAPSHOTS_KEPT})", [table_key],
    )  # fmt: skip
    return changes
