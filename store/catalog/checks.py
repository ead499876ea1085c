"""Results of data checks: one for each rule, column and snapshot of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa

from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.database import Connection, Database, insert_rows
from store.model.columns import EXPECTED, WAITING

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


Results: TypeAlias = tuple[int, int, Sequence[CheckRow]]
"""Table key, id of the snapshot whose statistics were checked, and the results."""


class CheckStore:
    """The check results in a database."""

    def __init__(self, database: Database):
        self._database = database

    def put(self, results: Sequence[Results], at: datetime) -> list[list[StateChange]]:
        """Stores the results of tables, each at a snapshot; replaces earlier ones of that snapshot.

        Returns:
            For each table the rules whose state differs from their previous result; none that begins to wait.
        """
        return self._database.write(lambda connection: _put(connection, results, at)) if results else []

    def expect(self, table_key: int, snapshot_id: int, column: str | None, rule: str, measure: str) -> None:
        """Marks the value of a learned rule at a snapshot as expected."""
        row = [table_key, snapshot_id, column, rule, measure, "fail", EXPECTED, None, None]
        self._database.write(
            lambda connection: connection.execute(
                "INSERT INTO checks SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, now(), now()", row
            )
        )


def _put(connection: Connection, results: Sequence[Results], at: datetime) -> list[list[StateChange]]:
    keys = [key for key, _, _ in results]
    of_these, moved = among("table_key", keys), keys_table(keys)
    before = {
        tuple(rule): (state, changed_at)
        for *rule, state, changed_at in execute(
            connection,
            "SELECT table_key, column_name, rule, arg_max(state, checked_at),"
            " arg_max(changed_at, checked_at) FROM checks"
            f" WHERE {of_these} AND state NOT IN ('{EXPECTED}', '{WAITING}') GROUP BY ALL",
            moved=moved,
        )
    }
    stored: list[list[Any]] = []
    changes: list[list[StateChange]] = []
    for key, snapshot_id, rows in results:
        changes.append([])
        for row in rows:
            state, changed_at = before.get((key, row.column_name, row.rule), (None, None))
            if row.state == WAITING:
                changed_at = at
            elif state != row.state:
                changes[-1].append(StateChange(state, row))
                changed_at = at
            stored.append(
                [
                    key,
                    snapshot_id,
                    row.column_name,
                    row.rule,
                    row.measure,
                    row.level,
                    row.state,
                    row.value,
                    row.detail or None,
                    at,
                    changed_at,
                ]
            )
    replaced = moved.append_column("snapshot_id", pa.array([each[1] for each in results], pa.int64()))
    execute(
        connection,
        "DELETE FROM checks USING {replaced} r WHERE checks.table_key = r.key"
        f" AND (checks.snapshot_id = r.snapshot_id AND state <> '{EXPECTED}' OR state = '{WAITING}')",
        replaced=replaced,
    )
    insert_rows(connection, "checks", stored)
    execute(
        connection,
        f"DELETE FROM checks WHERE {of_these} AND (table_key, snapshot_id) NOT IN (SELECT table_key,"
        f" snapshot_id FROM checks WHERE {of_these} GROUP BY 1, 2 QUALIFY row_number() OVER (PARTITION BY table_key"
        f" ORDER BY max(checked_at) DESC) <= {SNAPSHOTS_KEPT})",
        moved=moved,
    )
    return changes
