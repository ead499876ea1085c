"""The `ducklake` home: files registered in catalogs in DuckDB and SQLite files, read as plain tables."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import Unreadable
from capture.publishers.publishing import publish, withdraw
from capture.publishers.spi import LostRace, TableStatistics
from store.model.errors import Conflict, InvalidArgument, InvalidField, UpstreamError
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import PublisherContract, Table, rows

EMPTY = (Path(__file__).parents[2] / "golden/ducklake_catalog.sql").read_text()


class LakeTable(Table):
    """A table whose statistics have those of its files, as the connector reads them."""

    def statistics(self, snapshot_id: int | None = None, **changed: Any) -> TableStatistics:
        found = super().statistics(snapshot_id, **changed)
        connector = self.connector
        ids = {column.name: column.column_id for column in super().statistics(snapshot_id).columns}
        current = connector.enumerate_snapshots(self.namespace, self.name).current_snapshot_id
        assert current is not None
        try:
            native = connector.capture_snapshot_target_stats(self.namespace, self.name, current, ids)
        except Unreadable:  # a file was added meanwhile
            raise LostRace("the table changed") from None
        columns = pa.concat_tables(native.file_columns()) if native.file_columns is not None else None
        return replace(found, files=native.files, file_columns=columns)


def created(path: Path) -> Path:
    """An empty catalog, in SQLite if the path ends so."""
    path.write_bytes(empty_catalog(path.suffix))
    return path


@cache
def empty_catalog(suffix: str) -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / f"catalog{suffix}"
        if suffix == ".sqlite":
            with sqlite3.connect(path) as catalog:
                catalog.executescript(EMPTY)
            catalog.close()
        else:
            with duckdb.connect(str(path)) as catalog:
                catalog.execute(EMPTY)
        return path.read_bytes()


def built(root: Path, content: pa.Table, suffix: str = "sqlite", **options: str) -> LakeTable:
    table = parquet_tables.built("ducklake", root, content)
    catalog = created(table.path / f"_catalog.{suffix}")
    return LakeTable(**{**vars(table), "options": {"catalog": str(catalog)} | options})


def read(table: Table, sql: str) -> list[tuple[Any, ...]]:
    path = table.options["catalog"]
    if path.endswith(".sqlite"):
        with sqlite3.connect(path) as catalog:
            found = catalog.execute(sql).fetchall()
        catalog.close()
        return found
    with duckdb.connect(path, read_only=True) as catalog:
        return catalog.execute(sql).fetchall()


class TestContractInDuckDB(PublisherContract):
    reads_counts = False  # the catalog has no place for them
    suffix = "ducklake"

    def build(self, root: Path) -> Table:
        return built(root, rows(0, 150), self.suffix)

    append = staticmethod(parquet_tables.append)
    count = staticmethod(parquet_tables.count)


class TestContractInSQLite(TestContractInDuckDB):
    suffix = "sqlite"


@pytest.mark.parametrize("suffix", ["ducklake", "sqlite"])
def test_files_and_their_statistics_are_registered(tmp_path, suffix):
    table = built(tmp_path, rows(0, 150), suffix)
    parquet_tables.append(table, rows(150, 250))
    publish(table.publisher())
    files = read(
        table,
        "SELECT path, record_count, row_id_start, file_size_bytes, data_file_id, mapping_id FROM"
        " ducklake_data_file ORDER BY row_id_start",
    )
    assert sum(count for _, count, *_ in files) == 250 and [start for _, _, start, *_ in files] == [0, files[0][1]]
    assert all(Path(path).stat().st_size == size for path, _, _, size, *_ in files)
    facts = read(
        table,
        "SELECT min_value, max_value, value_count, null_count FROM ducklake_file_column_stats JOIN"
        " ducklake_data_file USING (data_file_id) JOIN ducklake_column USING (column_id)"
        " WHERE column_name = 'label' ORDER BY record_count",
    )
    assert facts == [("l0", "l8", 80, 20), ("l0", "l8", 120, 30)]
    assert read(table, "SELECT record_count, next_row_id FROM ducklake_table_stats") == [(250, 250)]
    ((snapshot, version, next_catalog, next_file),) = read(
        table,
        "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot"
        " ORDER BY snapshot_id DESC LIMIT 1",
    )
    ids = {id for *_, id, _ in files}
    assert (
        (snapshot, version, next_catalog) == (1, 1, 2)
        and max(ids) < next_file
        and {m for *_, m in files}.isdisjoint(ids)
    )


def test_bounds_are_texts_that_duckdb_casts(tmp_path):
    content = pa.table(
        {
            "f": pa.array([1e10, -0.5]),
            "n": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "d": pa.array([date(2026, 1, 2), date(1969, 1, 1)]),
            "b": pa.array([b"x", b"y"]),
            "t": pa.array([True, False]),
            "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 60), None], pa.timestamp("us")),
            "z": pa.array([datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        }
    )
    table = built(tmp_path, content, "ducklake")
    statistics = table.statistics()
    assert statistics.file_columns is not None
    known = statistics.file_columns.to_pylist()
    with_nan = [row | {"nan_count": 0} if row["column_name"] == "f" else row for row in known]
    for given, low_of_f in ((known, None), (with_nan, -0.5)):
        changed = replace(statistics, file_columns=pa.Table.from_pylist(given, statistics.file_columns.schema))
        publish(table.publisher(changed))
        facts = {
            name: (type, low, high)
            for name, type, low, high in read(
                table,
                "SELECT column_name, column_type, min_value, max_value FROM ducklake_file_column_stats"
                " JOIN ducklake_column USING (column_id)",
            )
        }
        types = {name: type for name, (type, _, _) in facts.items()}
        assert types == {
            "f": "float64",
            "n": "decimal(10,2)",
            "d": "date",
            "b": "blob",
            "t": "boolean",
            "at": "timestamp",
            "z": "timestamptz",
        }
        sql = {"float64": "DOUBLE", "decimal(10,2)": "DECIMAL(10,2)"}
        lows = {
            name: duckdb.sql(f"SELECT ?::{sql.get(type, type)}", params=[low]).fetchall()[0][0]
            for name, (type, low, _) in facts.items()
            if type != "timestamptz"
        }
        assert lows == {
            "f": low_of_f,
            "n": Decimal("1.5"),
            "d": date(1969, 1, 1),
            "b": None,
            "t": False,
            "at": datetime(2026, 1, 2, 3, 4, 5, 60),
        }
        assert facts["z"][1] == "2026-01-02 03:04:05+00"


def test_a_new_publication_leaves_nothing_of_the_old_one(tmp_path):
    table = built(tmp_path, rows(0, 150))
    publish(table.publisher())
    parquet_tables.append(table, rows(150, 250))
    publish(table.publisher())
    assert read(table, "SELECT count(*), count(DISTINCT table_id) FROM ducklake_data_file") == [(2, 1)]
    assert read(table, "SELECT table_id FROM ducklake_table") == read(table, "SELECT object_id FROM ducklake_tag")
    assert read(table, "SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NOT NULL") == [(0,)]
    assert publish(table.publisher()).detail.startswith("already published")


def test_stale_statistics_are_told(tmp_path):
    table = built(tmp_path, rows(0, 150))
    statistics = table.statistics()
    publish(table.publisher(statistics))
    parquet_tables.append(table, rows(150, 250))
    with pytest.raises(Conflict, match="moved on"):
        table.publisher(statistics).prepare()


def test_tables_of_others_are_refused(tmp_path):
    table = built(tmp_path, rows(0, 150), "ducklake")
    with duckdb.connect(table.options["catalog"]) as catalog:
        catalog.execute("INSERT INTO ducklake_table VALUES (7, uuid(), 0, NULL, 0, 't', 't/', true)")
    for attempt in (lambda: publish(table.publisher()), lambda: withdraw(table.publisher())):
        with pytest.raises(Conflict, match=r"main\.t of .* was not registered by publish") as refused:
            attempt()
        assert refused.value.code == "TAKEN"
    other = LakeTable(**{**vars(table), "options": table.options | {"table": "u", "schema": "s"}})
    publish(other.publisher())
    assert read(
        table,
        "SELECT table_name, schema_name FROM ducklake_table JOIN ducklake_schema USING (schema_id) WHERE schema_id > 0",
    ) == [("u", "s")]
    same = LakeTable(**{**vars(other), "config": ConnectorConfig("other", "parquet", str(tmp_path))})
    for name in ("u", "U"):  # one table to DuckDB
        same.options["table"] = name
        with pytest.raises(Conflict, match=r"has the files of c\.default\.t"):
            publish(same.publisher())
    mine = LakeTable(**{**vars(other), "options": other.options | {"table": "U", "schema": "S"}})
    publish(mine.publisher())
    assert read(table, "SELECT count(*) FROM ducklake_schema WHERE schema_name IN ('s', 'S')") == [(1,)]
    assert read(table, "SELECT table_name FROM ducklake_table WHERE table_id <> 7") == [("u",)]


def test_rows_that_ducklake_wrote_are_not_lost(tmp_path):
    table = built(tmp_path, rows(0, 150), "ducklake")
    publish(table.publisher())
    with duckdb.connect(table.options["catalog"]) as catalog:
        catalog.execute("INSERT INTO ducklake_snapshot VALUES (2, now(), 1, 2, 9)")
        catalog.execute("INSERT INTO ducklake_snapshot_changes VALUES (2, 'inserted_into_table:1', NULL, NULL, NULL)")
    with pytest.raises(Conflict, match="were changed by DuckLake") as refused:
        withdraw(table.publisher())
    assert refused.value.code == "CHANGED_THERE"
    assert withdraw(LakeTable(**{**vars(table), "options": table.options | {"overwrite": "true"}}).publisher())


def test_tables_with_deletes_or_other_files_are_refused(tmp_path):
    table = built(tmp_path, rows(0, 150))
    statistics = table.statistics()
    assert statistics.files is not None
    whole = statistics.files.to_pylist()[0]
    vector = [{"file_path": "d", "file_content": "DELETION_VECTOR", "content_offset": None, "content_size": None}]
    cases = {
        "has row-level deletes": {"delete_files": vector},
        "ORC": {"file_format": "ORC"},
        "rows or bytes of some files": {"row_count": None},
    }
    for said, changed in cases.items():
        files = pa.Table.from_pylist([whole | changed], statistics.files.schema)
        with pytest.raises(InvalidArgument, match=said):
            publish(table.publisher(replace(statistics, files=files)), dry_run=True)
    with pytest.raises(InvalidArgument, match="are not stored"):
        publish(table.publisher(replace(statistics, files=None)))


def test_partition_columns_are_read_from_paths(tmp_path):
    path = tmp_path / "t"
    content = pa.table({"id": [1, 2], "region": ["a", "b"]})
    write_deltalake(path, content, partition_by=["region"])
    options = {"catalog": str(created(tmp_path / "c.sqlite"))}
    table = LakeTable("ducklake", ConnectorConfig("c", "delta", str(tmp_path)), "default", "t", path, content, options)
    publish(table.publisher())
    mapping = read(table, "SELECT source_name, is_partition FROM ducklake_name_mapping ORDER BY column_id")
    assert mapping == [("id", False), ("region", True)]
    write_deltalake(path, pa.table({"id": [3], "region": ["ä/b"]}), mode="append", partition_by=["region"])
    with pytest.raises(InvalidArgument, match="is partitioned by region"):
        publish(table.publisher())


def test_nested_columns_are_left_out(tmp_path):
    content = pa.table({"id": [1, 2], "s": [{"a": 1}, {"a": 2}], "l": [[1], [2]]})
    result = publish(built(tmp_path, content).publisher())
    assert result.columns == ("id",) and result.left_out.keys() == {"s", "l"} and "is nested" in result.detail


def test_columns_that_differ_by_case_alone_are_left_out(tmp_path):
    content = pa.table({"id": [1, 2], "X": [1, 2], "x": ["a", "b"], "s": [{"a": 1}, {"a": 2}], "S": [1, 2]})
    result = publish(built(tmp_path, content).publisher())
    assert result.columns == ("id",) and result.left_out.keys() == {"X", "x", "s", "S"}


def test_a_catalog_that_cannot_be_used_is_named(tmp_path):
    table = built(tmp_path, rows(0, 150), "ducklake")

    def at(catalog: object) -> LakeTable:
        return LakeTable(**{**vars(table), "options": {"catalog": str(catalog)}})

    with pytest.raises(InvalidField, match=r"options\.catalog"):
        publish(at("nowhere").publisher())
    with duckdb.connect(str(tmp_path / "plain.duckdb")) as plain:
        plain.execute("CREATE TABLE t (i int)")
    pq.write_table(table.rows, tmp_path / "file")
    for path in (tmp_path / "plain.duckdb", tmp_path / "file"):
        with pytest.raises(UpstreamError, match="cannot be used as a DuckLake catalog"):
            publish(at(path).publisher())
    with duckdb.connect(table.options["catalog"]) as catalog:
        catalog.execute("UPDATE ducklake_metadata SET value = '2.0' WHERE key = 'version'")
    with pytest.raises(InvalidArgument, match=r"has DuckLake's format 2\.0; expected 1\.0"):
        publish(table.publisher())


def test_a_catalog_that_is_being_written_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("capture.publishers.ducklake.LOCKED_SECONDS", 0.0)
    table = built(tmp_path, rows(0, 150), "sqlite")
    writer = sqlite3.connect(table.options["catalog"], isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(LostRace, match="being changed by another process"):
        publish(table.publisher(), pause=lambda _: None)
    assert publish(table.publisher(), pause=lambda _: writer.rollback()).state == "CURRENT"
    writer.close()
    ((tag,),) = read(table, "SELECT value FROM ducklake_tag")
    assert json.loads(tag)["source"] == "c.default.t"
