"""Flights that are computed: quantiles of the contract's ranks."""

import numpy as np
import pytest

from flight_server.reads.computed import RANKS
from store import sketches
from store.schemas import KLL
from tests.flight_server.serving import app_in, command, put, read, rows


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with app_in(tmp_path_factory.mktemp("computed")) as made:
        yield made


def put_column(app, table, logical_type, values, **more):
    (row,) = rows(table, 1, [1], logical_type=logical_type, **more)
    put(app, [row])
    key = {name: row[name] for name in ("table_catalog", "table_schema", "table_name", "snapshot_id")}
    data = sketches.kll(np.sort(np.asarray(values, np.float64)))
    sketch = {"target_kind": "COLUMN", "storage_id": "column-" + "1".zfill(19), "column_id": 1, "role": "QUANTILES",
              "sketch_type": KLL, "data": data}  # fmt: skip
    put(app, [key | sketch], "stats.sketches")


def quantiles(app, table):
    found = read(app, command(table, "stats.quantiles", snapshot="current")).to_pylist()
    return [(row["quantile"], row["value"]) for row in found]


def test_quantiles_stand_at_their_ranks_between_the_bounds(app):
    put_column(app, "ints", "INT", range(1001), min="0", max="1000")
    found = quantiles(app, "ints")
    assert [rank for rank, _ in found] == list(RANKS)
    assert (found[0][1], found[-1][1]) == ("0", "1000")
    assert all(abs(int(value) - 1000 * rank) <= 5 for rank, value in found)


def test_quantiles_are_of_the_columns_type(app):
    put_column(app, "days", "DATE", [0, 1, 2])
    assert quantiles(app, "days")[4] == (0.5, "1970-01-02")


def test_a_column_without_a_sketch_has_no_quantiles(app):
    put(app, rows("none", 1, [1], logical_type="INT"))
    assert quantiles(app, "none") == []
