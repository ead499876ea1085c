"""Results of checks: one for each rule, column and snapshot of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from store.database import Connection, Database, insert_rows

SNAPSHOTS_KEPT: Final = 200  # of a table: results of older ones are deleted


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A result of a rule about a table, or one of its columns (None for the table itself)."""

    column_name: str | None
    rule: str
    measure: str
    level: str
    state: str
    value: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A rule whose state is not what it was; None before its first result."""

    before: str | None
    row: CheckRow


class CheckStore:
    """The results in a database."""

    def __init__(self, database: Database):
        self._database = database

    def put(self, table_key: int, snapshot_id: int, rows: Sequence[CheckRow], at: datetime) -> list[Turn]:
        """Stores the results of a table at a snapshot in place of those there are.

        Args:
            table_key: Of the table.
            snapshot_id: Whose statistics were checked.
            rows: One for each rule and column.
            at: The time of the check.

        Returns:
            The rules whose state differs from their newest result before.
        """
        return self._database.write(lambda connection: _put(connection, table_key, snapshot_id, rows, at))


def _put(
    connection: Connection, table_key: int, snapshot_id: int, rows: Sequence[CheckRow], at: datetime
) -> list[Turn]:
    before = {
        (column, rule): (state, changed_at)
        for column, rule, state, changed_at in connection.execute(
            "SELECT column_name, rule, arg_max(state, checked_at), arg_max(changed_at, checked_at) FROM checks"
            " WHERE table_key = ? GROUP BY ALL", [table_key],
        ).fetchall()
    }  # fmt: skip
    stored: list[list[Any]] = []
    turns = []
    for row in rows:
        state, changed_at = before.get((row.column_name, row.rule), (None, None))
        if state != row.state:
            turns.append(Turn(state, row))
            changed_at = at
        stored.append([
            table_key, snapshot_id, row.column_name, row.rule, row.measure, row.level, row.state, row.value,
            row.detail or None, at, changed_at,
        ])  # fmt: skip
    connection.execute("DELETE FROM checks WHERE table_key = ? AND snapshot_id = ?", [table_key, snapshot_id])
    insert_rows(connection, "checks", stored)
    connection.execute(
        "DELETE FROM checks WHERE table_key = $1 AND snapshot_id NOT IN (SELECT snapshot_id FROM checks"
        f" WHERE table_key = $1 GROUP BY 1 ORDER BY max(checked_at) DESC LIMIT {SNAPSHOTS_KEPT})", [table_key],
    )  # fmt: skip
    return turns
