"""Tables whose manifests are listed in the metadata file, or list a data file twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform

from capture.connectors.storage.places import Unreadable
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import current, directory, home, lake, live, sql, stats

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "key": ["x", "y"] * 5})


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table of format 1 with two manifests of different partition specs."""
    catalog = built.make_catalog(tmp_path)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS.schema, properties={"format-version": "1"})
    table.append(ROWS)
    with table.update_spec() as update:
        update.add_field("key", IdentityTransform(), "key")
    table.append(ROWS)
    return table


def embedded(table: Any) -> None:
    """Lists the manifests of each snapshot in the newest metadata file, in place."""
    location = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(location.read_text())
    for snapshot in document["snapshots"]:
        read = table.snapshot_by_id(snapshot["snapshot-id"]).manifests(table.io)
        snapshot["manifests"] = [manifest.manifest_path for manifest in read]
        del snapshot["manifest-list"]
    location.write_text(json.dumps(document))


def test_manifests_that_the_metadata_lists_are_read(table):
    connector = directory(home(table))
    before, rows = stats(connector), live(connector)
    embedded(table)
    connector = directory(home(table))
    native = stats(connector)
    assert native.files.equals(before.files) and native.row_count == 20
    assert set(native.files["partition_data_json"].to_pylist()) == {None, '{"key": "x"}', '{"key": "y"}'}
    assert live(connector) == rows
    (first, second) = connector.enumerate_snapshots("default", "t", full_rescan=True).snapshots
    assert stats(connector, first.snapshot_id).row_count == 10
    assert (first.manifest_list, second.manifest_list) == (None, None)
    document = connector.metadata_document("default", "t", connector.describe("default", "t").metadata_location)
    assert "manifest-list" not in document["snapshots"][0], "clients get it as it is"


def test_a_commit_does_not_lose_the_lists(table):
    """The connector writes the document itself where it can; elsewhere it refuses."""
    embedded(table)
    connector = sql(lake(table))
    loaded = connector.load("db", "t")
    assert loaded.io.lost_on_commit(loaded.location) == ["lists of manifests within it, as in tables of format 1"]
    built.publish_thetas(connector, "db", "t", current(connector, "db"), [(1, b"theta", 5)])
    location = connector.load("db", "t").location
    assert location != loaded.location
    document = connector.metadata_document("db", "t", location)
    assert [("manifest-list" in each, len(each["manifests"])) for each in document["snapshots"]] == [
        (False, 1),
        (False, 2),
    ]
    connector.close()


def test_a_file_that_is_listed_twice_is_named(table):
    old = table.current_snapshot().snapshot_id
    file = next(iter(table.scan().plan_files())).file
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    connector = directory(home(table))
    for refused in (stats, live):
        with pytest.raises(Unreadable, match=r"lists the data file .*parquet more than once, .* 2 times"):
            refused(connector)
    assert stats(connector, old).row_count == 20
