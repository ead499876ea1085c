"""The Paimon connector: append and primary-key tables, time travel, catalogs, and the statistics file of ANALYZE."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from store.model.format_facts import FormatFacts
from tests.capture.connectors.contract import METADATA, ConnectorContract, Truth

pytest.importorskip("pypaimon")

from capture.compute.readers.tasks import read
from capture.connectors.paimon.snapshot_view import File, fingerprint
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from tests.capture.connectors.paimon.warehouse import (
    IDS,
    Warehouse,
    atomic,
    connect,
    contents,
    file_rows,
    rows,
    stats,
)

pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of the library's writer


class TestAppend(ConnectorContract):
    facts = FormatFacts(merges_rows=False)
    metadata = METADATA
    has_table_id = False

    @pytest.fixture
    def config(self, append, warehouse):
        return ConnectorConfig("c", "paimon", str(warehouse.path))

    @pytest.fixture
    def truth(self, config):
        return Truth("sales", "events", 200, rows(0, 200).to_pydict(), snapshots=2)


class TestPrimaryKey(ConnectorContract):
    facts = FormatFacts(merges_rows=True)
    metadata = METADATA
    has_table_id = False

    @pytest.fixture
    def config(self, keyed, warehouse):
        return ConnectorConfig("c", "paimon", str(warehouse.path))

    @pytest.fixture
    def truth(self, config):
        merged = pa.concat_tables([rows(0, 50), rows(50, 150, "w")])
        return Truth("sales", "users", 150, merged.to_pydict(), snapshots=2)

    def check(self, row, truth, *, whole):
        """A file's live rows are unknown until they are merged."""
        assert row["row_count"] is None and row["null_count"] in (0, None)
        assert row["min_is_exact"] is not True and row["max_is_exact"] is not True

    def test_scan_tasks_have_stable_fingerprints_and_cover_all_files(self, connector, truth):
        """A task is a bucket: its files are merged."""
        ids = self.ids(connector, truth)
        current = self.current(connector, truth)
        tasks = list(connector.plan_files(truth.namespace, truth.name, current, ids))
        again = list(connector.plan_files(truth.namespace, truth.name, current, ids))
        assert [task.fingerprint for task in tasks] == [task.fingerprint for task in again]
        assert len({task.fingerprint for task in tasks}) == len(tasks) == 2
        files = stats(connector, truth.name, current, ids=ids).files["file_path"].to_pylist()
        assert {task.file_path for task in tasks} < set(files)


# Locations.


def test_uri_may_be_a_warehouse_a_database_or_a_table(append, warehouse):
    warehouse.create("empty")
    assert connect(warehouse.path).list_namespaces() == ["sales"]
    assert connect(warehouse.path).list_tables("sales") == ["empty", "events"]
    assert connect(warehouse.path / "sales.db").list_namespaces() == ["default"]
    alone = connect(append)
    assert (alone.list_namespaces(), alone.list_tables("default")) == (["default"], ["events"])
    assert alone.describe("default", "events").location == str(append)
    nothing = connect(warehouse.path).enumerate_snapshots("sales", "empty")
    assert (nothing.snapshots, nothing.current_snapshot_id) == ((), None)


def test_jdbc_catalog_lists_its_tables_and_checks_its_options(tmp_path):
    file = tmp_path / "catalog.sqlite"
    uri = f"jdbc:sqlite:{file}"
    warehouse = Warehouse(tmp_path / "wh", metastore="jdbc", uri=uri)
    warehouse.create("events")
    warehouse.write("events", rows(0, 10))
    warehouse.catalog.close()
    connector = connect(uri, warehouse=str(tmp_path / "wh"))
    assert (connector.list_namespaces(), connector.list_tables("sales")) == (["sales"], ["events"])
    assert stats(connector, "events", 1).row_count == 10
    with pytest.raises(NotFound, match=r'no table "sales\.event"') as refused:
        connector.describe("sales", "event")
    assert "events" in str(refused.value.hint)
    assert connect(uri, **{"warehouse": str(tmp_path), "catalog-key": "another"}).list_namespaces() == []
    with pytest.raises(InvalidArgument, match="warehouse"):
        connect(uri)
    with pytest.raises(InvalidArgument, match="jdbc:sqlite"):
        connect("jdbc:mysql://host/db", warehouse="w")
    with pytest.raises(NotFound, match="does not exist"):
        connect(f"{uri}.lost", warehouse=str(tmp_path)).list_namespaces()
    assert not (tmp_path / "catalog.sqlite.lost").exists()
    sqlite3.connect(tmp_path / "other.db").close()
    with pytest.raises(NotFound, match="no Paimon catalog"):
        connect(f"jdbc:sqlite:{tmp_path}/other.db", warehouse=str(tmp_path)).list_namespaces()


