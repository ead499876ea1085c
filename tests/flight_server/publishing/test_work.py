"""Publishable statistics, selected by the labels of the stored records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from capture.publishers.spi import publishable
from flight_server.publishing.work import publish_table, stored_statistics, with_files
from store.model.errors import InvalidArgument, NotFound
from store.model.freshness import UNCONFIRMED
from store.model.schemas import FLIGHTS
from store.model.sketches import ThetaBuilder
from store.model.sketches.murmur3 import hash_longs

TABLE = {"catalog": "lake", "schema": "s", "name": "t", "full_name": "lake.s.t"}
GOOD = {"completeness": "COMPLETE", "freshness": "EXACT", "snapshot_id": 7, "logical_type": "INT", "row_count": 10}


class FakeServer:
    """A server with fixed rows per flight."""

    def __init__(self, *columns: dict[str, Any], table: dict[str, Any] | None = None, sketches: Any = ()):
        self._rows = {"stats.columns": columns, "stats.tables": [table] if table else [], "stats.sketches": sketches}
        self.commands: list[dict[str, Any]] = []
        self.earlier: dict[int, Any] = {}  # snapshot id → rows of columns, where they are others

    def get(self, command: dict[str, Any]) -> pa.Table:
        self.commands.append(command)
        rows = self.earlier.get(command["snapshot"], self._rows[command["table"]])
        return pa.Table.from_pylist(list(rows), FLIGHTS[command["table"]].schema)


def column(column_id: int = 1, **changed: Any) -> dict[str, Any]:
    row = GOOD | {"column_id": column_id, "column_name": f"c{column_id}", "ndv": 5.0} | changed
    known = row["ndv"] is not None
    labels = {"distribution_snapshot_id": "snapshot_id", "distribution_freshness": "freshness"}
    return row | {label: row[of] if known else None for label, of in labels.items()} | changed


def payload(**changed: Any) -> dict[str, Any]:
    common = {"operation": "publish", "table": TABLE, "snapshot_id": 7, "options": {}}
    return common | {"allow_inherited": False, "dry_run": False} | changed


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"completeness": "PARTIAL"}, "of a sample"),
        ({"row_groups_sampled": 3}, "of a sample"),
        ({"completeness": "UNAVAILABLE"}, "not known"),
        ({"freshness": "STALE", "snapshot_id": 6}, "STALE: of snapshot 6"),
        ({"freshness": "INHERITED", "snapshot_id": 6}, "INHERITED: of snapshot 6"),
    ],
)
def test_unpublishable_records_are_left_out_or_an_error(changed, reason):
    bad = column(2, **changed)
    found = publishable(stored_statistics(FakeServer(column(), bad), payload(), frozenset()))
    assert [c.name for c in found.columns] == ["c1"] and reason in found.left_out["c2"]
    with pytest.raises(InvalidArgument, match=rf"{reason}") as raised:
        publishable(stored_statistics(FakeServer(bad), payload(), frozenset()))
    assert raised.value.code == "NOT_PUBLISHABLE"


def test_allow_inherited_publishes_inherited_but_not_stale_records():
    inherited = column(1, freshness="INHERITED", snapshot_id=6)
    stored = FakeServer(inherited, column(2, freshness="STALE", snapshot_id=6))
    found = publishable(stored_statistics(stored, payload(allow_inherited=True), frozenset()))
    assert [c.name for c in found.columns] == ["c1"] and list(found.left_out) == ["c2"]
    assert found.snapshot_id == 7 and stored.commands[0]["snapshot"] == 7


@pytest.mark.parametrize("allow_inherited", [False, True])
@pytest.mark.parametrize("whole", [None, GOOD | {"freshness": "INHERITED", "snapshot_id": 6}])
def test_row_count_is_that_of_the_published_snapshot(whole, allow_inherited):
    old = {"freshness": "INHERITED", "snapshot_id": 6}
    stored = FakeServer(column(1, **old), column(2, row_count=100), table=whole)
    assert stored_statistics(stored, payload(allow_inherited=allow_inherited), frozenset()).row_count == 100
    only_old = FakeServer(column(1, **old), column(2, row_count=None), table=whole)
    found = stored_statistics(only_old, payload(allow_inherited=allow_inherited), frozenset())
    assert found.row_count is None


def test_where_all_is_inherited_the_statistics_are_those_of_the_earlier_snapshot():
    """For homes that name the snapshot; they would be surer under the name of the later one."""
    then, now = {"snapshot_id": 6}, {"freshness": "INHERITED"}
    old, older = column(1, **then, **now), column(2, **now, snapshot_id=5)
    stored = FakeServer(old, older, table=GOOD | {"row_count": 99})
    stored.earlier[6] = [column(1, **then), older]
    leave = payload(allow_inherited=True)
    found = stored_statistics(stored, leave, frozenset(), or_older=True)
    assert (found.snapshot_id, [c.freshness for c in found.columns]) == (6, ["EXACT", "INHERITED"])
    assert "inherited: all of snapshot 6" in found.remarks[0]
    assert stored_statistics(stored, leave, frozenset()).snapshot_id == 7
    assert stored_statistics(stored, payload(), frozenset(), or_older=True).snapshot_id == 7
    stored = FakeServer(old, column(2, **now, snapshot_id=5, distribution_freshness="EXACT"))
    assert stored_statistics(stored, leave, frozenset(), or_older=True).snapshot_id == 7


def test_publish_without_statistics_is_not_found():
    with pytest.raises(NotFound, match=r'"lake\.s\.t" at snapshot 7'):
        stored_statistics(FakeServer(), payload(), frozenset())


def test_sketches_of_samples_are_not_published():
    sketch = {"column_id": 1, "role": "NDV", "target_kind": "COLUMN", "data": b"x", "params": "{}", "snapshot_id": 7}
    partial = sketch | {"column_id": 2, "data": b"y", "params": '{"completeness": "PARTIAL"}'}
    whole = GOOD | {"row_count": 11, "total_size_bytes": 99}
    stored = FakeServer(column(1), column(2), table=whole, sketches=[sketch, partial])
    found = stored_statistics(stored, payload(), frozenset({"NDV"}))
    assert [c.theta for c in found.columns] == [b"x", None]
    assert (found.row_count, found.total_size_bytes) == (11, 99)


def test_inherited_distribution_of_a_sample_is_not_published():
    """The row that inherits it is complete: its labels are those of its counts."""
    distribution = {"ndv": 5.0, "avg_width_bytes": 8.0, "max_width_bytes": 8, "mean": 2.5}
    inherited = {"distribution_snapshot_id": 6, "distribution_freshness": "INHERITED"} | distribution
    stored = FakeServer(column(1, null_count=2, **inherited), column(2, null_count=3, **inherited))
    stored.earlier[6] = [column(1, snapshot_id=6, completeness="PARTIAL"), column(2, snapshot_id=6)]
    first, second = stored_statistics(stored, payload(allow_inherited=True), frozenset()).columns
    assert (first.null_count, first.ndv, first.avg_width_bytes, first.max_width_bytes) == (2, None, None, None)
    assert (second.null_count, second.ndv, second.avg_width_bytes, second.max_width_bytes) == (3, 5, 8, 8)


def test_files_come_with_the_statistics_that_may_skip_them():
    rows = [GOOD | {"file_path": "a", "column_id": 1, "usable_for": label} for label in ("PRUNING", "PLANNING")]
    server = FakeServer(column())
    files = [
        {"file_path": "a", "row_count": rows, "freshness": label} for rows, label in ((10, "EXACT"), (9, "INHERITED"))
    ]
    server._rows |= {"stats.files": files, "stats.file_columns": rows}
    found = with_files(server, payload(), stored_statistics(server, payload(), frozenset()))
    assert found.files is not None and found.file_columns is not None
    assert found.files["row_count"].to_pylist() == [10]
    assert found.file_columns["usable_for"].to_pylist() == ["PRUNING"]
    assert {command["snapshot"] for command in server.commands} == {7}


def theta(count: int) -> bytes:
    builder = ThetaBuilder()
    builder.update(hash_longs(np.arange(count)))
    return builder.serialize()


@pytest.mark.parametrize(("ndv", "taken"), [(None, True), (9000.0, False)])
def test_sketch_of_an_earlier_snapshot_is_not_given_out_as_the_current_one(ndv, taken):
    """A capture of metadata alone leaves the sketch behind: 1,000 values of snapshot 6, not of the 9,000 rows of 7."""
    sketch = {
        "column_id": 1,
        "role": "NDV",
        "target_kind": "COLUMN",
        "data": theta(1000),
        "params": "{}",
        "snapshot_id": 6,
    }
    stored = FakeServer(column(row_count=9000, null_count=0, ndv=ndv), sketches=[sketch])
    (found,) = stored_statistics(stored, payload(), frozenset({"NDV"})).columns
    assert (found.snapshot_id, found.freshness) == (7, "EXACT")
    if not taken:  # the count is newer than the sketch
        assert (found.ndv, found.theta, found.distribution_freshness) == (9000, None, "EXACT")
        return
    assert (found.ndv, found.theta) == (1000, theta(1000))
    assert (found.distribution_snapshot_id, found.distribution_freshness) == (6, "INHERITED")


def test_home_of_another_table_format_is_rejected():
    body = payload(to="trino", connector={"catalog": "lake", "format": "lance", "uri": "x", "options": {}})
    with pytest.raises(InvalidArgument, match="delta tables") as raised:
        publish_table(FakeServer(column()), None, {}, body)
    assert raised.value.code == "WRONG_FORMAT"


def test_bounds_by_an_unknown_writer_are_not_published():
    stored = FakeServer(column(min="1", max="9", null_count=2, confidence_level=UNCONFIRMED, usable_for="PLANNING"))
    (found,) = stored_statistics(stored, payload(), frozenset()).columns
    assert (found.min, found.max, found.null_count, found.ndv) == (None, None, 2, 5)
