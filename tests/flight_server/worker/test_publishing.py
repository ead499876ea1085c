"""Statistics that a worker may publish: read from the server, each with the label that decides."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.worker.publishing import publish_table, stored_statistics
from store.errors import InvalidArgument, NotFound
from store.schemas import FLIGHTS

TABLE = {"catalog": "lake", "schema": "s", "name": "t", "full_name": "lake.s.t"}
GOOD = {"completeness": "COMPLETE", "freshness": "EXACT", "snapshot_id": 7, "logical_type": "INT", "row_count": 10}


class Stored:
    """Answers of a server: flight → rows."""

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
def test_records_that_may_not_be_published(changed, reason):
    bad = column(2, **changed)
    found = stored_statistics(Stored(column(), bad), payload(), frozenset())
    assert [c.name for c in found.columns] == ["c1"] and reason in found.left_out["c2"]
    with pytest.raises(InvalidArgument, match=rf"{reason}") as refusal:
        stored_statistics(Stored(bad), payload(), frozenset())
    assert refusal.value.code == "NOT_PUBLISHABLE"


def test_inherited_ones_may_if_asked_for_but_stale_ones_never():
    inherited = column(1, freshness="INHERITED", snapshot_id=6)
    stored = Stored(inherited, column(2, freshness="STALE", snapshot_id=6))
    found = stored_statistics(stored, payload(allow_inherited=True), frozenset())
    assert [c.name for c in found.columns] == ["c1"] and list(found.left_out) == ["c2"]
    assert found.snapshot_id == 7 and stored.commands[0]["snapshot"] == 7


def test_nothing_stored_at_all():
    with pytest.raises(NotFound, match=r'"lake\.s\.t" at snapshot 7'):
        stored_statistics(Stored(), payload(), frozenset())


def test_sketches_of_samples_are_not_used():
    sketch = {"column_id": 1, "role": "NDV", "target_kind": "COLUMN", "data": b"x", "params": "{}"}
    partial = sketch | {"column_id": 2, "data": b"y", "params": '{"completeness": "PARTIAL"}'}
    whole = GOOD | {"row_count": 11, "total_size_bytes": 99}
    stored = Stored(column(1), column(2), table=whole, sketches=[sketch, partial])
    found = stored_statistics(stored, payload(), frozenset({"NDV"}))
    assert [c.theta for c in found.columns] == [b"x", None]
    assert (found.row_count, found.total_size_bytes) == (11, 99)


def test_a_home_of_another_format_is_refused():
    told = payload(to="trino", connector={"catalog": "lake", "format": "lance", "uri": "x", "options": {}})
    with pytest.raises(InvalidArgument, match="delta tables") as refusal:
        publish_table(Stored(column()), None, {}, told)
    assert refusal.value.code == "WRONG_FORMAT"
