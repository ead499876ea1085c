"""The `lance` home: configuration keys of one commit, tagged with the version of that commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from capture.connectors.spi import ConnectorConfig
from capture.publishers.publishing import publish
from capture.publishers.spi import ColumnStatistics, LostRace
from store.model.errors import Conflict, InvalidArgument
from tests.capture.publishers.contract import PublisherContract, Table, rows


def built(root: Path, table: pa.Table) -> Table:
    path = root / "dots"
    lance.write_dataset(table, path)
    return Table("lance", ConnectorConfig("c", "lance", str(root)), "default", "dots", path, table)


class TestContract(PublisherContract):
    def build(self, root: Path) -> Table:
        return built(root, rows(0, 150))

    def append(self, table: Table, more: pa.Table) -> None:
        lance.write_dataset(more, table.path, mode="append")

    def count(self, table: Table) -> int:
        return lance.dataset(table.path).count_rows()


def stored_keys(table: Table) -> dict[str, str]:
    config = lance.dataset(table.path).config()
    return {n.removeprefix("lance.stats."): v for n, v in config.items() if n.startswith("lance.stats.")}


def test_publication_has_the_keys_of_the_format(tmp_path):
    table = built(tmp_path, rows(0, 150))
    assert publish(table.publisher()).made_snapshot_id == 2
    found = stored_keys(table)
    assert (found.pop("version"), found.pop("computedAtVersion"), found.pop("numRows")) == ("1", "2", "150")
    assert found.pop("computedAt").endswith("Z") and len(found.pop("schemaHash")) == 64
    assert {n: v for n, v in found.items() if n.startswith("column.id.")} == {
        "column.id.version": "2",
        "column.id.min": "0",
        "column.id.max": "149",
        "column.id.nullCount": "0",
        "column.id.distinctCount": "150",
        "column.id.avgLen": "8",
        "column.id.maxLen": "8",
    }
    assert "column.label.min" not in found


def test_keys_of_columns_that_are_no_longer_published_are_removed(tmp_path):
    table = built(tmp_path, rows(0, 150))
    publish(table.publisher())
    lance.dataset(table.path).update_config({"lance.stats.column.gone.min": "1", "kept": "x"})
    statistics = table.statistics()
    publish(table.publisher(table.statistics(columns=statistics.columns[:1])))
    assert {name.split(".")[1] for name in stored_keys(table) if name.startswith("column.")} == {"id"}
    assert lance.dataset(table.path).config()["kept"] == "x"


def test_append_between_prepare_and_write_refuses_the_draft(tmp_path):
    table = built(tmp_path, rows(0, 150))
    publisher = table.publisher()
    draft = publisher.prepare()
    lance.write_dataset(rows(150, 160), table.path, mode="append")
    with pytest.raises(Exception, match="changed"):
        publisher.write(draft)
    assert not stored_keys(table) and lance.dataset(table.path).count_rows() == 160


def test_statistics_are_not_written_to_a_table_that_was_created_again_meanwhile(tmp_path):
    table = built(tmp_path, rows(0, 150))
    publisher = table.publisher()
    draft = publisher.prepare()
    shutil.rmtree(table.path)
    lance.write_dataset(rows(500, 700), table.path)
    with pytest.raises(LostRace, match="the table changed"):
        publisher.write(draft)
    with pytest.raises(Conflict, match="moved on"):
        publish(publisher)
    assert not stored_keys(table)


def test_columns_with_a_dot_in_the_name_are_left_out(tmp_path):
    inner = pa.array([{"x": i} for i in range(5)], pa.struct([("x", pa.int64())]))
    table = built(tmp_path, pa.table({"id": pa.array(range(5), pa.int64()), "place": inner}))
    columns = (ColumnStatistics(1, "id", "INT", 5, 0, ndv=5.0), ColumnStatistics(3, "place.x", "INT", 5, 0, ndv=5.0))
    publication = publish(table.publisher(table.statistics(columns=columns)))
    assert publication.columns == ("id",) and "dot" in publication.left_out["place.x"]


def test_a_type_that_spark_does_not_have_is_refused(tmp_path):
    clock = pa.table({"id": pa.array([1], pa.int64()), "clock": pa.array([1], pa.time64("us"))})
    table = built(tmp_path, clock)
    with pytest.raises(InvalidArgument, match="type that Spark does not have"):
        publish(table.publisher(table.statistics(columns=(ColumnStatistics(1, "id", "INT", 1, 0, ndv=1.0),))))
