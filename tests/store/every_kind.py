"""A store with records of every kind, over three snapshots, some inherited."""

from __future__ import annotations

from store.model.columns import THETA
from store.stats_store import DuckDBStatsStore
from tests.store.contract import put, rows


def put_every_kind(store: DuckDBStatsStore) -> None:
    """Puts records of each flight for table c.s.t, and a column of c.s.u with an idempotency key."""
    numbers = {"row_count": 9, "null_count": 0, "schema_hash": "x", "completeness": "COMPLETE"}
    given = {
        "stats.tables": {},
        "stats.columns": {"column_id": 1},
        "stats.expressions": {"engine_kind": "spark", "engine_expression_key": b"e"},
        "stats.column_groups": {"column_ids": [1, 2]},
    }
    for flight, target in given.items():
        for snapshot, ndv in ((1, 4.0), (2, None), (3, None)):
            row = numbers | target | ({} if flight == "stats.tables" or ndv is None else {"ndv": ndv})
            row = {name: value for name, value in row.items() if flight != "stats.tables" or name != "null_count"}
            put(store, flight, rows(flight, row, snapshot=snapshot))
    for snapshot, paths in ((1, "ab"), (2, "bc"), (3, "bc")):
        files = [{"file_path": path, "row_count": 1, "schema_hash": "x"} for path in paths]
        put(store, "stats.files", rows("stats.files", *files, snapshot=snapshot), "replace_snapshot")
        columns = [file | {"column_id": 1} for file in files]
        put(store, "stats.file_columns", rows("stats.file_columns", *columns, snapshot=snapshot), "replace_snapshot")
        sketched = [
            {
                "target_kind": "FILE",
                "file_path": path,
                "column_id": 1,
                "role": "NDV",
                "sketch_type": THETA,
                "data": b"x",
            }
            for path in paths
        ]
        put(store, "stats.sketches", rows("stats.sketches", *sketched, snapshot=snapshot))
    sketch = {"target_kind": "COLUMN", "column_id": 1, "role": "NDV", "sketch_type": THETA, "data": b"x"}
    for snapshot in (1, 2, 3):
        put(store, "stats.sketches", rows("stats.sketches", sketch, snapshot=snapshot))
    put(store, "stats.columns", rows("stats.columns", {"column_name": "n"}, name=("c", "s", "u")), key="once")
