"""Publishable statistics, selected by the labels of the stored records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.worker.publishing import publish_table, stored_statistics
from store.errors import InvalidArgument, NotFound
from store.schemas import FLIGHTS

TABLE = {"catalog": "lake", "schema": "s", "name": "t", "full_name": "lake.s.t"}
GOOD = {"completeness": "COMPLETE", "freshness": "EXACT", "snapshot_id": 7, "logical_type": "INT", "row_count": 10}


class FakeServer:
    """A server with fixed rows per flight."""

    def __init__(self, *columns: dict[str, Any], table: dict[str, Any] | None = None, sketches: Any = ()):
        self._rows = {"stats.columns": columns, "stats.tables": [table] if table else [], "stats.sketches": sketches}
        self.commands: list[dict[str, Any]] = []

    def get(self, command: dict[str, Any]) -> pa.Table:
        self.commands.append(command)
        return pa.Table.from_pylist(list(self._rows[command["table"]]), FLIGHTS[command["table"]].schema)


def column(column_id: int = 1, **changed: Any) -> dict[str, Any]:
    return GOOD | {"column_id": column_id, "column_name": f"c{column_id}", "ndv": 5.0} | changed


def payload(**changed: Any) -> dict[str, Any]:
    common = {"operation": "publish", "table": TABLE, "snapshot_id": 7, "options": {}}
    return common | {"allow_inherited": False, "dry_run": False} | changed


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"completeness": "PARTIAL"}, "of a sample"), ({"row_groups_sampled": 3}, "of a sample"),
        ({"completeness": "UNAVAILABLE"}, "not known"),
        ({"freshness": "STALE", "snapshot_id": 6}, "STALE: of snapshot 6"),
        ({"freshness": "INHERITED", "snapshot_id": 6}, "INHERITED: of snapshot 6"),
    ],
)  # fmt: skip
def test_unpublishable_records_are_left_out_or_an_error(changed, reason):
    bad = column(2, **changed)
    found = stored_statistics(FakeServer(column(), bad), payload(), frozenset())
    assert [c.name for c in found.columns] == ["c1"] and reason in found.left_out["c2"]
    with pytest.raises(InvalidArgument, match=rf"{reason}") as raised:
        stored_statistics(FakeServer(bad), payload(), frozenset())
    assert raised.value.code == "NOT_PUBLISHABLE"


def test_allow_inherited_publishes_inherited_but_not_stale_records():
    inherited = column(1, freshness="INHERITED", snapshot_id=6)
    stored = FakeServer(inherited, column(2, freshness="STALE", snapshot_id=6))
    found = stored_statistics(stored, payload(allow_inherited=True), frozenset())
    assert [c.name for c in found.columns] == ["c1"] and list(found.left_out) == ["c2"]
    assert found.snapshot_id == 7 and stored.commands[0]["snapshot"] == 7


def test_publish_without_statistics_is_not_found():
    with pytest.raises(NotFound, match=r'"lake\.s\.t" at snapshot 7'):
        stored_statistics(FakeServer(), payload(), frozenset())


def test_sketches_of_samples_are_not_published():
    sketch = {"column_id": 1, "role": "NDV", "target_kind": "COLUMN", "data": b"x", "params": "{}",
              "snapshot_id": 7}  # fmt: skip
    partial = sketch | {"column_id": 2, "data": b"y", "params": '{"completeness": "PARTIAL"}'}
    whole = GOOD | {"row_count": 11, "total_size_bytes": 99}
    stored = FakeServer(column(1), column(2), table=whole, sketches=[sketch, partial])
    found = stored_statistics(stored, payload(), frozenset({"NDV"}))
    assert [c.theta for c in found.columns] == [b"x", None]
    assert (found.row_count, found.total_size_bytes) == (11, 99)


@pytest.mark.parametrize("allow_inherited", [False, True])
def test_sketches_of_an_earlier_snapshot_than_their_column_are_not_published(allow_inherited):
    """A record from metadata, later than the last scan, has no distinct values; the sketch of that scan stays."""
    sketch = {"role": "NDV", "target_kind": "COLUMN", "data": b"x", "params": "{}"}
    stored = FakeServer(
        column(1, ndv=None), column(2, snapshot_id=6, freshness="INHERITED"),
        sketches=[sketch | {"column_id": 1, "snapshot_id": 6}, sketch | {"column_id": 2, "snapshot_id": 6}],
    )  # fmt: skip
    found = stored_statistics(stored, payload(allow_inherited=allow_inherited), frozenset({"NDV"}))
    assert [c.theta for c in found.columns] == [None, b"x"][: 1 + allow_inherited]


def test_home_of_another_table_format_is_rejected():
    body = payload(to="trino", connector={"catalog": "lake", "format": "lance", "uri": "x", "options": {}})
    with pytest.raises(InvalidArgument, match="delta tables") as raised:
        publish_table(FakeServer(column()), None, {}, body)
    assert raised.value.code == "WRONG_FORMAT"
