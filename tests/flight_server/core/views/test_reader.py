"""Reads of many tables in turn: the same rows as reads of each alone, in few requests."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from flight_server.client.table_names import COLUMNS, join_name, split_name
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views.reader import ReadAhead, as_rows, equal, read_table
from store.model.errors import NotFound
from store.model.sketches import kll
from store.model.target_ids import of_column
from tests.flight_server.serving import app_in, put

PLACES = [*product(("lake", "sea"), ("s", "my.schema", 'a"b'), ("t", "s.t", "u"))]
NAMES = [join_name(*place) for place in PLACES]


class Counting:
    """The server's reader, which counts the reads."""

    def __init__(self, app):
        self._reader, self.reads = LocalReader(app.scanner, ANONYMOUS), 0

    def read(self, *asked):
        self.reads += 1
        return self._reader.read(*asked)


@pytest.fixture(scope="module")
def app():
    """Tables of one to three snapshots, some without statistics of the table itself."""
    at = [
        dict(zip(COLUMNS, place, strict=True)) | {"snapshot_id": snapshot}
        for number, place in enumerate(PLACES)
        for snapshot in range(1 + number % 3)
    ]
    sketch = {
        "target_kind": "COLUMN",
        "storage_id": of_column(1),
        "column_id": 1,
        "role": "QUANTILES",
        "sketch_type": "apache-datasketches-kll-doubles-v1",
    }
    with app_in() as app:
        put(app, [key | {"row_count": i} for i, key in enumerate(at) if i % 5], "stats.tables")
        put(
            app,
            [
                key | {"column_id": i, "column_name": f"c{i}", "logical_type": "INT", "row_count": 9}
                for key in at
                for i in (1, 2)
            ],
        )
        put(app, [key | sketch | {"data": kll(np.arange(1.0 + i))} for i, key in enumerate(at)], "stats.sketches")
        yield app


READS = [
    ("stats.columns", None, (), {"snapshot": "current", "allow_stale": True}),
    ("stats.columns", ["ndv", "column_id"], (equal("column_id", 2),), {}),
    ("stats.tables", None, (), {"snapshot": "current"}),
    ("stats.histograms", ["column_id", "bucket", "upper"], (), {"snapshot": 0}),
    ("stats.sketches", None, (equal("role", "QUANTILES"),), {"snapshot": "current"}),
    ("sys.snapshots", None, (), {}),
    ("sys.tables", ["snapshot_id"], (), {}),
]


def test_rows_are_those_of_each_table_alone(app):
    names = ["lake.s.missing", *NAMES[:3], 'lake."my.schema".t', 'lake."s".t', *NAMES]
    alone, counters = LocalReader(app.scanner, ANONYMOUS), (Counting(app), Counting(app))
    readers = [ReadAhead(counter, names, whole) for counter, whole in zip(counters, ((), ("column_id",)), strict=True)]
    expected_by_table = {}
    for name in [*names, "sea.s.elsewhere"]:
        for at, (flight, columns, more, options) in enumerate(READS):
            if (key := (split_name(name), at)) not in expected_by_table:
                expected_by_table[key] = read_table(alone, flight, name, columns, *more, **options)
            expected = expected_by_table[key]
            for ahead in readers:
                assert read_table(ahead, flight, name, columns, *more, **options).equals(expected), (flight, name)
    for counter in counters:
        assert counter.reads <= 6 * len(READS)  # of 1, 4 and 16 tables, and of those that are not among them


def test_table_without_the_snapshot_is_refused_as_alone(app):
    reader = LocalReader(app.scanner, ANONYMOUS)
    ahead, has_it = ReadAhead(reader, NAMES), 0
    for number, name in enumerate(NAMES):
        if number % 3:  # else it has snapshot 0 only
            found, expected = (read_table(each, "stats.columns", name, snapshot=1) for each in (ahead, reader))
            assert found.equals(expected) and found.num_rows
            has_it += 1
        else:
            with pytest.raises(NotFound, match="has no snapshot 1"):
                read_table(ahead, "stats.columns", name, snapshot=1)
    assert 0 < has_it < len(NAMES)


def test_table_that_cannot_be_read_spoils_no_other(app):
    bad = NAMES[7]
    key = app.catalog.get(bad).table_key
    app.database.write(lambda c: c.execute(f"UPDATE stats_columns_current SET min = 'x' WHERE table_key = {key}"))
    reader = LocalReader(app.scanner, ANONYMOUS)
    ahead, asked = ReadAhead(reader, NAMES), {"snapshot": "current"}
    for name in NAMES:
        if name == bad:
            for each in (ahead, reader):
                with pytest.raises((RuntimeError, pa.ArrowInvalid)):
                    read_table(each, "stats.quantiles", name, **asked)
        else:
            found, expected = (read_table(each, "stats.quantiles", name, **asked) for each in (ahead, reader))
            assert found.equals(expected) and found.num_rows, name


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_rows_are_those_of_arrow(rows):
    instant = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    columns = {
        "constant": pa.array(["a"] * rows),
        "null": pa.nulls(rows),
        "unknown": pa.nulls(rows, pa.float64()),
        "some": pa.array([None, 1.5, 1.5] * 3, pa.float64())[:rows],
        "different": pa.array(range(rows), pa.int64()),
        "at": pa.array([instant] * rows, pa.timestamp("us", "UTC")),
        "true": pa.array([True] * rows),
        "bytes": pa.array([b"x"] * rows, pa.binary()),
        "list": pa.array([[1, 2]] * rows, pa.list_(pa.int64())),
        "coded": pa.array(["b"] * rows).dictionary_encode(),
    }
    table = pa.table(columns)
    assert as_rows(table) == table.to_pylist()
    assert as_rows(pa.concat_tables([table, table])) == pa.concat_tables([table, table]).to_pylist()
