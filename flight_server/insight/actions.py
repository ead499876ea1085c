"""Actions: whether a column is a key; values that learned rules take for expected."""

from __future__ import annotations

from flight_server.core.actions.registry import Call, offered
from flight_server.core.part import Results
from flight_server.core.wire.lag import Read
from flight_server.core.wire.scan_request import CURRENT
from flight_server.insight import learned
from store.model.errors import InvalidArgument
from store.model.structs import Snapshot, Struct, Table, Text


class _Column(Read, kw_only=True):
    table: Table
    column_id: int
    snapshot: Snapshot = CURRENT


@offered(_Column, "Reads a column; whether no value of it occurs twice")
def unique(call: Call, asked: _Column) -> Results:
    app = call.app
    table = app.access.table(asked.table, call.principal, "stats.read")
    app.access.require(call.principal, "capture.run")
    snapshot_id = app.catalog.snapshot_id(table, asked.snapshot)
    found = app.parts["insight"].uniqueness.of(table, snapshot_id, asked.column_id, call.is_cancelled)
    yield {"table": table.full_name, "snapshot_id": snapshot_id, "column_id": asked.column_id, "unique": found}


class _Expected(Struct):
    table: Table
    measure: Text
    snapshot: Snapshot
    column: Text | None = None


@offered(_Expected, "Takes a value that a learned rule calls strange for expected")
def expect(call: Call, expected: _Expected) -> Results:
    table = call.app.access.table(expected.table, call.principal, "stats.write")
    measure, column = expected.measure, expected.column
    if measure not in learned.MEASURES or (column is None) != (measure not in learned.OF_COLUMN):
        of_table = ", ".join((*learned.OF_TABLE, learned.GAP))
        raise InvalidArgument(
            f"measure: {measure!r} of {'the table' if column is None else 'a column'} is not learned",
            hint=f"of a table are {of_table}, of a column {', '.join(learned.OF_COLUMN)}",
        )
    if column is not None:
        call.app.catalog.column_id(table, column)
    snapshot_id = call.app.catalog.snapshot_id(table, expected.snapshot)
    call.app.parts["insight"].checking.expect(table, snapshot_id, column, measure)
    yield {"table": table.full_name, "snapshot_id": snapshot_id, "column": column, "measure": measure}
