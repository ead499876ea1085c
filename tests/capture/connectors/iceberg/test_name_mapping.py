"""Files without field ids, whose columns are found by the table's name mapping as it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, StringType

from capture.connectors.spi import ScanTask
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import directory, home, stats

ROWS = pa.table({"id": pa.array([7, 8], pa.int64()), "name": ["p", None]})


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table with a file without field ids, and one that it wrote itself."""
    catalog = built.make_catalog(tmp_path)
    catalog.create_namespace("default")
    table = catalog.create_table("default.t", ROWS.schema)
    pq.write_table(ROWS, tmp_path / "without_ids.parquet")
    table.add_files([(tmp_path / "without_ids.parquet").as_uri()])
    return table


def rows(table: Any) -> dict[str, tuple[Any, ...]]:
    """Column → its statistics in the file without ids."""
    native = stats(directory(home(table)))
    found = pa.concat_tables(native.file_columns()).to_pylist()
    return {
        row["column_name"]: (row["null_count"], row["min"], row["max"])
        for row in found
        if "without_ids" in row["file_path"]
    }


def fingerprint(table: Any) -> str:
    connector = directory(home(table))
    snapshot = connector.enumerate_snapshots("default", "t").current_snapshot_id
    tasks: list[ScanTask] = list(connector.plan_files("default", "t", snapshot, {}))
    (found,) = (task.fingerprint for task in tasks if "without_ids" in task.location)
    return found


@pytest.mark.parametrize("how", ["dropped", "renamed"])
def test_a_name_that_is_used_again_leads_to_the_new_column(table, how):
    assert rows(table) == {"id": (0, "7", "8"), "name": (1, "p", "p")}
    before = fingerprint(table)
    with table.update_schema() as update:
        update.delete_column("name") if how == "dropped" else update.rename_column("name", "title")
    with table.update_schema() as update:
        update.add_column("name", StringType())
    assert table.scan().to_arrow()["name"].to_pylist() == ["p", None]
    unknown = (None, None, None)
    gone = {"title": unknown} if how == "renamed" else {}
    assert rows(table) == {"id": (0, "7", "8"), "name": unknown} | gone
    assert fingerprint(table) != before, "its columns are read again"


def test_a_renamed_column_keeps_its_metrics(table):
    with table.update_schema() as update:
        update.rename_column("name", "title")
    assert rows(table) == {"id": (0, "7", "8"), "title": (1, "p", "p")}


def test_files_with_ids_lack_an_added_column_by_their_footers(table):
    table.append(ROWS)
    with table.update_schema() as update:
        update.add_column("later", LongType())
    found = pa.concat_tables(stats(directory(home(table))).file_columns()).to_pylist()
    later = {"without_ids" in row["file_path"]: row["null_count"] for row in found if row["column_name"] == "later"}
    assert later == {True: None, False: 2}
