"""Manifests of made-up metadata: what is in them, how they are named, and when they go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile, read_manifest_list

from flight_server.faces.iceberg_rest import manifests as module
from flight_server.faces.iceberg_rest.manifest_place import check_outside, place_at
from flight_server.faces.iceberg_rest.manifests import WITHOUT, Manifests
from flight_server.faces.iceberg_rest.tables import Tables
from store.model.errors import InvalidArgument, UpstreamError
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
FILES = 40
FIELDS = {1: 1, 2: 2, 3: 3}
DOCUMENT = {
    "format-version": 2,
    "table-uuid": "0e6e4c35-ab46-4c0f-a25a-3e2a2b2ffb24",
    "location": "/lake/t",
    "last-sequence-number": 1,
    "last-updated-ms": 0,
    "last-column-id": 3,
    "current-schema-id": 0,
    "schemas": [
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [
                {"id": 1, "name": "id", "required": False, "type": "long"},
                {"id": 2, "name": "day", "required": False, "type": "date"},
                {"id": 3, "name": "ratio", "required": False, "type": "double"},
            ],
        }
    ],
    "partition-specs": [
        {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "day", "transform": "identity"}]},
        {"spec-id": 1, "fields": []},
    ],
    "default-spec-id": 0,
    "last-partition-id": 1000,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "default-sort-order-id": 0,
    "properties": {"kept": "yes"},
    "current-snapshot-id": 2,
    "snapshots": [
        {
            "snapshot-id": 2,
            "sequence-number": 1,
            "timestamp-ms": 0,
            "schema-id": 0,
            "manifest-list": "none",
            "summary": {"operation": "append"},
        }
    ],
}


def listed(numbers: range, **more: Any) -> list[dict[str, Any]]:
    """File i is of one of five days, or of none."""
    each = KEY | {"completeness": "COMPLETE", "file_content": "DATA", "row_count": 10, "size_bytes": 100} | more
    days = [None if i % 6 == 5 else f"2026-01-0{1 + i % 6}" for i in numbers]
    return [
        each | {"file_path": f"f {i:02}", "delete_files": [], "partition_data_json": json.dumps({"day": day})}
        for i, day in zip(numbers, days, strict=True)
    ]


def of_columns(numbers: range, **more: Any) -> list[dict[str, Any]]:
    """File i has ids from 10 i to 10 i + 9, and ratios, of which files with an odd number have NaN among them."""
    each = KEY | {"completeness": "COMPLETE", "row_count": 10} | more
    ids = {"column_id": 1, "column_name": "id", "logical_type": "INT", "null_count": 0, "nan_count": None}
    ratios = {"column_id": 3, "column_name": "ratio", "logical_type": "DOUBLE", "null_count": 2, "min": "0.0"}
    rows = []
    for i in numbers:
        rows.append(each | ids | {"file_path": f"f {i:02}", "min": str(10 * i), "max": str(10 * i + 9)})
        rows.append(each | ratios | {"file_path": f"f {i:02}", "max": str(float(i)), "nan_count": i % 2})
    return rows


@pytest.fixture
def app():
    with app_in() as app:
        put(app, listed(range(FILES)), "stats.files")
        put(app, of_columns(range(FILES)), "stats.file_columns")
        yield app


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "manifests"


def written(app: Any, root: Path) -> tuple[dict[str, Any], str | None]:
    manifests = Manifests(place_at(str(root)), app.database, app.parts["planning"].planner)
    return manifests.add_to(DOCUMENT, app.catalog.get("lake.s.t"), 1, FIELDS)


def run(app: Any, sql: str, *parameters: Any) -> None:
    app.database.write(lambda connection: connection.execute(sql, list(parameters)) and None)


def manifests_of(url: str) -> list[ManifestFile]:
    return list(read_manifest_list(PyArrowFileIO().new_input(url)))


def entries(url: str) -> Iterator[ManifestEntry]:
    for manifest in manifests_of(url):
        yield from manifest.fetch_manifest_entry(PyArrowFileIO())


def all_files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_each_file_is_told_with_partition_counts_and_sure_bounds(app, root):
    document, url = written(app, root)
    assert url is not None and document["snapshots"][0]["manifest-list"] == url
    assert document["properties"]["kept"] == "yes" and document["properties"]["gc.enabled"] == "false"
    assert document["location"].startswith("read-only://")  # where no engine finds orphans to delete
    manifests = manifests_of(url)
    assert {m.partition_spec_id: m.added_files_count for m in manifests} == {0: FILES - FILES // 6, 1: FILES // 6}
    for manifest in manifests:
        assert (manifest.sequence_number, manifest.min_sequence_number, manifest.added_snapshot_id) == (1, 1, 2)
        assert manifest.added_rows_count == 10 * (manifest.added_files_count or 0)
    found = {entry.data_file.file_path: entry for entry in entries(url)}
    assert sorted(found) == [f"f {i:02}" for i in range(FILES)]
    for i in range(FILES):
        entry = found[f"f {i:02}"]
        file = entry.data_file
        assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (2, 1, 1)
        assert (file.record_count, file.file_size_in_bytes) == (10, 100)
        assert list(file.partition._data) == ([] if i % 6 == 5 else [20454 + i % 6])  # no nulls, for pyiceberg
        assert file.value_counts == {1: 10, 3: 10} and file.null_value_counts == {1: 0, 3: 2}
        assert (file.lower_bounds[1], file.upper_bounds[1]) == tuple(
            each.to_bytes(8, "little") for each in (10 * i, 10 * i + 9)
        )
        assert (3 in file.lower_bounds) == (3 in file.upper_bounds) == (i % 2 == 0)  # odd ones have NaN
        assert file.nan_value_counts == ({} if i % 2 else {3: 0})


@pytest.mark.parametrize("doubt", [{"completeness": "PARTIAL"}, {"confidence_level": 0.0}, {"row_groups_sampled": 1}])
def test_what_a_plan_would_not_skip_by_is_not_told(root, doubt):
    with app_in() as app:
        put(app, listed(range(FILES)), "stats.files")
        put(app, of_columns(range(FILES), **doubt), "stats.file_columns")
        _, url = written(app, root)
    for entry in entries(str(url)):
        assert entry.data_file.lower_bounds == entry.data_file.null_value_counts == {}


def test_many_files_are_in_several_manifests_each_of_few_partitions(app, root, monkeypatch):
    whole = {entry.data_file.file_path for entry in entries(str(written(app, root / "one")[1]))}
    for name, value in (("CELLS", 60), ("_MANIFEST_CELLS", 9), ("_FEWEST_FILES", 3), ("_READ_FILES", 2)):
        monkeypatch.setattr(module, name, value)
    _, url = written(app, root / "several")
    found = [entry.data_file.file_path for entry in entries(str(url))]
    assert len(found) == FILES and set(found) == whole
    counts = [manifest.added_files_count for manifest in manifests_of(str(url))]
    assert len(counts) >= FILES // 3 and max(counts) == 3


def test_a_table_without_files_has_a_list_without_manifests(root):
    with app_in() as app:
        put(app, listed(range(1)), "stats.files")
        put(app, [KEY | {"completeness": "COMPLETE", "data_file_count": 0, "row_count": 0}], "stats.tables")
        put(app, [row | {"file_content": "EQUALITY_DELETES"} for row in listed(range(1))], "stats.files")
        _, url = written(app, root)
    assert manifests_of(str(url)) == []


def test_servers_with_the_same_rows_name_the_same_list_and_write_it_once(app, root):
    _, url = written(app, root)
    before = {path: path.stat().st_mtime_ns for path in all_files(root)}
    assert written(app, root)[1] == url
    with app_in() as other:
        put(other, listed(range(FILES))[::-1], "stats.files")
        put(other, of_columns(range(FILES))[::-1], "stats.file_columns")
        assert Path(str(written(other, root)[1])).name == Path(str(url)).name
    assert {path: path.stat().st_mtime_ns for path in all_files(root)}.items() >= before.items()
    put(app, [row | {"min": "-5.0"} for row in of_columns(range(1))[1:]], "stats.file_columns")
    assert written(app, root)[1] != url


@pytest.mark.parametrize("unknown", ["row_count", "size_bytes"])
def test_without_rows_or_bytes_of_a_file_there_is_no_list_but_a_reason(root, unknown):
    with app_in() as app:
        put(app, [*listed(range(2)), *listed(range(2, 3), **{unknown: None})], "stats.files")
        document, url = written(app, root)
    assert url is None and document["snapshots"] == DOCUMENT["snapshots"]
    assert "the number of rows or bytes of f 02 is not known" in document["properties"][WITHOUT]
    assert not [path for path in all_files(root) if path.name == "snap.avro"]


def test_a_partition_value_that_iceberg_lacks_is_a_reason(root):
    with app_in() as app:
        put(app, [listed(range(1))[0] | {"partition_data_json": '{"day": "no day"}'}], "stats.files")
        document, url = written(app, root)
    assert url is None and '"no day"' in document["properties"][WITHOUT]


def test_a_place_that_cannot_be_written_is_told_once_a_while(app, tmp_path):
    (tmp_path / "file").write_text("no directory")
    manifests = Manifests(place_at(str(tmp_path / "file/x")), app.database, app.parts["planning"].planner)
    table, before = app.catalog.get("lake.s.t"), manifests.period()
    for _ in range(2):
        document, url = manifests.add_to(DOCUMENT, table, 1, FIELDS)
        assert url is None and document["properties"][WITHOUT] == "their place is out of reach"
    assert manifests.period() == before
    manifests._away_until = 1e-9  # the pause is over
    assert manifests.period() != before


def test_lists_of_other_snapshots_go_after_a_while_and_those_of_unknown_tables_stay(app, root):
    manifests = Manifests(place_at(str(root)), app.database, app.parts["planning"].planner)
    table = app.catalog.get("lake.s.t")
    _, url = manifests.add_to(DOCUMENT, table, 1, FIELDS)
    place, current = place_at(str(root)), str(url).removeprefix(f"file://{root}/")
    folder = current.rsplit("/", 2)[0]
    others = [f"{folder}/{9:016x}-{0:032x}/{name}" for name in ("snap.avro", "a.avro")]
    unknown = f"tables/{0:032x}/{1:016x}-{0:032x}/snap.avro"
    for name in (*others, unknown):
        place.create(name, b"")
    run(app, "UPDATE tables SET current_snapshot_id = 1")
    assert manifests.collect() == 0  # not yet
    kept = all_files(root)
    assert manifests.collect(grace_seconds=0.0) == 1
    assert kept - all_files(root) == {root / name for name in others}
    assert (root / unknown).exists() and list(entries(str(url)))
    run(app, "UPDATE tables SET dropped = true")
    assert manifests.collect(grace_seconds=0.0) == 1
    assert all_files(root) == {root / unknown}


def test_files_are_written_whole_or_not_and_never_anew(tmp_path):
    place = place_at(str(tmp_path))
    assert place.create("a/b", b"1") and not place.create("a/b", b"2")
    assert (tmp_path / "a/b").read_bytes() == b"1" and place.names("a") == ["a/b"]
    assert place.names("none") == place.folders("none") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UpstreamError, match="iceberg-manifests"):
        place.create("file/x", b"")
    place.delete("a/b")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("place", "lake", "is_within"),
    [
        ("/lake/x", "/lake", True),
        ("file:///lake", "/lake/", True),
        ("/lakes", "/lake", False),
        ("/", "/lake", False),
        ("/lake/../other", "/lake", False),
        ("s3a://bucket/lake/m", "s3://bucket/lake", True),
        ("s3://bucket/lake-m", "s3://bucket/lake", False),
        ("s3://bucket", "s3://bucket/lake", False),
    ],
)
def test_a_place_within_a_lake_is_refused(place, lake, is_within):
    with app_in() as app:
        run(app, "INSERT INTO connectors (catalog, format, uri, options) VALUES ('c', 'parquet', ?, '{}')", lake)
        if is_within:
            with pytest.raises(InvalidArgument, match='lies in the lake "c"'):
                check_outside(place, app.database)
        else:
            check_outside(place, app.database)


def test_places_are_directories_or_buckets(tmp_path):
    assert place_at(str(tmp_path)).url == f"file://{tmp_path}" == place_at(f"file://{tmp_path}").url
    with pytest.raises(InvalidArgument, match="iceberg-manifests"):
        place_at("http://host/x")


def test_metadata_is_as_it_was_without_a_place(app):
    assert Tables(app, lambda *_: None)._manifests is None
