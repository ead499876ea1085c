"""Code for engines, pasted and run."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from flight_server.faces.local.tables import LocalTables
from flight_server.faces.present.reader_code import NoReader, Reader, Wanted, code

ROWS = pa.table(
    {
        "id": list(range(60)),
        "day": [date(2024, 1, 1 + at % 3) for at in range(60)],
        "level": [None if at % 4 == 0 else at % 5 for at in range(60)],
        "at": pa.array([datetime(2024, 1, 1, 2, 3, at % 2, 7, UTC) for at in range(60)], pa.timestamp("us", "UTC")),
        "price": [Decimal(at % 2).quantize(Decimal("0.01")) for at in range(60)],
        'a "name" that\'s odd': [f"it's {at}" for at in range(60)],
    }
)
ODD = ROWS.column_names[-1]
CONDITIONS = [
    (None, lambda row: True),
    ("id < 5", lambda row: row["id"] < 5),
    ("level IS NULL AND id > 40", lambda row: row["level"] is None and row["id"] > 40),
    ("day = '2024-01-02' OR price = 1", lambda row: row["day"] == date(2024, 1, 2) or row["price"] == 1),
    ('"a ""name"" that\'s odd" <> \'it\'\'s 3\'', lambda row: row[ODD] != "it's 3"),
    ("id > 1000", lambda row: False),
]


@contextmanager
def scanned(path, where, columns=None):
    tables = LocalTables(None, lambda _: None)
    try:
        yield tables.client.scan(tables.add(str(path)), where=where, columns=columns)
    finally:
        tables.close()


def delta(path):
    write_deltalake(path, ROWS, partition_by=["day", "level", "price", "at"])
    return path


def parquet(path):
    pq.write_to_dataset(ROWS, path, partition_cols=["day"])
    pq.write_table(pa.table({"id": [99], "more": [1]}), path / "day=2024-01-01" / "later.parquet")
    return path


def pasted(reader, text):
    if reader is Reader.DUCKDB:
        found = duckdb.sql(text)
        return [] if found is None else found.arrow().read_all().to_pylist()
    scope: dict = {}
    exec(text, scope)
    return scope["rows"].collect().to_dicts() if "rows" in scope else []


@pytest.mark.parametrize("reader", [Reader.DUCKDB, Reader.POLARS])
@pytest.mark.parametrize(("where", "holds"), CONDITIONS)
def test_pasted_code_finds_the_rows_of_a_delta_table(tmp_path, reader, where, holds):
    with scanned(delta(tmp_path / "t"), where) as scan:
        rows = pasted(reader, code(scan, reader, Wanted(where)))
    expected = [row for row in ROWS.to_pylist() if holds(row)]
    assert sorted(rows, key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("reader", [Reader.DUCKDB, Reader.POLARS])
def test_columns_are_those_that_were_named(tmp_path, reader):
    with scanned(delta(tmp_path / "t"), "id = 7", [ODD, "day"]) as scan:
        rows = pasted(reader, code(scan, reader, Wanted("id = 7", [ODD, "day"])))
    assert rows == [{ODD: "it's 7", "day": date(2024, 1, 2)}]


@pytest.mark.parametrize("reader", [Reader.DUCKDB, Reader.POLARS])
def test_columns_that_a_file_lacks_are_null(tmp_path, reader):
    with scanned(parquet(tmp_path / "t"), None, None) as scan:
        rows = pasted(reader, code(scan, reader, Wanted(None, ["id", "more", "day"])))
    added = [row for row in rows if row["id"] == 99]
    assert len(rows) == 61
    assert added == [{"id": 99, "more": 1, "day": date(2024, 1, 1)}]
    assert {row["more"] for row in rows if row["id"] != 99} == {None}


def test_tables_whose_columns_have_ids_are_left_to_their_own_reader(tmp_path):
    write_deltalake(
        tmp_path / "t",
        ROWS.select(["id"]),
        configuration={
            "delta.columnMapping.mode": "name",
            "delta.minReaderVersion": "2",
            "delta.minWriterVersion": "5",
        },
    )
    with scanned(tmp_path / "t", "id = 1") as scan:
        wanted = Wanted("id = 1", location="/lake/t", metadata_location="/lake/t/_delta_log/0.json")
        assert scan.refusal() is not None
        assert "delta_scan('/lake/t', version = 0)" in code(scan, Reader.DUCKDB, wanted)
        assert "pl.scan_delta('/lake/t', version=0)" in code(scan, Reader.POLARS, wanted)
        assert ".option('versionAsOf', 0).load('/lake/t').where('id = 1')" in code(scan, Reader.SPARK, wanted)


def test_values_are_written_as_the_engine_reads_them(tmp_path):
    odd = "it's a \\ b"
    write_deltalake(tmp_path / "t", pa.table({"id": [1], "p": [odd]}), partition_by=["p"])
    with scanned(tmp_path / "t", None) as scan:
        assert pasted(Reader.DUCKDB, code(scan, Reader.DUCKDB, Wanted())) == [{"id": 1, "p": odd}]
        in_spark = code(scan, Reader.SPARK, Wanted())
    assert repr(r"CAST('it\'s a \\ b' AS STRING)") in in_spark  # Spark reads a backslash as an escape


def test_a_format_that_an_engine_cannot_read_is_refused(tmp_path):
    lance = pytest.importorskip("lance")
    lance.write_dataset(ROWS.select(["id"]), str(tmp_path / "t"))
    with scanned(tmp_path / "t", None) as scan, pytest.raises(NoReader, match="polars has no reader for lance tables"):
        code(scan, Reader.POLARS, Wanted(location="/lake/t"))
