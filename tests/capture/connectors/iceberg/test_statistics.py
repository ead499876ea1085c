"""Statistics in Puffin files: blobs of other writers, sketches that become an ndv."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table.statistics import StatisticsFile

from store.model.errors import StatflightError
from store.model.sketches.theta import theta
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import current, directory, home, lake, sql, stats, with_foreign_statistics


def test_blobs_of_other_writers_do_not_stop_a_capture(table):
    folder = home(table) / "metadata"
    built.write_metadata(folder, with_foreign_statistics(json.loads(built.latest(folder).read_text())))
    native = stats(directory(home(table)))
    assert (native.row_count, list(native.sketches)) == (150, [])


def test_publishing_is_refused_if_foreign_statistics_would_be_lost(table):
    location = Path(table.metadata_location.removeprefix("file://"))
    location.write_text(json.dumps(with_foreign_statistics(json.loads(location.read_text()))))
    connector = sql(lake(table))
    assert stats(connector, namespace="db").row_count == 150
    with pytest.raises(StatflightError, match="presto-sum-data-size-bytes-v1"):
        built.publish_thetas(connector, "db", "t", current(connector, "db"), [(1, b"theta", 5)])
    connector.close()


def sketch(count: int) -> bytes:
    return theta(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1))


def test_ndv_of_a_snapshot_comes_from_its_sketches(table):
    connector = sql(lake(table))
    snapshot = current(connector, "db")
    built.publish_thetas(connector, "db", "t", snapshot, [(1, sketch(150), 150), (2, sketch(7), 7)])
    built.publish_thetas(connector, "db", "t", snapshot, [(2, sketch(90_000), 90_000), (3, b"not a sketch", 121)])
    native = stats(connector, namespace="db")
    assert {(id, role, data, params["ndv"]) for id, role, _, data, params in native.sketches} == {
        (1, "NDV", sketch(150), "150"),
        (2, "NDV", sketch(90_000), "90000"),
    }
    id, name, score = native.columns.to_pylist()
    assert (id["ndv"], id["ndv_exact"], id["ndv_lower"], id["ndv_upper"]) == (150, True, 150, 150)
    assert name["ndv_lower"] < name["ndv"] < name["ndv_upper"] and name["ndv"] == pytest.approx(90_000, rel=0.05)
    assert (name["ndv_exact"], score["ndv"], score["ndv_lower"]) == (False, 121.0, None)  # as in the metadata
    assert {row["row_count"] for row in (id, name, score)} == {native.row_count}
    older = snapshot_ids(connector)[0]
    assert older != snapshot and stats(connector, older, namespace="db").columns is None
    connector.close()


def test_damaged_and_missing_statistics_files_are_named(table):
    connector = sql(lake(table))
    built.publish_thetas(connector, "db", "t", current(connector, "db"), [(1, sketch(150), 150)])
    table.refresh()
    file = Path(table.metadata.statistics[0].statistics_path.removeprefix("file://"))
    file.write_bytes(b"PFA1 and no more than this")
    native = stats(connector, namespace="db")
    assert (list(native.sketches), native.columns.to_pylist()[0]["ndv"]) == ([], 150)  # as in the metadata
    assert list(native.remarks) == [f"the statistics file {file.name} is refused: a Puffin file with a broken footer"]
    file.unlink()
    assert list(stats(connector, namespace="db").remarks) == [f"the statistics file {file.name} is missing"]
    connector.close()


def test_blob_of_an_older_snapshot_is_not_used_for_a_newer_one(table):
    connector = sql(lake(table))
    older, newer = snapshot_ids(connector)
    built.publish_thetas(connector, "db", "t", newer, [(1, sketch(150), 150)])
    table.refresh()
    (statistics,) = table.metadata.statistics
    document = statistics.model_dump(by_alias=True)
    for blob in document["blob-metadata"]:
        blob["snapshot-id"] = older
    with table.update_statistics() as update:
        update.set_statistics(StatisticsFile.model_validate(document))
    native = stats(connector, newer, namespace="db")
    assert native.columns is None and not native.sketches
    connector.close()


def snapshot_ids(connector) -> list[int]:
    return [snapshot.snapshot_id for snapshot in connector.enumerate_snapshots("db", "t").snapshots]
