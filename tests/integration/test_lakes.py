"""Tables of the shared lakes compared with another reader of the same files: rows, nulls, bounds and scanned values.

The other reader is deltalake's query engine, DuckDB for Parquet, and for Iceberg pyiceberg, or DuckDB where pyiceberg
refuses (equality deletes). Tables without another reader are captured too, and their files are read, or rejected with
a one-line error.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from capture.compute.readers.tasks import read
from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig, ScanTask
from store.model.errors import StatflightError
from store.model.logical_types import parse, to_arrow

LAKES = Path(__file__).resolve().parents[3] / "shared/lakes"
ICEBERG = LAKES / "iceberg/data/persistent"
pytestmark = pytest.mark.skipif(not LAKES.exists(), reason="the shared lakes are elsewhere")

DELTA = sorted(p.parent.relative_to(LAKES / "delta").as_posix() for p in LAKES.glob("delta/**/_delta_log"))
FILES = sorted(p.relative_to(LAKES).as_posix() for p in LAKES.glob("parquet*/*.parquet"))
TABLES = sorted(p.parent.relative_to(ICEBERG).as_posix() for p in ICEBERG.glob("**/metadata"))


# Other readers. Each returns the current table, or raises.


def of_delta(path: Path) -> pa.Table:
    import deltalake

    table = deltalake.DeltaTable(str(path))
    if path.name == "table_with_edge_timestamps":  # has the year 9999 in nanoseconds, which overflow
        return of_duckdb(f"FROM read_parquet({table.file_uris()})")
    return pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def of_duckdb(sql: str) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        return connection.sql(sql).to_arrow_table()


def of_parquet(path: Path) -> pa.Table:
    return of_duckdb(f"SELECT * FROM read_parquet('{path}', hive_partitioning = false)")


def of_iceberg(name: str) -> pa.Table:
    """Reads a table; the working directory must be the one that its metadata's paths are relative to."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(max((ICEBERG / name / "metadata").glob("*.metadata.json"), key=_number)))
    if name.startswith("equality_deletes"):
        return _without_equal(table)
    if name.startswith("partition_timestamptz"):  # only the paths have the column, and pyiceberg does not read them
        files = f"read_parquet('{ICEBERG / name}/data/*/*.parquet', hive_partitioning = true)"
        return of_duckdb(f"SELECT * REPLACE (partition_col::TIMESTAMPTZ AS partition_col) FROM {files}")
    return table.scan().to_arrow()


def _number(metadata: Path) -> int:
    return int(metadata.name.lstrip("v").partition("-")[0].partition(".")[0])


