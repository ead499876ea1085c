"""The catalog of actions."""

from __future__ import annotations

from flight_server.core import actions
from flight_server.core.wire import flight_sql


def test_every_action_that_is_offered_is_described():
    rows = {row["name"]: row for row in actions.functions()}
    assert set(rows) == {*actions.ACTIONS, *flight_sql.ACTIONS}
    assert all(row["arguments"] and row["description"] for row in rows.values())
