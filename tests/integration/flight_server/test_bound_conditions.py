"""Conditions on min and max over the wire, in every language of conditions: rows of 2,000 files, from DuckDB and from
the cache."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.compute import field

from flight_server.client import StatsClient
from flight_server.core.wire.flight_sql import write_any

CATALOG, FILES = "bounds", 2000
NAMED = {"table_catalog": CATALOG, "table_schema": "s", "table_name": "t"}
DIGITS = "1234567890123456789.5"  # more than a float has
BOUNDS = {  # column id: logical type, min of file i
    1: ("INT", lambda i: str(i - 3)),
    2: ("STRING", lambda i: str(i - 3)),
    3: ("DOUBLE", lambda i: f"{float(i - 3)}"),
    4: ("DECIMAL(38,1)", lambda i: DIGITS if i == 7 else f"{i - 3}.5"),
    5: ("TIMESTAMPTZ", lambda i: f"2026-01-01T{i % 24:02}:{i // 24 % 60:02}:00Z"),
}


@pytest.fixture(scope="module")
def client(live_server):
    rows = [
        NAMED
        | {
            "snapshot_id": 1,
            "file_path": f"f{i}",
            "column_id": id,
            "logical_type": name,
            "min": text(i),
            "max": text(i),
        }
        for i in range(FILES)
        for id, (name, text) in BOUNDS.items()
    ]
    with StatsClient(live_server.uri) as client:
        client.put("stats.file_columns", pa.Table.from_pylist(rows))
        yield client


def files(rows: pa.Table) -> list[tuple[int, int]]:
    """Column id and number of files."""
    counts = pc.value_counts(rows["column_id"].combine_chunks()).to_pylist()
    return sorted((count["values"], count["counts"]) for count in counts)


# SQL text, the same as an Arrow expression, as a tree; files of each column that satisfy it.
SAME = [
    ("max > 9", field("max") > 9, ["max", "GT", 9], [(1, 1987), (3, 1987), (4, 1989)]),
    ("min < -2", field("min") < -2, ["min", "LT", -2], [(1, 1), (3, 1), (4, 2)]),
    ("min <= -2.5", field("min") <= -2.5, ["min", "LTE", -2.5], [(1, 1), (3, 1), (4, 2)]),
    (f"max >= {DIGITS}", field("max") >= Decimal(DIGITS), ["max", "GTE", Decimal(DIGITS)], [(4, 1)]),
    (f"max = {DIGITS}1", field("max") == Decimal(f"{DIGITS}1"), ["max", "EQ", Decimal(f"{DIGITS}1")], []),
    ("max = 1e1", field("max") == 10.0, ["max", "EQ", 10.0], [(1, 1), (3, 1)]),
    ("max > '9'", field("max") > "9", ["max", "GT", "9"], [(1, 1987), (2, 110), (3, 1987), (4, 1989)]),
    ("NOT (max > 'z')", ~(field("max") > "z"), ["max", "LTE", "z"], [(2, FILES)]),
    (
        "max IN (10, 11, 'a')",
        (field("max") == 10) | (field("max") == 11) | (field("max") == "a"),
        ["max", "IN", 10, 11, "a"],
        [(1, 2), (3, 2)],
    ),
    (
        "min < '2026-01-01T01:00:00+01:00'",
        field("min") < "2026-01-01T01:00:00+01:00",
        ["min", "LT", "2026-01-01T01:00:00+01:00"],
        [(2, 1117)],
    ),
    (
        "min = TIMESTAMP '2026-01-01 01:00:00'",
        field("min") == "2026-01-01T01:00:00Z",
        ["min", "EQ", "2026-01-01T01:00Z"],
        [(5, 2)],
    ),
]


@pytest.mark.parametrize(("sql", "expression", "leaf", "kept"), SAME, ids=[sql for sql, *_ in SAME])
def test_bounds_compare_in_the_rows_type_in_every_language(client, sql, expression, leaf, kept):
    tree = {"column": leaf[0], "op": leaf[1], "values": leaf[2:]}
    named = [{"column": name, "op": "EQ", "values": [value]} for name, value in NAMED.items()]
    for where in (sql, expression, tree):
        assert files(client.read_table("stats.file_columns", f"{CATALOG}.s.t", where=where)) == kept, where
    for snapshot in (None, "current", "current", "current"):  # the last ones are served from the cache
        assert files(client.read("stats.file_columns", where=[*named, tree], snapshot=snapshot)) == kept, snapshot
    d = client.dataset("stats.file_columns").filter(field("table_catalog") == CATALOG)
    assert files(d.to_table(filter=expression)) == kept
    (ticket,) = client.tickets({"table": "stats.file_columns", "predicates": [*named, tree]})
    assert files(client.get(ticket)) == kept


def test_statement_of_duckdb_over_a_dataset_pushes_texts_down(client):
    d = client.dataset("stats.file_columns").filter(field("table_catalog") == CATALOG)  # noqa: F841
    assert duckdb.sql("SELECT count(*) FROM d WHERE column_id = 1 AND max > '9'").fetchall() == [(1987,)]


def test_bounds_are_text_in_flight_sql(client, live_client):
    def count(where: str) -> int:
        sql = f"SELECT count(*) FROM stats_all.file_columns WHERE table_catalog = '{CATALOG}' AND {where}"
        return live_client.get(write_any("CommandStatementQuery", (1, sql.encode())))[0][0].as_py()

    assert count("column_id = 1 AND max > '9'") == 110
    assert count("logical_type = 'INT' AND TRY_CAST(max AS BIGINT) > 9") == 1987
    assert count("column_id = 1 AND max IN ('9', '09')") == 1


def test_condition_on_a_bound_cannot_be_half_applied_in_the_client(client):
    d = client.dataset("stats.file_columns")
    for condition in (
        (field("max") > "9") & pc.starts_with(field("column_name"), "x"),
        (field("max") > 9) | (field("row_count") + 1 > 3),
        field("max").isin(["9"]) | pc.starts_with(field("column_name"), "x"),
    ):
        with pytest.raises(pa.ArrowInvalid, match="min or max"):
            d.to_table(filter=condition)
    assert d.filter(pc.starts_with(field("min"), "199")).count_rows() > 0


def test_a_number_of_many_digits_stays_exact_in_json(client, live_client):
    for digits, kept in ((f"{DIGITS}0001", []), (f"{DIGITS[:-1]}4999", [4])):
        leaf = f'{{"column": "max", "op": "GT", "values": [{digits}]}}'
        body = f'{{"table": "stats.file_columns", "columns": ["column_id"], "filter": {leaf}}}'
        assert live_client.get(body.encode())["column_id"].to_pylist() == kept
