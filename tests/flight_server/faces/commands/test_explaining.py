"""Notes of `explain` on broadcasts; its plans are tested with Spark, in tests/integration."""

from __future__ import annotations

from capture.spark.plans import Operator, Plan
from flight_server.faces.commands.explaining import _broadcasts

MIB = 2**20


def plan(size_mib: int, joined_mib: int) -> Plan:
    return Plan(
        (
            Operator(0, "Join", "Join LeftAnti, (o_custkey = c_custkey)", None, 2**60),
            Operator(1, "Project", "Project [o_custkey]", None, joined_mib * MIB),
            Operator(2, "LogicalRelation", "Scan orders", None, size_mib * MIB),
        ),
        (),
        "",
    )


def test_a_table_is_compared_as_the_join_sees_it():
    """One column of a table may be small enough to broadcast, although the whole table is not."""
    (note,) = _broadcasts(plan(60, 6), plan(231, 23), 10 * MIB)
    assert "Project [o_custkey]" not in note.partition(",")[0] and note.startswith("Scan orders, as it is joined: 23")
    assert "above the broadcast threshold of 10" in note
    assert _broadcasts(plan(6, 6), plan(231, 9), 10 * MIB) == []
    (note,) = _broadcasts(plan(60, 23), plan(60, 6), 10 * MIB)
    assert "below the broadcast threshold" in note