def test_keys_are_constraints_and_column_ids_are_field_ids_plus_one(keyed, warehouse):
    table = connect(warehouse.path).describe("sales", "users")
    assert [(c.kind, c.columns) for c in table.constraints] == [("PRIMARY KEY", ("id",)), ("CHECK", ("id",))]
    assert [(c.name, c.field_id, c.nullable) for c in table.schema.columns] == [
        ("id", 1, False),
        ("label", 2, True),
        ("part", 3, True),
    ]
    assert connect(warehouse.path).describe("sales", "users").partition_keys == ()


def test_tagged_snapshot_is_live_after_it_expired(append, warehouse):
    warehouse.catalog.create_tag("sales.events", "first", 1)
    warehouse.catalog.create_tag("sales.events", "now", 2)
    (append / "snapshot/snapshot-1").unlink()
    (append / "snapshot/EARLIEST").write_text("2")
    connector = connect(warehouse.path)
    listing = connector.enumerate_snapshots("sales", "events")
    assert (listing.live_snapshot_ids, listing.current_snapshot_id) == ({1, 2}, 2)
    assert [(s.snapshot_id, s.parent_snapshot_id, len(s.schema.columns)) for s in listing.snapshots] == [
        (1, None, 3),
        (2, 1, 3),
    ]
    native = stats(connector, "events", 1)
    assert (native.row_count, native.data_file_count) == (100, 2)
    assert {r["null_count"] for r in file_rows(native) if r["column_name"] == "label"} == {10}
    assert sorted(contents(connector, "events", 1)["id"]) == list(range(100))
    warehouse.catalog.delete_tag("sales.events", "first")
    assert connector.enumerate_snapshots("sales", "events").live_snapshot_ids == {2}
    with pytest.raises(NotFound, match="snapshot 1"):
        stats(connector, "events", 1)


def test_files_that_are_no_tags_do_not_hide_the_table(append, warehouse):
    warehouse.catalog.create_tag("sales.events", "a-b ü", 1)
    (append / "snapshot/snapshot-1").unlink()
    (append / "tag/tag-a").mkdir()
    (append / "tag/tag-a/b").write_bytes((append / "tag/tag-a-b ü").read_bytes())
    (append / "tag/.DS_Store").touch()
    assert connect(warehouse.path).enumerate_snapshots("sales", "events").live_snapshot_ids == {1, 2}


# Rows and bounds.


def test_files_of_an_append_table_have_exact_bounds(append, warehouse):
    connector = connect(warehouse.path)
    first, second = (stats(connector, "events", i) for i in (1, 2))
    assert (first.row_count, first.data_file_count, second.row_count, second.data_file_count) == (100, 2, 200, 4)
    assert second.total_size_bytes == sum(p.stat().st_size for p in append.rglob("*.parquet"))
    assert {json.loads(t)["part"] for t in second.files["partition_data_json"].to_pylist()} == {"p0", "p1"}
    found = {(r["min"], r["max"]): r for r in file_rows(first) if r["column_name"] == "id"}
    assert set(found) == {("0", "98"), ("1", "99")}
    assert all(r["min_is_exact"] and r["max_is_exact"] and r["null_count"] == 0 for r in found.values())
    labels = [r for r in file_rows(first) if r["column_name"] == "label"]
    assert sorted((r["min"], r["max"], r["null_count"]) for r in labels) == [("v001", "v099", 10), ("v002", "v098", 10)]
    assert {(r["min"], r["max"]) for r in file_rows(first) if r["column_name"] == "part"} == {
        ("p0", "p0"),
        ("p1", "p1"),
    }
    assert sorted(contents(connector, "events", 1)["id"]) == list(range(100))


