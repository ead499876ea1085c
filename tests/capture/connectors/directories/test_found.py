"""Tables at a path are recognized by what their directory holds."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors.directories.found import table_at, tables_at
from capture.connectors.directories.mixed import MixedConnector
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument, NotFound


def parquet(path, rows=3):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(range(rows))}), path)
    return path


FOLDERS = {
    "delta": ["_delta_log/", "part.parquet"],
    "iceberg": ["metadata/v1.metadata.json", "data/part.parquet"],
    "lance": ["_versions/1.manifest", "data/1.lance"],
    "paimon": ["schema/schema-0", "snapshot/snapshot-1", "bucket-0/data.parquet"],
    "parquet": ["part.parquet"],
}


def make(root, names):
    for name in names:
        place = root / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            place.touch()
    return root


@pytest.mark.parametrize("format", FOLDERS)
def test_a_directory_is_of_its_format(tmp_path, format):
    found = table_at(str(make(tmp_path / "t", FOLDERS[format])))
    assert (found.format, found.name, found.uri) == (format, "t", str(tmp_path / "t"))


def test_files_patterns_and_metadata_files(tmp_path):
    file = parquet(tmp_path / "a.parquet")
    assert (table_at(str(file)).format, table_at(str(file)).table) == ("parquet", "a")
    assert table_at(f"{tmp_path}/*.parquet").uri == f"{tmp_path}/*.parquet"
    make(tmp_path, ["t/metadata/v2.metadata.json"])
    assert table_at(str(tmp_path / "t/metadata/v2.metadata.json")).format == "iceberg"
    assert table_at(str(parquet(tmp_path / "p/k=1/a.parquet").parents[1])).format == "parquet"


@pytest.mark.parametrize("name", ["nosuch", "nosuch.parquet", "empty", "texts", "texts/readme.txt"])
def test_nothing_there_says_what_was_looked_for(tmp_path, name):
    (tmp_path / "empty").mkdir()
    make(tmp_path, ["texts/readme.txt"])
    with pytest.raises(NotFound) as caught:
        table_at(str(tmp_path / name))
    told = str(caught.value)
    assert told.startswith(str(tmp_path / name)) and "\n" not in told
    assert all(format.capitalize() in told for format in FOLDERS)


def test_a_directory_of_tables_names_them(tmp_path):
    for name in "abcdefg":
        parquet(tmp_path / f"lake/{name}/part.parquet")
    with pytest.raises(NotFound) as caught:
        table_at(str(tmp_path / "lake"))
    assert "a, b, c, d, e and more" in str(caught.value) and "statflight serve" in str(caught.value)
    assert [found.name for found in tables_at(str(tmp_path / "lake"))] == list("abcdefg")


def test_unknown_schemes_and_empty_paths_are_refused():
    for uri in ("ftp://host/t", "s3:///t"):
        with pytest.raises(InvalidArgument, match=f"^{uri}: "):
            table_at(uri)


def test_a_link_to_a_directory_around_it_ends(tmp_path):
    (tmp_path / "lake/sub").mkdir(parents=True)
    (tmp_path / "lake/sub/up").symlink_to(tmp_path / "lake")
    with pytest.raises(NotFound):
        table_at(str(tmp_path / "lake"))


def test_tables_of_several_formats_are_read_by_their_own_connectors(tmp_path):
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "shop/d", pa.table({"x": [1, 2]}))
    parquet(tmp_path / "shop/p/part.parquet", 5)
    parquet(tmp_path / "shop/inner/q/part.parquet", 7)
    connector = MixedConnector(ConnectorConfig("shop", "mixed", str(tmp_path / "shop")))
    names = {space: connector.list_tables(space) for space in connector.list_namespaces()}
    assert names == {"default": ["d", "p"], "inner": ["q"]}
    tables = [("default", "d", "delta", 2), ("default", "p", "parquet", 5), ("inner", "q", "parquet", 7)]
    for space, name, format, rows in tables:
        described = connector.describe(space, name)
        assert (described.namespace, described.name, connector.format_of(space, name)) == (space, name, format)
        (snapshot,) = connector.enumerate_snapshots(space, name).snapshots
        ids = {column.key: at for at, column in enumerate(described.schema.columns, 1)}
        assert connector.capture_snapshot_target_stats(space, name, snapshot.snapshot_id, ids).row_count == rows
        assert sum(task.row_count for task in connector.plan_files(space, name, snapshot.snapshot_id, ids)) == rows
    with pytest.raises(NotFound, match="no table"):
        connector.describe("default", "nosuch")
    connector.close()
