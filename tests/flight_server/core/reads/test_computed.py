"""Computed flights: quantiles at fixed ranks, and histograms."""

import itertools

import numpy as np
import pytest

from flight_server.core.reads.computed import RANKS, _buckets, _quantiles
from store.model import sketches
from store.model.columns import KLL
from tests.flight_server.serving import app_in, command, put, read, rows


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        yield app


def put_column(app, table, logical_type, values, data=None, params=None, snapshot=1, **more):
    (row,) = rows(table, snapshot, [1], logical_type=logical_type, **more)
    put(app, [row])
    key = {name: row[name] for name in ("table_catalog", "table_schema", "table_name", "snapshot_id")}
    data = data or sketches.kll(np.sort(np.asarray(values, np.float64)))
    sketch = {
        "target_kind": "COLUMN",
        "storage_id": "column-" + "1".zfill(19),
        "column_id": 1,
        "role": "QUANTILES",
        "sketch_type": KLL,
        "data": data,
        "params": params,
    }
    put(app, [key | sketch], "stats.sketches")


def quantiles(app, table):
    found = read(app, command(table, "stats.quantiles", snapshot="current")).to_pylist()
    return [(row["quantile"], row["value"]) for row in found]


def test_quantiles_cover_all_ranks_between_min_and_max(app):
    put_column(app, "ints", "INT", range(1001), min="0", max="1000")
    found = quantiles(app, "ints")
    assert [rank for rank, _ in found] == list(RANKS)
    assert (found[0][1], found[-1][1]) == ("0", "1000")
    assert all(abs(int(value) - 1000 * rank) <= 5 for rank, value in found)


def test_quantiles_have_the_type_of_their_column(app):
    put_column(app, "days", "DATE", [0, 1, 2])
    assert quantiles(app, "days")[4] == (0.5, "1970-01-02")


def test_column_without_a_sketch_has_no_quantiles(app):
    put(app, rows("none", 1, [1], logical_type="INT"))
    assert quantiles(app, "none") == []


def test_quantiles_beyond_double_precision_are_sorted_within_bounds():
    """The double nearest to a bound lies beyond the bound."""
    most = 2**53 + 1
    record = {
        "logical_type": "INT",
        "min": str(most),
        "max": str(most + 2),
        "data": sketches.kll(np.array([most - 1.0, most + 3.0])),
    }
    values = [int(row["value"]) for row in _quantiles(record)]
    assert values == sorted(values) and {values[0], values[-1]} == {most, most + 2}


@pytest.mark.parametrize(
    ("logical_type", "low", "high"),
    [
        ("DECIMAL(18,18)", "-0.999999999999999999", "0.999999999999999999"),  # -1 and 1 are beyond the type
        ("INT", str(2**60 + 1), str(2**60 + 3)),  # one double
        ("TIMESTAMP", "0000-12-31T16:07:02.000001", "9999-12-31T23:59:59.999999"),
    ],
)
def test_histogram_ends_at_the_bounds(logical_type, low, high):
    numbers = {"TIMESTAMP": [-62135625178e6 + 1, 0, 253402300799999999]}
    data = sketches.kll(np.array(numbers.get(logical_type) or [float(low)] * 9 + [float(high)]))
    counts = {"row_count": 10, "null_count": 0, "nan_count": None}
    rows = _buckets({"logical_type": logical_type, "min": low, "max": high, "data": data} | counts)
    assert (rows[0]["lower"], rows[-1]["upper"]) == (low, high)
    assert all(a["upper"] == b["lower"] for a, b in itertools.pairwise(rows))


@pytest.mark.parametrize(
    ("logical_type", "values", "bounds", "expected"),
    [
        ("INT", [-(2**63), 2**63 - 1], {"max": str(2**63 - 1)}, {str(-(2**63)), str(2**63 - 1)}),
        ("INT", [1, 2**64 - 1], {"min": "1"}, {"1", None}),  # unsigned: no bound has the greatest
        ("INTERVAL", [1, 2], {"min": "P1D", "max": "P2D"}, {"P1D", None, "P2D"}),
        ("DECIMAL(38,1)", [5 * 10**36], {}, {str(int(5e36))}),
    ],
)
def test_quantiles_at_the_limits_of_types(app, logical_type, values, bounds, expected):
    """A column whose quantiles cannot be shown must not fail the flight of all tables."""
    put_column(app, f"{logical_type}{values[0]}", logical_type, values, **bounds)
    assert {value for _, value in quantiles(app, f"{logical_type}{values[0]}")} == expected
    assert read(app, command(f"{logical_type}{values[0]}", "stats.histograms")).num_rows


def test_unreadable_sketch_does_not_hide_other_tables(app):
    put_column(app, "fine", "INT", [1, 2])
    put_column(app, "broken", "INT", [], data=b"garbage")
    assert len(quantiles(app, "fine")) == len(RANKS) and quantiles(app, "broken") == []
    assert read(app, command(flight="stats.quantiles")).num_rows >= len(RANKS)
    assert read(app, command("broken", "stats.histograms")).num_rows == 0


@pytest.mark.parametrize(
    ("params", "labels"),
    [
        (None, ("COMPLETE", "PRUNING")),
        ('{"completeness": "PARTIAL"}', ("PARTIAL", "PLANNING")),
    ],
)
@pytest.mark.parametrize("flight", ["stats.quantiles", "stats.histograms"])
def test_sketch_of_a_sample_is_partial_beside_a_complete_record(app, flight, params, labels):
    """The record of the same column is complete, from metadata or an earlier capture."""
    table = f"{flight}{params is None}"
    put_column(app, table, "INT", [1, 2], params=params, completeness="COMPLETE")
    found = read(app, command(table, flight, snapshot="current")).to_pylist()
    assert {(row["completeness"], row["usable_for"]) for row in found} == {labels}