def test_files_of_partitions_with_odd_values_are_told_by_the_names_that_they_have(warehouse):
    path = warehouse.create("odd", options={"metadata.stats-mode": "none"}, partition_keys=["part"])
    odd = pa.array(["a/b% c"] * 4)
    warehouse.write("odd", rows(0, 4).set_column(2, "part", odd))
    native = stats(connect(warehouse.path), "odd", 1)
    assert native.files["file_path"].to_pylist() == [str(file) for file in path.rglob("*.parquet")]
    assert {(r["min"], r["max"]) for r in file_rows(native) if r["column_name"] == "id"} == {("0", "3")}


def test_deletion_vector_is_a_delete_file_of_its_data_file():
    meta = SimpleNamespace(file_size=9, level=0, max_sequence_number=3)
    vector = SimpleNamespace(dv_index_path="file:/t/index/index-1", offset=4, length=30)
    cut, whole = File(meta, "/t/a.parquet", None, 5, {}, vector), File(meta, "/t/a.parquet", None, 5, {}, None)
    assert cut.row()["delete_files"] == [
        {"file_path": "/t/index/index-1", "file_content": "DELETION_VECTOR", "content_offset": 4, "content_size": 30}
    ]
    assert whole.row()["delete_files"] == [] and fingerprint([cut]) != fingerprint([whole])


def test_rows_of_one_key_are_merged(keyed, warehouse):
    connector = connect(warehouse.path)
    native = stats(connector, "users", 2)
    assert (native.row_count, native.data_file_count, native.row_deletes) == (150, 4, True)
    found = contents(connector, "users", 2)
    labels = dict(zip(found["id"], found["label"], strict=True))
    assert (len(found["id"]), labels[60 + 1], labels[49]) == (150, "w061", "v049")
    assert stats(connector, "users", 1).row_count == 100
    assert {r["null_count"] for r in file_rows(native) if r["column_name"] == "id"} == {0}


def test_row_count_above_the_merge_limit_is_unknown(keyed, warehouse, monkeypatch):
    monkeypatch.setattr("capture.connectors.paimon.snapshot_view.MERGE_BYTES", 100)
    assert stats(connect(warehouse.path), "users", 2).row_count is None