def _without_equal(table: Any) -> pa.Table:
    """Rows that no later equality-delete file of the same partition matches."""
    entries = [e for m in table.current_snapshot().manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
    parts = []
    for data in (e for e in entries if e.data_file.content == 0):
        sql = f"FROM read_parquet('{data.data_file.file_path}') d"
        for number, delete in enumerate(e for e in entries if e.data_file.content != 0):
            if delete.data_file.partition != data.data_file.partition or delete.sequence_number <= data.sequence_number:
                continue
            names = [table.schema().find_field(i).name for i in delete.data_file.equality_ids]
            equal = " AND ".join(f"d.{n} IS NOT DISTINCT FROM g{number}.{n}" for n in names)
            sql += f" ANTI JOIN read_parquet('{delete.data_file.file_path}') g{number} ON {equal}"
        parts.append(of_duckdb(f"SELECT d.* {sql}"))
    return pa.concat_tables(parts)


# Comparing.


def leaves(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Columns and struct leaves by dotted path; lists and maps left out."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return {field.name: table.column(i) for i, field in enumerate(table.schema) if not pa.types.is_nested(field.type)}


def plain(values: pa.ChunkedArray) -> list[Any]:
    """Comparable Python values without null and NaN, of the same types whatever the reader."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        values = values.cast(pa.string() if pa.types.is_string_view(values.type) else pa.binary())
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    elif pa.types.is_time(values.type):
        values = values.cast(pa.time64("us"), safe=False)
    found = [_plain(value) for value in values.drop_null().unique().to_pylist()]
    return [value for value in found if value == value]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return value.bytes if isinstance(value, UUID) else value


def typed(text: str, logical_type: str) -> Any:
    """A bound as a comparable value."""
    match logical_type.partition("(")[0]:
        case "BOOLEAN":
            return text == "true"
        case "INT":
            return int(text)
        case "FLOAT":
            return pa.scalar(float(text), pa.float32()).as_py()
        case "DOUBLE":
            return float(text)
        case "DECIMAL":
            return Decimal(text)
        case "DATE":
            return date.fromisoformat(text)
        case "TIME":
            return time.fromisoformat(text)
        case "TIMESTAMP" | "TIMESTAMPTZ":
            return datetime.fromisoformat(text.removesuffix("Z"))
        case "BINARY":
            return base64.b64decode(text, validate=True)
        case "UUID":
            return UUID(text).bytes
    return text


def compare(config: ConnectorConfig, name: str, truth: pa.Table | None) -> None:
    """Captures and scans a table and compares it with `truth`; without a truth its files need only be readable."""
    connector = open_connector(config)
    ids = {c.name: c.field_id or i for i, c in enumerate(connector.describe("default", name).schema.columns, 1)}
    current = connector.enumerate_snapshots("default", name).current_snapshot_id
    assert current is not None
    native = connector.capture_snapshot_target_stats("default", name, current, ids)
    file_rows: dict[str, list[dict[str, Any]]] = {}
    for part in native.file_columns():
        for row in part.to_pylist():
            file_rows.setdefault(row["column_name"], []).append(row)
    scanned: dict[str, list[pa.ChunkedArray]] = {}
    tasks = list(connector.plan_files("default", name, current, ids))
    if not any(task.equality_deletes for task in tasks):
        assert native.row_count == sum(task.row_count for task in tasks)
    connector.close()
    if truth is None:
        for task in tasks:
            check_readable(task)
        return
    for task in tasks:
        for column, values in read(task, task.columns):
            scanned.setdefault(column.name, []).append(values)
    assert native.row_count == truth.num_rows
    expected = leaves(truth)
    assert set(expected) <= set(ids)
    for column, values in expected.items():
        found = plain(values)
        parts = scanned.get(column, [])
        assert not tasks or column in scanned
        assert sum(map(len, parts)) == truth.num_rows
        assert sum(part.null_count for part in parts) == values.null_count, column
        assert {value for part in parts for value in plain(part)} == set(found), column
        if column in file_rows:
            check(column, file_rows[column], native.data_file_count, found, values.null_count)


def check(column: str, files: list[dict[str, Any]], file_count: int, values: list[Any], nulls: int) -> None:
    """Counts add up to the truth, exact bounds are values, and bounds of all files enclose all values."""
    counts = [row["null_count"] for row in files]
    if len(files) == file_count and None not in counts:
        assert sum(counts) == nulls, column
    distinct = set(values)
    for side, pick in (("min", min), ("max", max)):
        bounds = [(row, typed(row[side], row["logical_type"])) for row in files if row[side] is not None]
        bounds = [(row, bound) for row, bound in bounds if bound == bound]
        assert all(bound in distinct for row, bound in bounds if row[f"{side}_is_exact"]), column
        unbounded = [row for row in files if row[side] is None and row["null_count"] != row["row_count"]]
        if not values or not bounds or unbounded or len(files) != file_count:
            continue
        widest, true = pick(bound for _, bound in bounds), pick(values)
        assert pick(widest, true) == widest, (column, side)
        if all(row[f"{side}_is_exact"] for row, _ in bounds):
            assert widest == true, (column, side)


def check_readable(task: ScanTask) -> None:
    """Reads a task, or checks that its error is one line that begins with the file."""
    try:
        for _ in read(task, task.columns):
            pass
    except StatflightError as trouble:
        assert trouble.message.startswith(f'file "{task.file_path}"') and "\n" not in trouble.message


# The lakes.


def all_tables(format: str, path: Path) -> list[str]:
    connector = open_connector(ConnectorConfig("c", format, str(path)))
    return [f"{n}.{table}" for n in connector.list_namespaces() for table in connector.list_tables(n)]


def test_listing_finds_all_tables_or_gives_a_reason():
    assert len(all_tables("delta", LAKES / "delta")) == len(DELTA)
    assert len(all_tables("iceberg", ICEBERG)) == len(TABLES)
    with pytest.raises(StatflightError, match="holds no lance table"):
        all_tables("lance", LAKES)
    mixed = open_connector(ConnectorConfig("c", "parquet", str(LAKES / "parquet")))
    with pytest.raises(StatflightError, match=r'table "default.parquet": column .* is .* in file ".*" and'):
        mixed.describe("default", "parquet")


@pytest.mark.parametrize("name", DELTA)
def test_delta_table_matches_deltalake(name):
    path = LAKES / "delta" / name
    # deltalake does not read tables written with the preview of type widening
    truth = None if name == "type-widening" else of_delta(path)
    compare(ConnectorConfig("c", "delta", str(path)), path.name, truth)


# Not readable by DuckDB or pyarrow, or malformed: a scan may fail.
ROUGH = {"parquet/large_string_map.brotli.parquet", "parquet/map_no_value.parquet"}


@pytest.mark.parametrize("name", FILES)
def test_parquet_file_matches_duckdb(name):
    path = LAKES / name
    config = ConnectorConfig("c", "parquet", str(path))
    truth = None if name in ROUGH or name.startswith("parquet_bad") else of_parquet(path)
    compare(config, path.name.removesuffix(".parquet"), truth)


@pytest.mark.parametrize("name", TABLES)
def test_iceberg_table_matches_another_reader(name, monkeypatch):
    home = ICEBERG / "iceberg" if "lineitem" in name else LAKES / "iceberg"
    original = "lineitem_iceberg" if "lineitem" in name else "data"
    monkeypatch.chdir(home)
    truth = None if "legacy_bare" in name else of_iceberg(name)
    options = {"path_rewrite": f"{original}={home / original}"}
    compare(ConnectorConfig("c", "iceberg", str(ICEBERG / name), options), Path(name).name, truth)


SPARK = LAKES / "written_by_spark"
EXACT = json.loads((SPARK / "exact.json").read_text()) if SPARK.exists() else {}


@pytest.mark.parametrize("name", sorted(name for name in EXACT if name.startswith("delta_")))
def test_scan_of_tables_written_by_spark_matches_its_counts(name):
    """A scan has the distinct count, nulls, minimum and maximum that Spark computed; bounds of the log enclose them."""
    connector = open_connector(ConnectorConfig("c", "delta", str(SPARK / name)))
    schema = connector.describe("default", name).schema
    ids = {column.key: number for number, column in enumerate(schema.columns, 1)}
    version = EXACT[name]["version"]
    tasks = list(connector.plan_files("default", name, version, ids))
    native = connector.capture_snapshot_target_stats("default", name, version, ids)
    assert native.row_count == sum(task.row_count for task in tasks) == EXACT[name]["*"]
    file_rows = [row for part in native.file_columns() for row in part.to_pylist()]
    parts: dict[str, list[pa.Array]] = {}
    for task in tasks:
        for column, values in read(task, task.columns):
            type = to_arrow(parse(column.logical_type))
            parts.setdefault(column.name, []).extend(values.cast(type).chunks)
    for column, (distinct, nulls, least, greatest) in ((k, v) for k, v in EXACT[name].items() if k in ids):
        logical_type = next(c.logical_type for c in schema.columns if c.key == column)
        values = pa.chunked_array(parts[column])
        assert (len(values.unique()), values.null_count) == (distinct, nulls)
        ordered = sorted(plain(values))
        assert [ordered[0], ordered[-1]] == [typed(text, logical_type) for text in (least, greatest)]
        check(column, [row for row in file_rows if row["column_name"] == column], len(tasks), ordered, nulls)
