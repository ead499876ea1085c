"""Rows of planned scans of tables with row-level deletes and renamed columns, read by libraries of their formats."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pytest

from flight_server.client.live_rows import LiveRows
from flight_server.client.scan import Scan
from flight_server.faces.local.tables import LocalTables
from flight_server.faces.present.reader_code import NoReader, Reader, Wanted, code
from tests.integration import random_lakes
from tests.integration.random_lakes import Lake

LAKES = Path(__file__).resolve().parents[3] / "shared/lakes"
ROWS = 60
DELETES = {
    "delta": random_lakes.delta_deletes,
    "iceberg": partial(random_lakes.iceberg_deletes, kinds=("position", "vector")),
}
WHERES = {
    "id > 500": pc.field("id") > 500,
    "int32 IS NULL OR id < 100": pc.field("int32").is_null() | (pc.field("id") < 100),
    "string = 'a' AND NOT id = 7": (pc.field("string") == "a") & ~(pc.field("id") == 7),
    "id < 0": pc.field("id") < 0,
}


@pytest.fixture
def tables() -> Iterator[LocalTables]:
    tables = LocalTables(None, lambda _: None)
    yield tables
    tables.close()


def table_of(lake: Lake) -> str:
    return lake.uri if lake.format == "iceberg" else f"{lake.uri}/{lake.name[1]}"


def sorted_rows(rows: pa.Table) -> list[str]:
    """The rows as texts, in which NaN is equal to itself."""
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("format", DELETES)
def test_rows_are_those_that_deletes_left(format: str, seed: int, tables: LocalTables, tmp_path: Path) -> None:
    lake = DELETES[format](random.Random(seed), tmp_path, ROWS)
    name, truth = tables.add(table_of(lake)), lake.versions[-1]
    dataset = tables.client.scan(name).dataset()
    assert isinstance(dataset, LiveRows) and dataset.count_rows() == truth.num_rows
    truth = truth.cast(dataset.schema)
    assert sorted_rows(dataset.to_table()) == sorted_rows(truth)
    for where, expression in WHERES.items():
        scan, expected = tables.client.scan(name, where=where), sorted_rows(truth.filter(expression))
        dataset = scan.dataset()
        assert sorted_rows(dataset.to_table(filter=expression)) == expected, where
        assert sorted_rows(dataset.filter(expression).to_table(["id", "string"])) == sorted_rows(
            truth.filter(expression).select(["id", "string"])
        )
        assert len(duckdb.sql(f"SELECT id FROM dataset WHERE {where}").fetchall()) == len(expected)
        assert scan.polars().sql(f"SELECT id FROM self WHERE {where}").collect().height == len(expected)


def test_engines_read_them(tables: LocalTables, tmp_path: Path) -> None:
    lake = random_lakes.delta_deletes(random.Random(1), tmp_path, ROWS)
    dataset = tables.client.scan(tables.add(table_of(lake))).dataset(fs.LocalFileSystem())
    expected = pc.sum(lake.versions[-1]["id"]).as_py()
    assert duckdb.sql("SELECT sum(id) FROM dataset").fetchall() == [(expected,)]
    assert pl.scan_pyarrow_dataset(dataset).select(pl.col("id").sum()).collect().item() == expected
    context = datafusion.SessionContext()
    context.register_dataset("t", dataset)
    (batch,) = context.sql('SELECT sum("id") AS s FROM t').collect()
    assert batch["s"].to_pylist() == [expected]
    assert len(dataset.head(3)) == 3 and sum(len(b) for b in dataset.to_batches(batch_size=7)) == dataset.count_rows()
    assert dataset.to_table({"twice": pc.field("id") * 2})["twice"].to_pylist() == [
        2 * id for id in dataset.to_table(["id"])["id"].to_pylist()
    ]
    with pytest.raises(pa.ArrowInvalid, match="nothing"):
        dataset.to_table(filter=pc.field("nothing") == 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [random_lakes.parquet, random_lakes.delta, random_lakes.iceberg])
def test_polars_reads_whole_tables_as_pyarrow_does(
    make: Callable[..., Lake], seed: int, tables: LocalTables, tmp_path: Path
) -> None:
    lake = make(random.Random(seed), tmp_path, ROWS)
    place = f"{lake.uri}/{lake.name[1]}" if lake.format != "iceberg" else str(next(tmp_path.rglob("metadata")).parent)
    name = tables.add(place)
    schema = tables.client.scan(name).dataset().schema
    columns = [field.name for field in schema if "." not in field.name and not is_beyond_python(field, lake.format)]
    scan = tables.client.scan(name, columns=columns)
    truth = scan.dataset().to_table()
    assert truth.num_rows == lake.versions[-1].num_rows
    frame = pl.from_arrow(truth)
    assert isinstance(frame, pl.DataFrame)
    found = scan.polars().collect()
    assert found.schema == frame.schema and sorted_rows(found.to_arrow()) == sorted_rows(frame.to_arrow())


def is_beyond_python(field: pa.Field, format: str) -> bool:
    """True if polars has no such type, or the lake has values in it that are too great for an INT or for Python."""
    is_far = format == "parquet" and any(far in str(field.type) for far in ("timestamp", "date"))
    return bool(pa.types.is_decimal256(field.type) or field.name == "uint64" or is_far)


def pasted(tables: LocalTables, scan: Scan, where: str | None) -> Any:
    """The rows that code for polars finds in a plan."""
    (place,) = tables.client.read_table("sys.tables", scan.table, ["location", "metadata_location"]).to_pylist()
    scope: dict[str, Any] = {}
    exec(code(scan, Reader.POLARS, Wanted(where, **place)), scope)
    return scope["rows"].collect() if "rows" in scope else pl.DataFrame({"id": []})  # no file is kept


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("format", DELETES)
def test_pasted_code_of_polars_applies_deletes(format: str, seed: int, tables: LocalTables, tmp_path: Path) -> None:
    lake = DELETES[format](random.Random(seed), tmp_path, ROWS)
    name, truth = tables.add(table_of(lake)), lake.versions[-1]
    found = pasted(tables, tables.client.scan(name), None).to_arrow().select(truth.column_names)
    assert sorted_rows(found.cast(truth.schema)) == sorted_rows(truth)
    for where, expression in WHERES.items():
        found = pasted(tables, tables.client.scan(name, where=where), where)
        assert sorted(found["id"].to_list()) == sorted(truth.filter(expression)["id"].to_pylist()), where


def test_pasted_code_of_polars_is_refused_for_equality_deletes(tables: LocalTables, tmp_path: Path) -> None:
    lake = random_lakes.iceberg_deletes(random.Random(2), tmp_path, ROWS, kinds=("equality",))
    name = tables.add(table_of(lake))
    with pytest.raises(NoReader, match="neither polars nor pyiceberg applies equality deletes") as refusal:
        pasted(tables, tables.client.scan(name), None)
    assert name in str(refusal.value)


@pytest.mark.parametrize(("name", "live"), [("table-with-dv-small", list(range(1, 9))), ("with-short-dv", None)])
@pytest.mark.skipif(not LAKES.exists(), reason="the shared lakes are elsewhere")
def test_tables_that_spark_deleted_from(name: str, live: list[int] | None, tables: LocalTables) -> None:
    scan = tables.client.scan(tables.add(str(LAKES / "delta" / name)))
    found = scan.dataset().to_table()
    assert found.num_rows == scan.summary["rows"]["kept"]
    assert live is None or sorted(found[0].to_pylist()) == live


@pytest.mark.parametrize("seed", range(6))
def test_renamed_columns_are_found(seed: int, tables: LocalTables, tmp_path: Path) -> None:
    lake = random_lakes.iceberg_names(random.Random(seed), tmp_path, ROWS)
    if not lake.versions:
        return
    metadata = sorted((tmp_path / "warehouse" / "n" / "t" / "metadata").glob("*.metadata.json"))
    name = tables.add(str(metadata[-1].parents[1]))
    dataset, truth = tables.client.scan(name).dataset(), lake.versions[-1]
    found = dataset.to_table()
    assert found.column_names == truth.column_names
    assert sorted_rows(found) == sorted_rows(truth)


def test_equality_deletes_are_refused_where_no_library_applies_them(tables: LocalTables, tmp_path: Path) -> None:
    lake = random_lakes.iceberg_deletes(random.Random(2), tmp_path, ROWS, kinds=("equality",))
    name = tables.add(table_of(lake))
    with pytest.raises(ValueError, match="row-level deletes") as refusal:
        tables.client.scan(name).dataset()
    told = str(refusal.value)
    assert name in told and "pyiceberg does not apply equality deletes" in told and "DuckDB" in told


def test_other_rows_than_are_known_are_an_error(tables: LocalTables, tmp_path: Path) -> None:
    lake = random_lakes.iceberg_deletes(random.Random(5), tmp_path, ROWS, kinds=("vector",))
    name = tables.add(table_of(lake))
    scan = tables.client.scan(name)
    counts = pc.add(scan.files["row_count"], 1)
    scan.files = scan.files.set_column(scan.files.schema.get_field_index("row_count"), "row_count", counts)
    with pytest.raises(ValueError, match=r"rows were read, and \d+ are known") as refusal:
        scan.dataset().to_table()
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("format", "place", "told"),
    [
        ("delta", {"location": None}, "does not know where"),
        ("delta", {"location": "/no/such/place"}, "deltalake: "),
        ("iceberg", {"metadata_location": None}, "does not know the metadata"),
        ("iceberg", {"metadata_location": "/no/such.metadata.json"}, "pyiceberg: "),
    ],
)
def test_tables_out_of_reach_are_refused_by_name(
    format: str, place: dict[str, Any], told: str, tables: LocalTables, tmp_path: Path
) -> None:
    lake = DELETES[format](random.Random(5), tmp_path, ROWS)
    name = tables.add(table_of(lake))
    scan = tables.client.scan(name)
    nowhere = pa.Table.from_pylist([{"location": None, "metadata_location": None} | place])
    scan._read_table = lambda *_: nowhere
    with pytest.raises(ValueError, match=told) as refusal:
        scan.dataset()
    assert name in str(refusal.value) and "row-level deletes" in str(refusal.value)
