"""Estimates of what a condition leaves of a table: rows, bytes, and the nulls and distinct values of the files kept.

The files are those that the plan of a scan keeps (`planning/scan_plan.py`). The limits of their rows come from counts
and bounds (`store.model.predicates.row_counts`) and are certain: they hold for readers that order NaN above all numbers
and for those where NaN compares with nothing. Where files are not counted for sure there is no upper limit. Distinct
values are counted by the sketches of the kept files, since the count of a whole table says little of a few of them.

What does not depend on the condition is cached for each column of a snapshot (`column_facts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from flight_server.core.reads.stream import never
from flight_server.planning import file_keys
from flight_server.planning.column_facts import ColumnFacts, FactCache, Ints, SnapshotFacts
from flight_server.planning.listings import Listing
from flight_server.planning.merged_sketches import MergedSketches
from flight_server.planning.scan_plan import ScanPlanner
from store.duckdb.database import Connection
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry
from store.model.predicates import row_counts
from store.model.predicates.file_counts import UNKNOWN, ColumnCounts, FileDecisions, Mask
from store.model.predicates.literals import Scalar
from store.model.predicates.plain_conditions import Column, Constant, comparisons, equalities, plain
from store.model.predicates.row_counts import Rows
from store.model.predicates.tree import Node

CACHE_BYTES: Final = 256 << 20
"""Most bytes of cached facts; those of a column that has more are read for each estimate."""

Interval: TypeAlias = dict[str, int | None]
"""`estimate`, `low` and `high`; the last is null if there is no limit, the first if nothing is known."""


@dataclass(frozen=True)
class Estimate:
    """The answer to how much a condition leaves of a table.

    Attributes:
        named: Ids of the columns that the condition and the request name.
        body: The answer as JSON.
    """

    named: tuple[int, ...]
    body: dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """The files that a condition keeps.

    Attributes:
        places: Index of each file in `FileFacts.paths`, ascending.
        rows: Rows of each file, 0 where not known.
        known: Mask of the files whose rows are known.
        sure: Mask of the files whose rows are known for sure.
        left: Numbers of rows of each file that satisfy the condition.
    """

    places: Ints
    rows: Ints
    known: Mask
    sure: Mask
    left: Rows


class Estimator:
    """Estimates by stored statistics."""

    def __init__(self, planner: ScanPlanner):
        self._planner = planner
        self._facts: FactCache = LruCache(CACHE_BYTES)

    def estimate(
        self,
        table: TableEntry,
        node: Node | None,
        columns: Sequence[str] | None,
        snapshot: str | int,
        is_cancelled: Callable[[], bool] = never,
    ) -> Estimate:
        """Estimates what a condition leaves.

        Args:
            node: The condition; None for all rows.
            columns: Names of the columns to be read; None for all.
            snapshot: "current" or an id.

        Raises:
            InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN; BAD_LITERAL: a literal cannot be read as its column's
                type.
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def estimated(cursor: Connection, listing: Listing) -> Estimate:
            estimation = _Estimation(self._facts, cursor, table, listing, node)
            return estimation.of(estimation.columns(columns), every=not columns)

        return self._planner.listings.reading(table, snapshot, estimated, is_cancelled)

    def of_each(
        self,
        table: TableEntry,
        node: Node | None,
        column_ids: Sequence[int | None],
        snapshot_id: int,
        is_cancelled: Callable[[], bool] = never,
    ) -> list[Estimate]:
        """Estimates what a condition leaves, for each of some columns by itself.

        Args:
            column_ids: Their ids; None for the table without its columns, as for a column that the snapshot lacks.

        Raises:
            See `estimate`.
        """

        def estimated(cursor: Connection, listing: Listing) -> list[Estimate]:
            estimation = _Estimation(self._facts, cursor, table, listing, node)
            named = [None if id is None else listing.columns.of_id(id) for id in column_ids]
            return [estimation.of([column] if column else [], every=column is None) for column in named]

        return self._planner.listings.reading(table, snapshot_id, estimated, is_cancelled)


