"""The merge against full copies: its results, applied to rows with spans in plain Python, give what each put leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.history.merge import Merged, Standing, Stored, merge
from store.model.puts import Counts, PutMode

END = 1_000  # of a row that the newest listing has
CONTENT = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2), min_size=1)
MODES = st.sampled_from([PutMode.CREATE, PutMode.UPSERT, PutMode.REPLACE_SNAPSHOT, PutMode.FILL, PutMode.CAPTURE])
PUTS = st.lists(st.tuples(st.integers(0, 3), CONTENT, MODES), min_size=1, max_size=8)


@dataclass
class Row:
    """A stored row: target, content, and the listings that it is in."""

    target: str
    content: int
    begin: int
    end: int


@dataclass
class Listings:
    """Rows with spans, to which the results of merges are applied."""

    rows: list[Row] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)

    def put(self, snapshot: int, content: dict[str, int], mode: PutMode) -> Merged:
        is_new = snapshot not in self.positions
        at = len(self.positions) if is_new else self.positions[snapshot]
        near = [(row, standing) for row in self.rows if (standing := self.standing(row, at, is_new=is_new)) is not None]
        is_whole = is_new or mode is PutMode.REPLACE_SNAPSHOT
        near = [
            (row, standing)
            for row, standing in near
            if row.target in content or (is_whole and standing is not Standing.ENDED)
        ]
        merged = merge(len(content), pairs(content, near), mode)
        if merged.conflict is None:
            self.positions[snapshot] = at
            self.apply(merged, [row for row, _ in near], list(content.items()), at)
        return merged

    @staticmethod
    def standing(row: Row, at: int, *, is_new: bool) -> Standing | None:
        if is_new:
            return Standing.EARLIER if row.end == END else None
        if row.begin <= at < row.end:
            return Standing.OWN
        return Standing.ENDED if row.end == at else None

    def apply(self, merged: Merged, near: list[Row], staged: list[tuple[str, int]], at: int) -> None:
        after = END if at == len(self.positions) - 1 else at + 1
        for row, closes, splits, extends in zip(near, merged.close, merged.split, merged.extend, strict=True):
            if splits and after < row.end:
                self.rows.append(Row(row.target, row.content, after, row.end))
            if closes or splits:
                row.end = at
            if extends:
                row.end = after
        self.rows = [row for row in self.rows if row.begin < row.end]
        self.rows += [Row(*staged[number], at, after) for number in np.flatnonzero(merged.insert)]

    def at(self, snapshot: int) -> list[tuple[str, int]]:
        position = self.positions[snapshot]
        return sorted((row.target, row.content) for row in self.rows if row.begin <= position < row.end)


def pairs(content: dict[str, int], near: list[tuple[Row, Standing]]) -> Stored:
    numbers = {target: number for number, target in enumerate(content)}
    return Stored(
        np.array([numbers.get(row.target, -1) for row, _ in near], np.int64),
        np.array([standing for _, standing in near], np.int8),
        np.array([content.get(row.target) == row.content for row, _ in near], np.bool_),
        np.zeros(len(near), np.bool_),
    )


def expected(old: dict[str, int] | None, content: dict[str, int], mode: PutMode) -> tuple[dict[str, int], Counts]:
    """What a snapshot has after a put, and the put's counts."""
    if old is None:
        return content, Counts(len(content), len(content), 0, 0)
    known = content.keys() & old.keys()
    if mode is PutMode.FILL:
        return content | old, Counts(len(content), len(content) - len(known), len(known), 0)
    same = sum(old[target] == content[target] for target in known)
    after = content if mode is PutMode.REPLACE_SNAPSHOT else old | content
    return after, Counts(len(content), len(content) - len(known), same, len(known) - same)


@given(puts=PUTS)
def test_any_puts_leave_each_snapshot_as_if_it_was_stored_in_full(puts):
    listings, model = Listings(), dict[int, dict[str, int]]()
    for snapshot, content, mode in puts:
        old = model.get(snapshot)
        after, counts = expected(old, content, mode)
        merged = listings.put(snapshot, content, mode)
        is_conflict = mode is PutMode.CREATE and counts.replaced > 0
        assert (merged.conflict is not None) == is_conflict
        if not is_conflict:
            assert merged.counts(len(content)) == counts
            model[snapshot] = after
        for each, rows in model.items():
            assert listings.at(each) == sorted(rows.items())


STORED = st.lists(st.tuples(st.integers(-1, 3), st.sampled_from(Standing), st.booleans(), st.booleans()), max_size=8)


@given(stored=STORED, mode=MODES)
def test_each_row_has_one_fate(stored, mode):
    row, standing, same, relabelled = (np.array([pair[at] for pair in stored]) for at in range(4))
    given_rows = Stored(row.astype(np.int64), standing.astype(np.int8), same.astype(bool), relabelled.astype(bool))
    merged = merge(4, given_rows, mode)
    fates = np.sum([merged.close, merged.split, merged.extend, merged.leave], axis=0)
    assert (fates[given_rows.standing != Standing.ENDED] == 1).all() and (fates <= 1).all()
    kept = merged.leave | merged.extend
    assert set(given_rows.row[kept]) == set(np.flatnonzero(~merged.insert)) and not (kept & merged.is_absent).any()


def one(standing: Standing, mode: PutMode, *, same: bool = False, relabelled: bool = False) -> Merged:
    given_rows = Stored(np.zeros(1, np.int64), np.full(1, standing, np.int8), np.array([same]), np.array([relabelled]))
    return merge(1, given_rows, mode)


def test_what_a_capture_was_asked_for_replaces_what_it_was_not():
    assert one(Standing.FILLED, PutMode.CAPTURE).repeated is None
    assert one(Standing.CARRIED, PutMode.CAPTURE).repeated is None
    assert one(Standing.CARRIED, PutMode.CAPTURE).close.all() and one(Standing.FILLED, PutMode.CAPTURE).split.all()


@pytest.mark.parametrize(
    ("standing", "mode"),
    [
        (Standing.ASKED, PutMode.CAPTURE),
        (Standing.ASKED, PutMode.CREATE),
        (Standing.CARRIED, PutMode.UPSERT),
    ],
)
def test_two_different_rows_of_a_put_for_a_target_are_told(standing, mode):
    assert one(standing, mode).repeated == 0 and one(standing, mode, same=True).repeated is None


def test_rows_that_fill_replace_those_that_their_engine_labels_otherwise_now():
    assert one(Standing.OWN, PutMode.FILL).leave.all()
    assert one(Standing.OWN, PutMode.FILL, relabelled=True).replaced == 1
    assert one(Standing.ASKED, PutMode.FILL, relabelled=True).leave.all()