def test_files_have_no_bounds_of_aggregated_columns(warehouse):
    options = {"bucket": "1", "merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    warehouse.create("sums", schema, options, primary_keys=["id"])
    part = pa.table({"id": [1, 2], "n": [10, 20]}, schema)
    warehouse.write("sums", part, part)
    connector = connect(warehouse.path)
    native = stats(connector, "sums", 2, ids={"id": 1, "n": 2})
    assert native.row_count == 2
    assert {r["column_name"] for r in file_rows(native)} == {"id"}
    assert contents(connector, "sums", 2, {"id": 1, "n": 2})["n"] == [20, 40]


def test_types_have_canonical_bounds_and_structs_have_leaves(warehouse):
    schema = pa.schema(
        [
            ("i", pa.int32()),
            ("f", pa.float32()),
            ("x", pa.float64()),
            ("b", pa.bool_()),
            ("d", pa.decimal128(20, 3)),
            ("s", pa.string()),
            ("y", pa.binary()),
            ("day", pa.date32()),
            ("ms", pa.timestamp("ms")),
            ("us", pa.timestamp("us")),
            ("z", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.int32())),
            ("r", pa.struct([("inner", pa.int64()), ("deep", pa.struct([("leaf", pa.string())]))])),
        ]
    )
    at = dt.datetime(2024, 2, 28, 12, 34, 56, 789123)
    low = [
        -5,
        -1.5,
        float("nan"),
        False,
        Decimal("-12345678901234567.891"),
        "é" * 20,
        b"\x00\xff",
        dt.date(1969, 12, 31),
        at.replace(microsecond=1000),
        at,
        at.replace(tzinfo=dt.UTC),
        [1],
        {"inner": 1, "deep": {"leaf": "a"}},
    ]
    high = [
        7,
        2.5,
        1e300,
        True,
        Decimal("99.5"),
        "ü",
        b"\xff",
        dt.date(2024, 1, 1),
        at.replace(microsecond=999000),
        at.replace(year=2025),
        at.replace(year=2025, tzinfo=dt.UTC),
        [],
        None,
    ]
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in (low, high)], schema)
    warehouse.create("types", schema)
    warehouse.write("types", table)
    connector = connect(warehouse.path)
    columns = connector.describe("sales", "types").schema.columns
    ids = {c.name: c.field_id for c in columns}
    assert len(set(ids.values())) == len(ids)
    assert {c.name: c.logical_type for c in columns} == {
        "i": "INT",
        "f": "FLOAT",
        "x": "DOUBLE",
        "b": "BOOLEAN",
        "d": "DECIMAL(20,3)",
        "s": "STRING",
        "y": "BINARY",
        "day": "DATE",
        "ms": "TIMESTAMP",
        "us": "TIMESTAMP",
        "z": "TIMESTAMPTZ",
        "l": "ARRAY",
        "r": "STRUCT",
        "r.inner": "INT",
        "r.deep": "STRUCT",
        "r.deep.leaf": "STRING",
    }
    found = {r["column_name"]: r for r in file_rows(stats(connector, "types", 1, ids=ids))}
    bounds = {name: (r["min"], r["max"]) for name, r in found.items()}
    assert bounds["i"] == ("-5", "7") and bounds["f"] == ("-1.5", "2.5") and bounds["b"] == ("false", "true")
    assert bounds["d"] == ("-12345678901234567.891", "99.5") and bounds["day"] == ("1969-12-31", "2024-01-01")
    assert bounds["us"] == ("2024-02-28T12:34:56.789123", "2025-02-28T12:34:56.789123")
    assert bounds["ms"] == ("2024-02-28T12:34:56.001", "2024-02-28T12:34:56.999")
    assert bounds["z"] == ("2024-02-28T12:34:56.789123Z", "2025-02-28T12:34:56.789123Z")
    assert bounds["x"] == ("1.0E300", "1.0E300")  # the greatest and the least number
    assert bounds["y"] == ("AP8=", "/w==")
    assert bounds["s"] == ("é" * 20, "ü") and found["s"]["min_is_exact"]
    found = contents(connector, "types", 1, ids)
    assert found["r.deep.leaf"] == ["a", None] and found["i"] == [-5, 7] and "l" not in found


def test_truncated_text_is_an_inexact_bound(warehouse):
    path = warehouse.create("texts", pa.schema([("s", pa.string())]))
    warehouse.write("texts", pa.table({"s": ["a" * 16, "b"]}))
    schema = path / "schema" / "schema-0"
    schema.write_text(schema.read_text().replace('"full"', '"truncate(16)"'))
    row = file_rows(stats(connect(warehouse.path), "texts", 1, ids={"s": 1}))[0]
    assert (row["min_is_exact"], row["max_is_exact"]) == (False, True)


BARE = {"metadata.stats-mode": "none"}


def test_footers_are_read_if_manifests_lack_value_statistics(warehouse):
    warehouse.create("bare", options=BARE)
    warehouse.write("bare", rows(0, 10))
    native = stats(connect(warehouse.path), "bare", 1)
    found = {row["column_name"]: row for row in file_rows(native)}
    id, label = found["id"], found["label"]
    assert native.row_count == 10
    assert (id["min"], id["max"], id["null_count"], id["min_is_exact"], id["row_count"]) == ("0", "9", 0, True, 10)
    assert (label["min"], label["max"], label["null_count"], label["column_id"]) == ("v001", "v009", 2, 2)
    assert [r["column_name"] for r in file_rows(stats(connect(warehouse.path), "bare", 1, frozenset({"part"})))] == [
        "part"
    ]


