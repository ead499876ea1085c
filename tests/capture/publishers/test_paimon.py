"""The `paimon` home: a statistics file, theta sketches beside it, an ANALYZE snapshot."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pypaimon
import pytest

from capture.connectors.paimon.library import quiet
from capture.connectors.spi import ConnectorConfig
from capture.publishers import files
from capture.publishers.external_values import java_double, paimon_bound, spark_bound
from capture.publishers.paimon import PaimonPublisher
from capture.publishers.publishing import publish
from capture.publishers.spi import LostRace
from store.model.errors import StatflightError
from tests.capture.publishers.contract import PublisherContract, Table, rows
from tests.datasketches_package import datasketches


def catalog(root: Path) -> pypaimon.Catalog:
    return pypaimon.CatalogFactory.create({"warehouse": str(root)})


def append_rows(root: Path, more: pa.Table) -> None:
    with quiet():
        writing = catalog(root).get_table("sales.notes").new_batch_write_builder()
        writer = writing.new_write()
        writer.write_arrow(more)
        writing.new_commit().commit(writer.prepare_commit())
        writer.close()


def built(root: Path) -> Table:
    with quiet():
        found = catalog(root)
        found.create_database("sales", True)
        found.create_table("sales.notes", pypaimon.Schema.from_pyarrow_schema(rows(0, 1).schema), False)
    append_rows(root, rows(0, 150))
    path = root / "sales.db/notes"
    return Table("paimon", ConnectorConfig("c", "paimon", str(root)), "sales", "notes", path, rows(0, 150))


def count(table: Table) -> int:
    with quiet():
        reading = catalog(table.path.parents[1]).get_table("sales.notes").new_read_builder()
        return reading.new_read().to_arrow(reading.new_scan().plan().splits()).num_rows


class TestContract(PublisherContract):
    def build(self, root: Path) -> Table:
        return built(root)

    def append(self, table: Table, more: pa.Table) -> None:
        append_rows(table.path.parents[1], more)

    def count(self, table: Table) -> int:
        return count(table)


def test_publication_is_an_analyze_snapshot_with_statistics_and_sketches(tmp_path):
    table = built(tmp_path)
    before = json.loads((table.path / "snapshot/snapshot-1").read_text())
    assert publish(table.publisher()).made_snapshot_id == 2
    snapshot = json.loads((table.path / "snapshot/snapshot-2").read_text())
    assert (snapshot["commitKind"], snapshot["deltaRecordCount"], snapshot["totalRecordCount"]) == ("ANALYZE", 0, 150)
    assert snapshot["commitIdentifier"] == 2**63 - 1 and snapshot["uuid"] != before.get("uuid")
    assert (table.path / "snapshot/LATEST").read_text() == "2"
    document = json.loads((table.path / "statistics" / snapshot["statistics"]).read_text())
    blobs = document.pop("blobMetadata")
    assert document == {
        "snapshotId": 1,
        "schemaId": 0,
        "mergedRecordCount": 150,
        "mergedRecordSize": 4000,
        "colStats": {
            "id": {
                "colId": 0,
                "distinctCount": 150,
                "min": "0",
                "max": "149",
                "nullCount": 0,
                "avgLen": 8,
                "maxLen": 8,
            },
            "label": {"colId": 1, "distinctCount": 9, "nullCount": 30, "avgLen": 8, "maxLen": 8},
        },
    }
    sidecar = (table.path / "statistics" / blobs[0]["fileLocation"]).read_bytes()
    length, magic = struct.unpack("<ii", sidecar[-8:])
    assert magic == 0x53544331 and json.loads(sidecar[-8 - length : -8]) == {"version": 1, "blobs": blobs}
    for blob, distinct in zip(blobs, (150, 9), strict=True):
        sketch = datasketches.compact_theta_sketch.deserialize(sidecar[blob["offset"] :][: blob["length"]])
        assert sketch.get_estimate() == distinct == float(blob["properties"]["ndv"])
    assert blobs[0]["properties"]["ndv"] == "150.0"


def test_inherited_sketch_keeps_its_snapshot_and_is_not_read_back_as_the_new_one(tmp_path):
    table = built(tmp_path)
    old = table.statistics()
    append_rows(tmp_path, rows(150, 160))
    inherited = {"distribution_snapshot_id": old.snapshot_id, "distribution_freshness": "INHERITED"}
    columns = tuple(replace(column, row_count=160, **inherited) for column in old.columns)
    statistics = table.statistics(columns=columns, row_count=160, allow_inherited=True)
    assert publish(table.publisher(statistics)).detail == "inherited: id, label of snapshot 1"
    snapshot = json.loads((table.path / "snapshot/snapshot-3").read_text())
    document = json.loads((table.path / "statistics" / snapshot["statistics"]).read_text())
    assert (document["snapshotId"], {blob["snapshotId"] for blob in document["blobMetadata"]}) == (2, {1})
    assert publish(table.publisher(statistics)).detail.startswith("already published")
    native = table.connector.capture_snapshot_target_stats("sales", "notes", 2, {"id": 1, "label": 2})
    assert [row["ndv"] for row in native.columns.to_pylist()] == [None, None]
    own = table.statistics(2, columns=tuple(replace(c, row_count=160) for c in old.columns), row_count=160)
    assert publish(table.publisher(own)).detail == ""  # the same numbers, of another snapshot


def test_lost_race_leaves_no_file(tmp_path):
    table = built(tmp_path)
    publisher = table.publisher()
    draft = publisher.prepare()
    append_rows(tmp_path, rows(150, 160))
    before = table.files()
    with pytest.raises(LostRace, match="snapshot 2"):
        publisher.write(draft)
    assert table.files() == before and count(table) == 160


@pytest.mark.parametrize("step", ["prepare", "write", "verify"])
def test_table_that_is_dropped_meanwhile_is_not_found(tmp_path, step):
    table = built(tmp_path)
    shutil.copytree(table.path, table.path.with_name("other"))  # a lake without tables is another error
    publisher = table.publisher()
    do = getattr(publisher, step)
    setattr(publisher, step, lambda *given: (shutil.rmtree(table.path), do(*given))[1])
    with pytest.raises(StatflightError, match=r"sales\.notes"):
        publish(publisher)


def test_files_of_a_killed_publication_are_removed_later(tmp_path, monkeypatch):
    table = built(tmp_path)
    alone = built(tmp_path / "other")
    publish(alone.publisher())

    class Killed(BaseException):
        pass

    def kill(*_: object) -> bool:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(PaimonPublisher, "_commit", kill)
        with pytest.raises(Killed):
            publish(table.publisher())
    left = [name for name in table.files() if "statflight" in name]
    assert len(left) == 4 and table.publisher().read() is None  # two manifest lists, statistics and sketches
    publish(table.publisher())
    assert set(left) <= table.files().keys()  # too young: they may belong to a running writer
    monkeypatch.setattr(files, "ORPHAN_SECONDS", 0.0)
    append_rows(tmp_path, rows(150, 160))
    publish(table.publisher(table.statistics()))
    assert not set(left) & table.files().keys()
    assert count(table) == 160


@pytest.mark.parametrize(
    ("type", "text", "spark", "paimon"),
    [
        ("INT", "-5", "-5", "-5"),
        ("DOUBLE", "1.0E7", "1.0E7", "1.0E7"),
        ("BOOLEAN", "true", "true", "true"),
        ("DECIMAL(10,2)", "1.5", "1.5", "1.5"),
        ("DATE", "1970-01-02", "1970-01-02", "1"),
        ("DATE", "1969-12-31", "1969-12-31", "-1"),
        ("STRING", "x", None, None),
        ("BINARY", "eA==", None, None),
        ("TIMESTAMP", "2026-01-02T03:04:05.5", None, "2026-01-02 03:04:05.500000"),
        ("TIMESTAMPTZ", "2026-01-02T03:04:05.120Z", "2026-01-02 03:04:05.120000", None),
        ("INT", None, None, None),
        ("TIME", "03:04:05", None, None),
        ("UUID", "00000000-0000-0000-0000-000000000000", None, None),
    ],
)
def test_bounds_are_formatted_as_spark_and_paimon_write_them(type, text, spark, paimon):
    assert (spark_bound(text, type), paimon_bound(text, type)) == (spark, paimon)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (150, "150.0"), (1.5e7, "1.5E7"), (2 / 3, "0.6666666666666666")]
)
def test_doubles_are_formatted_as_in_java(value, text):
    assert java_double(value) == text