class _Estimation:
    """One estimate, within a read of the store."""

    def __init__(
        self,
        cache: FactCache,
        cursor: Connection,
        table: TableEntry,
        listing: Listing,
        node: Node | None,
    ):
        self._listing, self._cursor, self._key = listing, cursor, table.table_key
        self._facts = SnapshotFacts(cache, cursor, table.table_key, listing)
        self._files = self._facts.files
        self._tree = None if node is None else plain(node, listing.columns.find)
        self._named = (
            () if self._tree is None else tuple(dict.fromkeys(each.column for each in comparisons(self._tree)))
        )

    def columns(self, names: Sequence[str] | None) -> list[Column]:
        """The columns of names; None for all.

        Raises:
            InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN.
        """
        columns = self._listing.columns
        if names is None:
            return columns.all()
        return list(dict.fromkeys(columns.find(name) for name in names))

    def of(self, columns: Sequence[Column], *, every: bool) -> Estimate:
        """The estimate for columns.

        Args:
            every: All columns are to be read, which the caller has not named.
        """
        listing, kept = self._listing, self._kept
        facts = {column: self._facts.counts(column) for column in columns}
        body = {
            "snapshot_id": listing.snapshot_id,
            "files": len(kept.places),
            "files_all": listing.totals["files"],
            "bytes_to_read": self._bytes_to_read(None if every else list(facts.values())),
            "row_count": dict(self._rows_left),
            "columns": {column.name: self._of_column(column, facts[column].counts) for column in columns},
        }
        named = dict.fromkeys(column.id for column in (*self._named, *(() if every else columns)))
        return Estimate(tuple(named), body)

    @cached_property
    def _kept(self) -> Kept:
        files, merges = self._files, self._listing.facts.merges_rows
        # Of files whose rows are merged when read, no rows are those that readers see.
        tree = Constant.UNDECIDED if merges and self._tree is not None else self._tree
        rows = np.maximum(files.rows, 0)
        if tree is None:
            at, left = np.arange(len(rows)), row_counts.all_of(rows)
        else:
            columns = {} if merges else {column.id: self._facts.counts(column).counts for column in self._named}
            decided = FileDecisions(tree, files.rows, columns, files.partitions, self._listing.buckets)
            at, left = np.flatnonzero(decided.may), decided.numbers()
            for column, values in equalities(tree):
                at = self._having(at, column, values)
        sure = files.whole & (not files.contradicted) & (not merges)
        return Kept(
            at, rows[at], files.rows[at] != UNKNOWN, sure[at], Rows(left.low[at], left.high[at], left.guess[at])
        )

    def _having(self, places: Ints, column: Column, values: Sequence[Scalar]) -> Ints:
        """The files that may have one of some values, by sketches."""
        found, hashes = self._facts.found_sketches(column), file_keys.hashes_of(column, values)
        if found is not None and hashes is not None and len(places) <= file_keys.MAX_FILES:
            return places[found.may_have(hashes)[places]]
        files = pa.table({"file_path": self._files.paths.take(pa.array(places)), "at": places})
        kept = file_keys.having(files, self._cursor, self._key, self._listing.positions, column, values)
        return kept["at"].to_numpy()

    # Rows.

    @cached_property
    def _rows_left(self) -> Interval:
        kept, whole = self._kept, self._files.row_count
        low, high = int(kept.left.low[kept.sure].sum()), int(kept.left.high.sum())
        guess = float(kept.left.guess.sum())
        if self._tree is None and whole is not None and not kept.sure.all():
            return {"estimate": whole, "low": whole, "high": whole}
        if kept.sure.all():
            return {"estimate": round(min(max(guess, low), high)), "low": low, "high": high}
        limit = whole
        if self._listing.facts.merges_rows and kept.known.all():
            limit = high if limit is None else min(limit, high)  # merged rows are fewer
        return _limited(guess if kept.known.any() else None, low, limit)

    def _bytes_to_read(self, facts: Collection[ColumnFacts] | None) -> int | None:
        """The compressed bytes of columns in the kept files, at most the files' sizes; None if not known.

        Args:
            facts: Those of the columns; None for all columns.
        """
        at = self._kept.places
        sizes = self._files.sizes[at]
        if facts is None:
            return None if (sizes == UNKNOWN).any() else sum(sizes.tolist())
        scanned = [each.scanned[at] for each in facts]
        if any((each == UNKNOWN).any() for each in scanned):
            return None
        most = np.where(sizes == UNKNOWN, np.iinfo(np.int64).max, sizes)
        total = np.minimum(np.sum(scanned, axis=0), most) if scanned else np.zeros(len(at), np.int64)
        return sum(total.tolist())

    # Columns.

    def _of_column(self, column: Column, counts: ColumnCounts) -> dict[str, Any]:
        kept = self._kept
        known = counts.counted & (counts.nulls != UNKNOWN)
        counted = known[kept.places] & (counts.rows[kept.places] == kept.rows) & kept.sure
        nulls = np.where(counted, counts.nulls[kept.places], 0)
        return {
            "null_count": _null_count(nulls, counted, kept),
            "ndv": _distinct(self._facts.sketches(column), nulls, kept),
        }


def _null_count(nulls: Ints, counted: Mask, kept: Kept) -> Interval | None:
    """The nulls of the kept files; None if nothing is known of any of them."""
    low = int(nulls.sum())
    if counted.all():
        return {"estimate": low, "low": low, "high": low}
    if not counted.any():
        return None
    others = int(kept.rows[~counted].sum())
    share = low / max(1, int(kept.rows[counted].sum()))
    return _limited(low + share * others, low, low + others if kept.sure.all() else None)


def _distinct(merged: MergedSketches, nulls: Ints, kept: Kept) -> dict[str, float | int] | None:
    """The distinct values of the kept files; None if one with rows has no sketch."""
    empty = kept.sure & (kept.rows == 0)
    known = merged.known[kept.places]
    if not (known | empty).all():
        return None
    found = merged.estimate(np.sort(kept.places[known & ~empty]))
    values = int(kept.rows.sum() - nulls.sum()) if kept.sure.all() else None
    low, estimate, high = (
        number if values is None else min(number, values) for number in (found.lower, found.ndv, found.upper)
    )
    if found.exact:
        return {"estimate": int(estimate), "low": int(low), "high": int(high)}
    return {"estimate": estimate, "low": low, "high": high}


def _limited(guess: float | None, low: int, high: int | None) -> Interval:
    """An interval whose upper limit may be unknown."""
    estimate = None if guess is None else round(max(guess, low) if high is None else min(max(guess, low), high))
    return {"estimate": estimate, "low": low, "high": high}
