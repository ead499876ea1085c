"""Words for snapshots: `current`, `previous`, `first`."""

from __future__ import annotations

import pytest

from flight_server.core.views.snapshot_words import before, find


def row(snapshot_id, parent=None, *, current=False, captured=True):
    return {"snapshot_id": snapshot_id, "parent_snapshot_id": parent, "is_current": current, "captured": captured}


LINE = [row(7), row(3, 7), row(9, 3, current=True)]
BACK = [row(7), row(3, 7, current=True), row(9, 3)]  # the last one was taken back
BRANCHED = [row(7), row(3, 7), row(9, 7, current=True)]
LISTINGS = [row(7), row(3), row(9, current=True)]  # a format without parents
GAPS = [row(7, captured=False), row(3, 7), row(5, 3, captured=False), row(9, 5, current=True)]


@pytest.mark.parametrize(
    ("rows", "first", "previous", "current"),
    [(LINE, 7, 3, 9), (BACK, 7, 7, 3), (BRANCHED, 7, 7, 9), (LISTINGS, 7, 3, 9), (GAPS, 3, 3, 9)],
    ids=["line", "taken back", "another branch", "no parents", "gaps"],
)
def test_a_word_is_a_captured_snapshot(rows, first, previous, current):
    assert [find(rows, word) for word in ("first", "previous", "current")] == [first, previous, current]


def test_a_capture_takes_snapshots_that_are_not_captured():
    assert [find(GAPS, word, captured=False) for word in ("first", "previous")] == [7, 5]


EXPIRED = [row(1), row(4), row(3, 2), row(8, 3), row(9, 3, current=True)]  # 2 is not known any more


def test_what_came_before_an_expired_ancestor_goes_by_order():
    assert [one["snapshot_id"] for one in before(EXPIRED, 4)] == [3, 4, 1]
    assert find(EXPIRED, "previous") == 3
    assert find([row(1), row(9, 2, current=True)], "previous") == 1


def test_nothing_was_before():
    alone = [row(7, current=True)]
    assert (find(alone, "first"), find(alone, "previous")) == (7, None)
    assert [find([], word) for word in ("first", "previous", "current")] == [None] * 3
    assert find([row(1, 2), row(2, 1, current=True)], "previous") == 1  # parents that go round in a circle
