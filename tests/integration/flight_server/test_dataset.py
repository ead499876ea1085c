"""Datasets over a running server: conditions pushed down to it or applied in the client, with the same result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from datafusion import SessionContext
from pyarrow.compute import field

from flight_server.client import StatsClient
from tests.integration.counting_proxy import counting_proxy

CATALOG = "datasets"


@pytest.fixture(scope="module")
def client(live_server):
    rows = [
        {
            "table_catalog": CATALOG,
            "table_schema": "s",
            "table_name": f"t{i % 3}",
            "snapshot_id": 1,
            "column_id": i,
            "column_name": f"c{i}",
            "row_count": 2**53 + i,
            "ndv": None if i % 5 == 0 else i * 1.5,
        }
        for i in range(1, 101)
    ]
    with StatsClient(live_server.uri) as client:
        client.put("stats.columns", pa.Table.from_pylist(rows))
        yield client


@pytest.fixture
def sent_commands(client, monkeypatch):
    """Commands of the reads that a test sends."""
    commands, get = [], client.get
    monkeypatch.setattr(client, "get", lambda command, **more: (commands.append(command), get(command, **more))[1])
    return commands


@pytest.fixture
def d(client):
    return client.dataset("stats.columns", snapshot="current").filter(field("table_catalog") == CATALOG)


def test_columns_and_filter_are_pushed_down(d, sent_commands):
    found = d.to_table(columns=["ndv"], filter=field("column_name") == "c2")
    assert found.to_pylist() == [{"ndv": 3.0}]
    assert sent_commands == [
        {
            "table": "stats.columns",
            "strict": True,
            "snapshot": "current",
            "allow_stale": False,
            "columns": ["ndv"],
            "filter": {
                "and": [
                    {"column": "table_catalog", "op": "EQ", "values": [CATALOG]},
                    {"column": "column_name", "op": "EQ", "values": ["c2"]},
                ]
            },
        }
    ]


@pytest.mark.parametrize(
    "condition",
    [
        pc.starts_with(field("column_name"), "c9"),
        field("column_id") + 1 == 3,
        field("ndv") > field("column_id"),
        pc.if_else(field("ndv") > 3, field("column_id") > 5, False),
    ],
)
def test_unsupported_conditions_are_applied_in_the_client(d, client, sent_commands, condition, capfd):
    capfd.readouterr()
    found = d.to_table(columns=["column_id"], filter=condition)
    assert not capfd.readouterr().err  # Acero would warn of each unaligned buffer from the wire
    whole = client.read("stats.columns").filter(field("table_catalog") == CATALOG)
    pushed_down = {"column": "table_catalog", "op": "EQ", "values": [CATALOG]}
    assert sent_commands[0]["filter"] == pushed_down and found.num_rows
    assert found.sort_by("column_id").equals(whole.filter(condition).select(["column_id"]).sort_by("column_id"))
    assert d.head(3, filter=condition).num_rows == min(3, found.num_rows)


def test_too_many_conditions_are_applied_in_the_client(d, sent_commands):
    many = field("column_id") == 0
    for i in range(5000):
        many = many | (field("column_id") == i * 2)
    assert d.count_rows(filter=many) == 50
    assert "filter" in sent_commands[0] and "filter" not in sent_commands[1]


DUCKDB_IN = [
    ("column_name IN ('c1', 'c2', 'c2')", {1, 2}),
    ("column_id IN (3, 5, 300)", {3, 5}),
    ("column_id IN (3, NULL)", {3}),
    ("ndv IN (1.5, 3)", {1, 2}),
    ("column_id NOT IN (3, NULL)", set()),
]


@pytest.mark.parametrize(("condition", "ids"), DUCKDB_IN)
def test_in_conditions_of_duckdb_select_the_same_rows(d, sent_commands, condition, ids):
    found = duckdb.sql(f"SELECT column_id FROM d WHERE {condition} ORDER BY 1").fetchall()
    assert {i for (i,) in found} == ids
    if condition.startswith("column_name IN"):
        assert '"op": "IN"' in str(sent_commands[-1]["filter"]).replace("'", '"')


def test_null_result_of_if_else_selects_no_row(d):
    condition = pc.if_else(field("ndv").is_valid(), field("ndv") < 3, pa.scalar(None, pa.bool_()))
    assert d.count_rows(filter=condition) == 1 and d.count_rows(filter=~condition) == 79
    either = pc.if_else(
        field("ndv").is_valid(), (field("ndv") < 3) | (field("column_id") == 5), pa.scalar(None, pa.bool_())
    )
    assert d.count_rows(filter=~either) == 79


def test_batch_size_no_columns_and_computed_columns_are_supported(d):
    assert {batch.num_rows for batch in d.to_batches(columns=["ndv"], batch_size=10)} == {10}
    none = d.to_table(columns=[])
    assert (none.num_rows, none.num_columns) == (100, 0)
    twice = d.to_table(columns={"twice": field("column_id") * 2}, filter=field("column_id") == 4)
    assert twice.to_pylist() == [{"twice": 8}]
    assert d.scanner(columns={"twice": field("column_id") * 2}).projected_schema.names == ["twice"]


def test_take_head_sort_and_join_are_supported(d):
    assert d.take([0, 1]).num_rows == 2 and d.head(4).num_rows == 4
    assert d.sort_by("column_id").head(1)["column_id"].to_pylist() == [1]
    other = ds.dataset(pa.table({"column_id": [1, 2]}))
    assert d.join(other, "column_id", join_type="inner").count_rows() == 2


def test_scans_in_cpp_raise_rather_than_return_no_rows(d, tmp_path):
    with pytest.raises((OSError, pa.ArrowException, TypeError)):
        ds.Scanner.from_dataset(d).to_table()
    with pytest.raises((OSError, pa.ArrowException, TypeError)):
        ds.write_dataset(d, tmp_path, format="parquet")


def test_invalid_filters_and_columns_raise_the_errors_of_arrow(d, client):
    for wrong in (field("nosuch") == 1, field("column_id") == "one"):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
            d.to_table(filter=wrong)
    with pytest.raises(KeyError):
        d.to_table(columns=["nosuch"])
    with pytest.raises(pa.ArrowKeyError, match="UNKNOWN_FLIGHT"):
        client.dataset("stats.nothing")
    with pytest.raises(pa.ArrowInvalid, match="snapshot"):
        client.dataset("sys.flights", snapshot="current")


def test_engines_request_only_the_needed_columns_and_rows(d, sent_commands):
    context = SessionContext()
    context.register_dataset("d", d)
    context.sql("SELECT ndv FROM d WHERE table_name = 't1'").to_pylist()
    pl.scan_pyarrow_dataset(d).filter(pl.col("table_name") == "t1").select("ndv").collect()
    duckdb.sql("SELECT ndv FROM d WHERE table_name = 't1'").fetchall()
    # polars filters again, so it also reads the column of its filter
    assert [sorted(command["columns"]) for command in sent_commands] == [["ndv"], ["ndv", "table_name"], ["ndv"]]
    assert all("t1" in str(command["filter"]) for command in sent_commands)


def test_concurrent_scans_of_a_dataset_return_their_own_rows(d):
    """Eight threads scan through one connection, each its own rows."""

    def scan(number: int) -> list[tuple[int]]:
        return (
            duckdb.connect().register("d", d).sql(f"SELECT column_id FROM d WHERE column_name = 'c{number}'").fetchall()
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(scan, range(1, 65))) == [[(number,)] for number in range(1, 65)]


def test_join_of_two_flights_transfers_only_the_needed_columns(live_server, client):
    """Bytes on the wire are those of reads of these columns and rows, far fewer than those of all."""
    orders = [
        {"table_catalog": CATALOG, "table_schema": "s", "table_name": f"t{i}", "snapshot_id": 1, "row_count": i}
        for i in range(3)
    ]
    client.put("stats.tables", pa.Table.from_pylist(orders))
    join = """SELECT t.row_count, count(c.column_id) FROM c JOIN t USING (table_name)
              WHERE c.table_catalog = 'datasets' AND t.table_catalog = 'datasets' GROUP BY ALL ORDER BY 1"""
    with counting_proxy(live_server.uri) as proxy, StatsClient(proxy.uri) as proxied:

        def received_by(read) -> int:
            before = proxy.received
            read()
            return proxy.received - before

        c, t = proxied.dataset("stats.columns", "current"), proxied.dataset("stats.tables", "current")
        found = duckdb.connect().register("c", c).register("t", t)
        assert found.sql(join).fetchall() == [(0, 33), (1, 34), (2, 33)]
        joined = received_by(lambda: found.sql(join).fetchall())
        predicates = [{"column": "table_catalog", "op": "EQ", "values": [CATALOG]}]
        needed = received_by(
            lambda: (
                proxied.read("stats.columns", ["column_id", "table_name", "table_catalog"], predicates, "current"),
                proxied.read("stats.tables", ["row_count", "table_name", "table_catalog"], predicates, "current"),
            )
        )
        whole = received_by(lambda: (c.to_table(), t.to_table()))
    assert joined <= 1.1 * needed and 3 * joined < whole, (joined, needed, whole)


@pytest.mark.parametrize(
    "condition",
    [
        field("catalog_name") == CATALOG,
        field("catalog_db_schemas").is_valid(),
        field("catalog_db_schemas").is_null(),
        pc.starts_with(field("catalog_name"), "data"),
        pc.list_value_length(field("catalog_db_schemas")) > 1,
    ],
)
def test_flight_with_unions_is_a_dataset(client, condition):
    whole, d = client.read("adbc.statistics"), client.dataset("adbc.statistics")
    assert d.to_table().to_pylist() == whole.to_pylist() != []
    found = d.to_table(columns=["catalog_db_schemas"], filter=condition)
    assert found.to_pylist() == whole.filter(condition).select(["catalog_db_schemas"]).to_pylist()