def test_footers_of_merged_files_have_inexact_bounds(warehouse):
    warehouse.create("users", primary_keys=["id"], options=BARE | {"bucket": "1"})
    warehouse.write("users", rows(0, 100), rows(50, 150, "w"))
    found = [row for row in file_rows(stats(connect(warehouse.path), "users", 2)) if row["column_name"] == "label"]
    assert {(row["min"], row["max"]) for row in found} == {("v001", "v099"), ("w051", "w149")}
    assert all(row["null_count"] is None and not row["min_is_exact"] for row in found)


def test_unreadable_footer_leaves_its_file_unknown(warehouse):
    path = warehouse.create("bare", options=BARE)
    warehouse.write("bare", rows(0, 10), rows(10, 20))
    next(path.rglob("*.parquet")).write_bytes(b"broken")
    native = stats(connect(warehouse.path), "bare", 2)
    assert native.row_count == 20 and len({row["file_path"] for row in file_rows(native)}) == 1


def test_footers_are_read_with_the_schema_of_their_file(warehouse):
    from pypaimon.schema.schema_change import SchemaChange

    schema = pa.schema([("n", pa.int32()), ("s", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    warehouse.create("old", schema, options=BARE)
    warehouse.write("old", pa.table({"n": [1, 2, 3], "s": [{"a": 5, "b": "x"}, None, {"a": None, "b": "y"}]}, schema))
    warehouse.catalog.alter_table(
        "sales.old",
        [
            SchemaChange.rename_column("n", "number"),
            SchemaChange.update_column_type("number", atomic("BIGINT")),
            SchemaChange.add_column("later", atomic("INT")),
        ],
    )
    new = pa.schema([("number", pa.int64()), schema.field("s"), ("later", pa.int32())])
    warehouse.write("old", pa.table({"number": [2**40], "s": [{"a": 7, "b": "z"}], "later": [9]}, new))
    connector = connect(warehouse.path)
    columns = connector.describe("sales", "old").schema.columns
    ids = {c.key: c.field_id for c in columns}
    found = {
        (r["column_name"], r["min"], r["max"], r["null_count"]) for r in file_rows(stats(connector, "old", 2, ids=ids))
    }
    assert found == {
        ("later", "9", "9", 0),
        ("later", None, None, 3),
        ("number", "1", "3", 0),
        ("number", "1099511627776", "1099511627776", 0),
        ("s.a", "5", "5", 2),
        ("s.a", "7", "7", 0),
        ("s.b", "x", "y", 1),
        ("s.b", "z", "z", 0),
    }


@pytest.mark.parametrize("options", [{}, BARE], ids=["manifests", "footers"])
def test_fields_of_a_file_are_looked_up_without_a_walk_for_each(warehouse, monkeypatch, options):
    from pypaimon.schema.data_types import DataField

    names = [f"c{number}" for number in range(100)]
    wide = pa.table({name: pa.array([at]) for at, name in enumerate(names)})
    warehouse.create("wide", wide.schema, options=options)
    warehouse.write("wide", wide)
    reads = []

    def counted(field, name):
        if name == "id":
            reads.append(field)
        return object.__getattribute__(field, name)

    monkeypatch.setattr(DataField, "__getattribute__", counted, raising=False)
    native = stats(connect(warehouse.path), "wide", 1, ids={name: at for at, name in enumerate(names, 1)})
    assert {row["column_name"]: row["min"] for row in file_rows(native)} == {n: str(at) for at, n in enumerate(names)}
    assert 0 < len(reads) <= 20 * len(names)


def test_no_footers_are_read_above_their_limit(warehouse, monkeypatch):
    monkeypatch.setattr("capture.connectors.footers.statistics.MAX_FOOTERS", 1)
    warehouse.create("bare", options=BARE)
    warehouse.write("bare", rows(0, 10), rows(10, 20))
    assert file_rows(stats(connect(warehouse.path), "bare", 1)) and not file_rows(
        stats(connect(warehouse.path), "bare", 2)
    )


def test_renamed_and_added_columns_are_read_from_older_files(append, warehouse):
    from pypaimon.schema.schema_change import SchemaChange

    warehouse.catalog.alter_table(
        "sales.events",
        [
            SchemaChange.rename_column("label", "name"),
            SchemaChange.add_column("later", atomic("INT")),
        ],
    )
    connector = connect(warehouse.path)
    listing = connector.enumerate_snapshots("sales", "events")
    described = connector.describe("sales", "events").schema
    assert [c.name for c in described.columns] == ["id", "name", "part", "later"]
    assert [s.schema.hash == described.hash for s in listing.snapshots] == [False, True], "readers see the new one"
    assert "name" in contents(connector, "events", 2, {"id": 1, "name": 2, "part": 3, "later": 4})
    more = rows(200, 210).rename_columns(["id", "name", "part"]).append_column("later", pa.array(range(10), pa.int32()))
    warehouse.write("events", more.select(["id", "name", "part", "later"]).cast(_arrow(warehouse)))
    again = connector.enumerate_snapshots("sales", "events", known_snapshot_ids=listing.live_snapshot_ids)
    assert [c.name for c in again.snapshots[0].schema.columns] == ["id", "name", "part", "later"]
    ids = {"id": 1, "label": 2, "part": 3, "name": 2, "later": 4}
    native = stats(connector, "events", 3, ids=ids)
    later = [r for r in file_rows(native) if r["column_name"] == "later"]
    assert sum(r["null_count"] for r in later) == 200 and native.row_count == 210
    names = [r for r in file_rows(native) if r["column_name"] == "name"]
    assert len(names) == 6 and all(r["min"] for r in names)
    found = contents(connector, "events", 3, ids)
    assert sorted(v for v in found["later"] if v is not None) == list(range(10)) and "v001" in found["name"]
    assert set(contents(connector, "events", 1)) == {"id", "label", "part"}


def _arrow(warehouse):
    from pypaimon.schema.data_types import PyarrowFieldParser

    return PyarrowFieldParser.from_paimon_schema(warehouse.catalog.get_table("sales.events").fields)


# Errors.


def test_error_of_a_broken_manifest_names_the_table_and_no_path(append, warehouse):
    for manifest in (append / "manifest").glob("manifest-*"):
        manifest.write_bytes(b"broken")
    with pytest.raises(UpstreamError, match=r'table "sales.events" cannot be read') as refused:
        stats(connect(warehouse.path), "events", 2)
    assert str(warehouse.path) not in str(refused.value) and not refused.value.retryable


def test_error_of_a_missing_manifest_names_it(append, warehouse):
    for manifest in (append / "manifest").glob("manifest-*"):
        manifest.unlink()
    with pytest.raises(UpstreamError, match="no such file: manifest-list-") as refused:
        stats(connect(warehouse.path), "events", 2)
    assert str(warehouse.path) not in str(refused.value)


def test_missing_data_file_is_an_error_of_its_task_only(append, warehouse):
    connector = connect(warehouse.path)
    tasks = list(connector.plan_files("sales", "events", 2, IDS))
    lost = next(append.rglob("*.parquet"))
    lost.unlink()
    assert stats(connector, "events", 2).row_count == 200
    failed = 0
    for task in tasks:
        try:
            list(read(task, task.columns))
        except UpstreamError as error:
            failed += 1
            assert str(lost) in error.message.split(":")[0]
    assert failed == 1


def test_unchanged_files_keep_their_fingerprints(append, warehouse):
    connector = connect(warehouse.path)
    first, second = (
        {t.file_path: t.fingerprint for t in connector.plan_files("sales", "events", i, IDS)} for i in (1, 2)
    )
    assert first.items() <= second.items() and len(second) == 4
