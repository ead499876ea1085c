"""The Iceberg connector: contract, moved tables, lookup of metadata files."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from capture.connectors.spi import ConnectorConfig
from store.model.errors import NotFound, UpstreamError
from store.model.format_facts import FormatFacts
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.contract import METADATA, ConnectorContract, Truth
from tests.capture.connectors.iceberg.lake import ROWS, directory, home, lake, rows, stats
from tests.kept_lakes import kept_lake


def of_one_append(root):
    return built.simple_table(root, ROWS, rows(0, 20))


def of_two_appends(root):
    return built.simple_table(root, ROWS, rows(0, 20), rows(20, 30))


class TestContract(ConnectorContract):
    facts = FormatFacts(merges_rows=False, plain_parquet=True, iceberg_metadata=True)
    metadata = METADATA
    has_column_sizes = True
    is_directory = False

    @pytest.fixture
    def config(self):
        root = lake(kept_lake(of_two_appends))
        uri, warehouse = f"sqlite:///{root / 'catalog.db'}", f"file://{root / 'warehouse'}"
        return ConnectorConfig("c", "iceberg", uri, {"type": "sql", "name": "lake", "warehouse": warehouse})

    @pytest.fixture
    def truth(self, config):
        return Truth("db", "t", 30, rows(0, 30).to_pydict(), snapshots=2)


class TestContractOfADirectory(ConnectorContract):
    facts = FormatFacts(merges_rows=False, plain_parquet=True, iceberg_metadata=True)
    metadata = METADATA
    has_column_sizes = True

    @pytest.fixture
    def config(self):
        return ConnectorConfig("c", "iceberg", str(home(kept_lake(of_one_append))))

    @pytest.fixture
    def truth(self, config):
        return Truth("default", "t", 20, rows(0, 20).to_pydict())


def test_moved_table_is_read_with_a_path_rewrite(tmp_path, table):
    shutil.move(home(table), tmp_path / "moved" / "t")
    with pytest.raises(UpstreamError, match="missing") as refused:
        stats(directory(tmp_path / "moved"))
    assert str(tmp_path) not in str(refused.value) and str(lake(table)) not in str(refused.value)
    connector = directory(tmp_path / "moved", path_rewrite=f"{home(table)}={tmp_path / 'moved' / 't'}")
    assert stats(connector).row_count == 150
    assert all(Path(path).exists() for path in stats(connector).files["file_path"].to_pylist())


def test_version_hint_takes_precedence_over_the_greatest_number(table):
    folder = home(table) / "metadata"
    first = min(folder.glob("00001-*.metadata.json"))
    shutil.copy(first, folder / "v1.metadata.json")
    (folder / "version-hint.text").write_text("1")
    assert stats(directory(home(table))).row_count == 100
    (folder / "version-hint.text").write_text("77")
    assert stats(directory(home(table))).row_count == 150


def test_versions_after_the_version_hint_are_found(table):
    """Writers add the next version, then update the hint; a writer may be killed between the two."""
    folder = home(table) / "metadata"
    for number, name in enumerate(sorted(file.name for file in folder.glob("0*.metadata.json"))[1:], 1):
        (folder / name).rename(folder / f"v{number}.metadata.json")
    (folder / "version-hint.text").write_text("1")
    assert stats(directory(home(table))).row_count == 150
    (folder / "v2.metadata.json").rename(folder / "v3.metadata.json")
    assert stats(directory(home(table))).row_count == 100


@pytest.mark.parametrize("name", ["00009-x.gz.metadata.json", "v9.metadata.json.gz"])
def test_metadata_may_be_compressed(table, name):
    folder = home(table) / "metadata"
    (folder / name).write_bytes(gzip.compress(built.latest(folder).read_bytes()))
    for file in folder.glob("0000[0-2]*.metadata.json"):
        file.unlink()
    assert stats(directory(home(table))).row_count == 150


def test_uri_may_be_a_single_metadata_file(table):
    connector = directory(built.latest(home(table) / "metadata"))
    assert (connector.list_namespaces(), connector.list_tables("default")) == (["default"], ["t"])
    assert stats(connector).row_count == 150
    with pytest.raises(NotFound, match="nowhere"):
        directory("/no/nowhere.metadata.json").list_namespaces()


def test_nested_directories_are_dotted_namespaces(tmp_path, table):
    connector = directory(lake(table) / "warehouse")
    assert connector.list_namespaces() == ["db"]
    shutil.copytree(home(table), tmp_path / "lake/x.db/deep/u")
    assert directory(tmp_path / "lake").list_namespaces() == ["x.db.deep"]
    assert directory(tmp_path / "lake").describe("x.db.deep", "u").table_id


def test_error_names_the_table_and_no_path(table):
    built.latest(home(table) / "metadata").write_text("{broken")
    with pytest.raises(UpstreamError, match=r'table "db.t"') as refused:
        directory(lake(table) / "warehouse").describe("db", "t")
    assert str(lake(table)) not in str(refused.value) and not refused.value.retryable