@pytest.mark.parametrize("stale", [False, True])
def test_sketch_of_a_sample_hides_no_earlier_one_of_all_rows(app, stale):
    """The table's metadata was captured at snapshot 2, then a sample; at snapshot 3 a sample of another schema."""
    table, sample = f"sampled{stale}", '{"completeness": "PARTIAL"}'
    put_column(app, table, "INT", range(100), completeness="COMPLETE", schema_hash="h")
    put_column(app, table, "INT", [7], params=sample, snapshot=2, completeness="COMPLETE", schema_hash="h")
    put_column(app, table, "INT", [8], params=sample, snapshot=3, completeness="PARTIAL", schema_hash="g")
    for snapshot, whole in ((2, (1, "INHERITED", "COMPLETE")), (3, (3, "EXACT", "PARTIAL"))):
        found = read(app, command(table, "stats.quantiles", snapshot=snapshot, allow_stale=stale)).to_pylist()
        assert {(row["snapshot_id"], row["freshness"], row["completeness"]) for row in found} == {whole}


def _file(path: str, snapshot: int = 1, partition: str | None = '{"day": "1"}', **more) -> dict:
    return {
        "table_catalog": "lake",
        "table_schema": "s",
        "table_name": "t",
        "snapshot_id": snapshot,
        "file_path": path,
        "file_content": "DATA",
        "row_count": 10,
        "size_bytes": 100,
        "partition_data_json": partition,
        "partition_spec_id": 0,
        "sequence_number": 1,
        "completeness": "COMPLETE",
    } | more


def _partitions(app, **more):
    names = (
        "partition_data_json",
        "row_count",
        "file_count",
        "size_bytes",
        "delete_file_count",
        "last_sequence_number",
    )
    rows = read(app, command("t", "stats.partitions", **more)).to_pylist()
    return [tuple(row[name] for name in names) for row in rows], rows


def test_partitions_sum_up_the_files_of_the_snapshot():
    one, two = '{"day": "1"}', '{"day": "2"}'
    with app_in() as app:
        put(app, [_file("a"), _file("b", row_count=5, sequence_number=3), _file("c", partition=two)], "stats.files")
        second = [
            _file("a", 2),
            _file("c", 2, partition=two, row_count=None),
            _file("d", 2, file_content="POSITION_DELETES", row_count=4, sequence_number=7),
            _file("e", 2, None),
        ]
        put(app, second, "stats.files")
        expected = [(one, 15, 2, 200, 0, 3), (two, 10, 1, 100, 0, 1)]
        assert _partitions(app, snapshot=1)[0] == expected
        current, rows = _partitions(app, snapshot="current")
        assert current == [(one, 10, 1, 100, 1, 7), (two, None, 1, 100, 0, 1), (None, 10, 1, 100, 0, 1)]
        assert {(row["freshness"], row["usable_for"], row["completeness"]) for row in rows} == {
            ("EXACT", "PRUNING", "COMPLETE")
        }
        assert len(_partitions(app)[0]) == 5
        condition = {"column": "row_count", "op": "LT", "values": [12]}
        assert _partitions(app, snapshot=1, filter=condition)[0] == expected[1:]


def test_sums_of_a_partition_beyond_64_bits_are_unknown():
    with app_in() as app:
        huge = {"row_count": 2**62, "size_bytes": 2**62, "rows_scanned": 2**62}
        put(app, [_file("a", **huge), _file("b", **huge), _file("c", partition="{}")], "stats.files")
        found, rows = _partitions(app)
        assert found == [('{"day": "1"}', None, 2, None, 0, 1), ("{}", 10, 1, 100, 0, 1)]
        assert [row["rows_scanned"] for row in rows] == [None, None]


def test_empty_table_without_partitions_has_one_row():
    names = ("table_catalog", "table_schema", "table_name", "snapshot_id", "row_count", "completeness")
    table = {name: value for name, value in _file("a").items() if name in names}
    with app_in() as app:
        put(app, [table | {"row_count": 0, "data_file_count": 0, "total_size_bytes": 0}], "stats.tables")
        empty = (None, 0, 0, 0, 0, None)
        for read_at in ({"snapshot": "current"}, {"snapshot": 1}, {}):
            found, rows = _partitions(app, **read_at)
            assert found == [empty]
            assert (rows[0]["freshness"], rows[0]["usable_for"], rows[0]["snapshot_id"]) == ("EXACT", "PRUNING", 1)
        put(app, [_file("a", 2, None)], "stats.files")
        put(app, [table | {"snapshot_id": 2, "data_file_count": 1}], "stats.tables")
        assert _partitions(app, snapshot="current")[0] == [(None, 10, 1, 100, 0, 1)]
        assert _partitions(app, snapshot=1)[0] == [empty]
        key = app.catalog.get("lake.s.t").table_key
        keyed = "UPDATE tables SET partition_keys = ['day']"
        app.database.write(lambda c: c.execute(keyed) and app.database.touch(key))
        assert _partitions(app, snapshot=1)[0] == []


def test_partitions_of_one_value_in_two_specs_are_two():
    with app_in() as app:
        put(app, [_file("a"), _file("b", partition_spec_id=1)], "stats.files")
        assert len(_partitions(app, snapshot="current")[0]) == 2
        (row,) = read(
            app, command("t", "stats.partitions", filter={"column": "partition_spec_id", "op": "EQ", "values": [1]})
        ).to_pylist()
        assert row["file_count"] == 1
