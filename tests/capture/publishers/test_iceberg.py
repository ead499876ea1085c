"""The `iceberg` home, with a SQL catalog and as a directory without one."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from pyiceberg.table.puffin import PuffinFile

from capture.connectors.iceberg.puffin import Blob, read, write
from capture.connectors.spi import ConnectorConfig
from capture.publishers import files, iceberg_commits
from capture.publishers.publishing import publish
from capture.publishers.spi import LostRace
from store.model.errors import Conflict, InvalidArgument, NotFound
from tests.capture.publishers.contract import PublisherContract, Table, rows
from tests.datasketches_package import datasketches
from tests.kept_lakes import kept_lake


def catalog(root: Path) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{root / 'c.db'}", warehouse=f"file://{root / 'w'}")


def built(version: int = 2) -> Table:
    return kept_lake(_built_v2 if version == 2 else _built_v1)


def _built_v1(root: Path) -> Table:
    return _built(root, 1)


def _built_v2(root: Path) -> Table:
    return _built(root, 2)


def _built(root: Path, version: int) -> Table:
    root.mkdir(exist_ok=True)
    found = catalog(root)
    found.create_namespace("db")
    properties = {"format-version": str(version)}
    found.create_table("db.t", rows(0, 1).schema, properties=properties).append(rows(0, 150))
    found.close()
    config = ConnectorConfig("c", "iceberg", f"sqlite:///{root / 'c.db'}", {"type": "sql", "name": "lake"})
    return Table("iceberg", config, "db", "t", root / "w/db/t", rows(0, 150))


def loaded(table: Table):
    found = catalog(table.path.parents[2])
    try:
        return found.load_table("db.t")
    finally:
        found.close()


def stats_files(table: Table) -> set[str]:
    return {name.rpartition("/")[2] for name in table.files() if name.endswith(".stats")}


class TestContract(PublisherContract):
    takes_older = True  # statistics are kept by snapshot

    def build(self, root: Path) -> Table:
        return _built(root, 2)

    def append(self, table: Table, more: pa.Table) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(20):  # the library gives up at the first commit beside its own
            found = catalog(table.path.parents[2])
            try:
                found.load_table("db.t").append(more)
                return
            except CommitFailedException:
                continue
            finally:
                found.close()
        raise AssertionError("twenty lost races")

    def count(self, table: Table) -> int:
        return loaded(table).scan().to_arrow().num_rows


class TestDirectoryContract(PublisherContract):
    takes_older = True
    appends = False  # no library writes to a directory without a catalog

    def build(self, root: Path) -> Table:
        return directory(_built(root, 2))

    def append(self, table: Table, more: pa.Table) -> None:
        raise AssertionError("no library can")

    def count(self, table: Table) -> int:
        return newest(table).scan().to_arrow().num_rows


def directory(table: Table, hinted: bool = False) -> Table:
    """The same table without its catalog, with one metadata file."""
    metadata = table.path / "metadata"
    latest = max(metadata.glob("*.metadata.json"))
    for other in set(metadata.glob("*.metadata.json")) - {latest}:
        other.unlink()
    if hinted:
        latest.rename(metadata / "v1.metadata.json")
        (metadata / "version-hint.text").write_text("1")
    config = ConnectorConfig("c", "iceberg", str(table.path.parent))
    return Table("iceberg", config, "default", "t", table.path, table.rows)


def newest(table: Table) -> StaticTable:
    metadata = table.path / "metadata"
    number = lambda file: int(file.name.removeprefix("v").partition("-")[0].partition(".")[0])  # noqa: E731
    return StaticTable.from_metadata(str(max(metadata.glob("*.metadata.json"), key=number)))


def check(table: Table, metadata) -> None:
    (statistics,) = metadata.statistics
    content = Path(statistics.statistics_path.removeprefix("file://")).read_bytes()
    assert len(content) == statistics.file_size_in_bytes
    puffin = PuffinFile(content)
    for blob, distinct in zip(puffin.footer.blobs, (150, 9), strict=True):
        sketch = datasketches.compact_theta_sketch.deserialize(puffin.get_blob_payload(blob))
        assert sketch.get_estimate() == distinct == int(blob.properties["ndv"])


@pytest.mark.parametrize("version", [1, 2])
def test_commit_in_a_catalog_changes_only_the_statistics(version):
    table = built(version)
    before = loaded(table).metadata
    publish(table.publisher())
    after = loaded(table).metadata
    check(table, after)
    kept = {"statistics", "metadata_log", "last_updated_ms"}
    assert after.model_dump(exclude=kept) == before.model_dump(exclude=kept)
    assert len(after.metadata_log) == len(before.metadata_log) + 1 and after.format_version == version


def test_format_v3_and_unknown_fields_are_preserved():
    table = built()
    location = Path(loaded(table).metadata_location.removeprefix("file://"))
    document = json.loads(location.read_text())
    document |= {"format-version": 3, "next-row-id": 0, "unheard-of": {"x": 2**60}}
    location.write_text(json.dumps(document))
    publish(table.publisher())
    found = loaded(table)
    after = json.loads(Path(found.metadata_location.removeprefix("file://")).read_text())
    changed = {"statistics", "metadata-log", "last-updated-ms"}
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in document.items() if k not in changed
    }
    check(table, found.metadata)


@pytest.mark.parametrize("hinted", [False, True])
def test_commit_in_a_directory_adds_one_metadata_file(hinted):
    table = directory(built(), hinted)
    statistics = table.statistics()
    publish(table.publisher(statistics))
    check(table, newest(table).metadata)
    names = {file.name for file in (table.path / "metadata").glob("*.metadata.json")}
    assert len(names) == 2
    if hinted:
        assert "v2.metadata.json" in names and (table.path / "metadata/version-hint.text").read_text() == "2"
    assert table.publisher(statistics).read().distinct == {"id": 150, "label": 9}


def test_second_commit_on_one_metadata_file_loses_the_race():
    table = directory(built())
    statistics = table.statistics()
    first, second = table.publisher(statistics), table.publisher(statistics)
    drafts = first.prepare(), second.prepare()
    first.write(drafts[0])
    before = table.files()
    with pytest.raises(LostRace):
        second.write(drafts[1])
    assert table.files() == before


def test_lost_race_in_a_catalog_leaves_no_file_and_is_retried():
    table = built()
    publisher = table.publisher()
    draft = publisher.prepare()
    found = catalog(table.path.parents[2])
    found.load_table("db.t").append(rows(150, 160))
    found.close()
    before = table.files()
    with pytest.raises(LostRace):
        publisher.write(draft)
    assert table.files() == before
    publish(publisher)
    assert loaded(table).scan().to_arrow().num_rows == 160 and len(loaded(table).metadata.statistics) == 1


def test_orphaned_files_are_removed_after_their_grace_period(monkeypatch):
    table = built()

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("capture.publishers.iceberg.commit_statistics", kill)
        with pytest.raises(Killed):
            publish(table.publisher())
    (left,) = stats_files(table)
    assert not loaded(table).metadata.statistics
    publish(table.publisher())
    assert left in stats_files(table)  # too young: it may belong to a running writer
    monkeypatch.setattr(files, "ORPHAN_SECONDS", 0.0)
    statistics = table.statistics()
    last = publish(table.publisher(table.statistics(columns=statistics.columns[::-1][:1] + statistics.columns[:0])))
    assert left not in stats_files(table)
    assert left in last.removed_orphans and left in last.to_json()["removed_orphans"]


def test_inherited_sketch_keeps_its_snapshot():
    table = built()
    old = table.statistics()
    TestContract().append(table, rows(150, 160))
    inherited = {"distribution_snapshot_id": old.snapshot_id, "distribution_freshness": "INHERITED"}
    first, second = (replace(column, **inherited) for column in old.columns)
    statistics = table.statistics(columns=(first, second), allow_inherited=True)
    assert "inherited: id, label" in publish(table.publisher(statistics)).detail
    (file,) = loaded(table).metadata.statistics
    (before, after) = loaded(table).metadata.snapshots
    assert file.snapshot_id == after.snapshot_id
    assert {(b.snapshot_id, b.sequence_number) for b in file.blob_metadata} == {
        (before.snapshot_id, before.sequence_number)
    }
    expired = replace(second, distribution_snapshot_id=12345)
    result = publish(table.publisher(table.statistics(columns=(first, expired), allow_inherited=True)))
    assert "snapshot 12345" in result.left_out["label"] and "expired" in result.left_out["label"]


def test_blobs_of_other_columns_are_carried_over():
    table = built()
    statistics = table.statistics()
    publish(table.publisher(table.statistics(columns=statistics.columns[:1])))
    publish(table.publisher(table.statistics(columns=statistics.columns[1:])))
    assert table.publisher(statistics).read().distinct == {"id": 150, "label": 9}


def current_metadata(root: Path) -> Path:
    """The file that the catalog points to, for tables that pyiceberg refuses to load."""
    with contextlib.closing(sqlite3.connect(root / "c.db")) as database:
        ((location,),) = database.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    return Path(location.removeprefix("file://"))


def test_blobs_of_unknown_types_are_carried_over():
    """A snapshot has one statistics file, so a new one keeps the blobs of other writers."""
    table = built()
    publish(table.publisher())
    location = Path(loaded(table).metadata_location.removeprefix("file://"))
    document = json.loads(location.read_text())
    (entry,) = document["statistics"]
    foreign = Blob("somebodys-sums-v1", (1,), entry["snapshot-id"], 1, b"12", {"unit": "byte"})
    content, footer = write([foreign])
    path = location.with_name("foreign.stats")
    path.write_bytes(content)
    entry |= {"statistics-path": str(path), "file-size-in-bytes": len(content), "file-footer-size-in-bytes": footer}
    entry["blob-metadata"] = [
        {
            "type": foreign.type,
            "snapshot-id": entry["snapshot-id"],
            "sequence-number": 1,
            "fields": [1],
            "properties": {"unit": "byte"},
        }
    ]
    location.write_text(json.dumps(document))
    statistics = table.statistics()
    publish(table.publisher(statistics))
    (entry,) = json.loads(current_metadata(table.path.parents[2]).read_text())["statistics"]
    assert [(blob["type"], blob["fields"]) for blob in entry["blob-metadata"]][-1] == (foreign.type, [1])
    with Path(entry["statistics-path"].removeprefix("file://")).open("rb") as stream:
        assert foreign in read(stream)
    path.unlink()
    Path(entry["statistics-path"].removeprefix("file://")).unlink()
    with pytest.raises(Conflict, match="somebodys-sums-v1"):
        publish(table.publisher(statistics))


def test_publishing_to_a_single_metadata_file_is_refused():
    table = directory(built())
    (file,) = (table.path / "metadata").glob("*.metadata.json")
    config = ConnectorConfig("c", "iceberg", str(file))
    alone = Table("iceberg", config, "default", "t", table.path, table.rows)
    before = table.files()
    with pytest.raises(InvalidArgument, match="one metadata file"):
        publish(alone.publisher(table.statistics()))
    assert table.files() == before


def test_expired_snapshot_is_not_found():
    table = built()
    with pytest.raises(NotFound, match="snapshot 5"):
        publish(table.publisher(table.statistics(5)))


def test_read_only_catalog_is_refused_and_leaves_no_file(tmp_path, monkeypatch):
    table = built()
    publisher, before = table.publisher(), None
    before = table.files()
    shutil.copy(table.path.parents[2] / "c.db", tmp_path / "kept.db")

    def denied(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(iceberg_commits, "_commit_to_sql", denied)
    with pytest.raises(InvalidArgument, match="permission denied") as refusal:
        publish(publisher)
    assert refusal.value.code == "READ_ONLY" and table.files() == before
