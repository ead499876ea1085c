"""Flights that are computed: quantiles of the contract's ranks."""

import numpy as np
import pytest

from flight_server.reads.computed import RANKS
from store import sketches
from store.schemas import KLL
from tests.flight_server.serving import command, put, read, rows, service_in


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with service_in(tmp_path_factory.mktemp("computed")) as made:
        yield made


def put_column(service, table, logical_type, values, **more):
    (row,) = rows(table, 1, [1], logical_type=logical_type, **more)
    put(service, [row])
    key = {name: row[name] for name in ("table_catalog", "table_schema", "table_name", "snapshot_id")}
    data = sketches.kll(np.sort(np.asarray(values, np.float64)))
    sketch = {"target_kind": "COLUMN", "storage_id": "column-" + "1".zfill(19), "column_id": 1, "role": "QUANTILES",
              "sketch_type": KLL, "data": data}  # fmt: skip
    put(service, [key | sketch], "stats.sketches")


def quantiles(service, table):
    found = read(service, command(table, "stats.quantiles", snapshot="current")).to_pylist()
    return [(row["quantile"], row["value"]) for row in found]


def test_quantiles_stand_at_their_ranks_between_the_bounds(service):
    put_column(service, "ints", "INT", range(1001), min="0", max="1000")
    found = quantiles(service, "ints")
    assert [rank for rank, _ in found] == list(RANKS)
    assert (found[0][1], found[-1][1]) == ("0", "1000")
    assert all(abs(int(value) - 1000 * rank) <= 5 for rank, value in found)


def test_quantiles_are_of_the_columns_type(service):
    put_column(service, "days", "DATE", [0, 1, 2])
    assert quantiles(service, "days")[4] == (0.5, "1970-01-02")


def test_a_column_without_a_sketch_has_no_quantiles(service):
    put(service, rows("none", 1, [1], logical_type="INT"))
    assert quantiles(service, "none") == []
