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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.reads.streams import never
from flight_server.planning import file_keys
from flight_server.planning.column_facts import ColumnFacts, FactCache, Ints, SnapshotFacts, as_numpy
from flight_server.planning.listings import Listing
from flight_server.planning.merged_sketches import MergedSketches
from flight_server.planning.scan_plan import ScanPlanner
from flight_server.planning.scan_query import Query
from store.duckdb.database import Connection
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry
from store.model.predicates import row_counts
from store.model.predicates.literals import Scalar
from store.model.predicates.pruning import Column, Comparison, FileCondition
from store.model.predicates.row_counts import Rows
from store.model.predicates.tree import Node

CACHE_BYTES: Final = 256 << 20
"""Most bytes of cached facts; those of a column that has more are read for each estimate."""

Mask: TypeAlias = npt.NDArray[np.bool_]
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
        table: The answer of `Query.counted`.
        rows: Rows of each file, 0 where not known.
        sure: Mask of the files whose number of rows is known for sure.
        places: Index of each file in `FileFacts.paths`.
    """

    table: pa.Table
    rows: Ints
    sure: Mask
    places: Ints


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
        self._listing = listing
        self._facts = SnapshotFacts(cache, cursor, table.table_key, listing)
        self._files = self._facts.files
        self._node, self._question = node, Query(cursor, table.table_key, listing, node, counted=True)

    def columns(self, names: Sequence[str] | None) -> list[Column]:
        """The columns of names; None for all.

        Raises:
            InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN.
        """
        columns = self._listing.columns
        return columns.all() if names is None else [columns.find(name) for name in dict.fromkeys(names)]

    def of(self, columns: Sequence[Column], *, every: bool) -> Estimate:
        """The estimate for columns.

        Args:
            every: All columns are to be read, which the caller has not named.
        """
        listing, kept = self._listing, self._kept_files
        read = {column.name: column for column in columns}
        facts = self._facts.columns([column.id for column in read.values()])
        body = {
            "snapshot_id": listing.snapshot_id,
            "files": kept.table.num_rows,
            "files_all": listing.totals["files"],
            "bytes_to_read": _bytes_to_read(kept, None if every else list(facts.values())),
            "row_count": dict(self._rows_left),
            "columns": {name: self._of_column(facts[column.id], kept) for name, column in read.items()},
        }
        named = dict.fromkeys([*self._question.columns, *(() if every else facts)])
        return Estimate(tuple(named), body)

    @cached_property
    def _kept_files(self) -> Kept:
        return self._kept(self._question)

    @cached_property
    def _rows_left(self) -> Interval:
        return self._row_count(self._kept_files, self._question.condition, self._node)

    def _kept(self, question: Query) -> Kept:
        table = question.counted(self._having).combine_chunks()
        known = pc.and_(table["whole"], pc.is_valid(table["row_count"]))
        sure = as_numpy(known) & (not self._files.contradicted) & (not self._listing.facts.merges_rows)
        rows = as_numpy(table["row_count"].fill_null(0))
        return Kept(table, rows, sure, as_numpy(pc.index_in(table["file_path"], self._files.paths)).astype(np.int64))

    def _having(self, files: pa.Table, column: Column, values: Sequence[Scalar]) -> pa.Table | None:
        """The files that may have one of some values, by cached sketches; None if they are not cached."""
        facts = self._facts.found(column.id)
        hashes = file_keys.hashes_of(column, values)
        if facts is None or hashes is None or files.num_rows > file_keys.MAX_FILES:
            return None
        places = pc.index_in(files["file_path"], self._files.paths)
        return files.filter(pa.array(facts.sketches.may_have(hashes)).take(places.combine_chunks()))

    # Rows.

    def _row_count(self, kept: Kept, condition: FileCondition | None, node: Node | None) -> Interval:
        found = _matching(kept, condition)
        low = int(found.low[kept.sure].sum())
        guess, high = float(found.guess.sum()), int(found.high.sum())
        whole = self._files.row_count
        if node is None and whole is not None and not kept.sure.all():
            return {"estimate": whole, "low": whole, "high": whole}
        if kept.sure.all():
            return {"estimate": round(min(max(guess, low), high)), "low": low, "high": high}
        limit = whole
        if self._listing.facts.merges_rows and not kept.table["row_count"].null_count:
            limit = high if limit is None else min(limit, high)  # merged rows are fewer
        return _limited(guess if kept.table.num_rows > kept.table["row_count"].null_count else None, low, limit)

    # Columns.

    def _of_column(self, facts: ColumnFacts, kept: Kept) -> dict[str, Any]:
        at = kept.places
        counted = (facts.nulls[at] >= 0) & (facts.rows[at] == kept.rows) & kept.sure
        nulls = np.where(counted, facts.nulls[at], 0)
        return {
            "null_count": _null_count(nulls, counted, kept),
            "ndv": _distinct(facts.sketches, nulls, kept),
        }


def _matching(kept: Kept, condition: FileCondition | None) -> Rows:
    """The numbers of rows of each file that satisfy a condition."""
    rows = kept.rows
    if condition is None:
        return row_counts.all_of(rows)
    numbers = condition.tests

    def of(name: str, unknown: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column = kept.table[name]
        return np.where(as_numpy(pc.is_null(column)), unknown, as_numpy(column.fill_null(0)))

    def of_test(test: Comparison) -> Rows:
        at = numbers[test]
        low, high = of(f"l{at}", np.zeros_like(rows)), of(f"h{at}", rows)
        return Rows(low.astype(np.int64), high.astype(np.int64), of(f"e{at}", (low + high) / 2).astype(np.float64))

    values = {id: of(f"v{id}", rows).astype(np.int64) for id in condition.columns}
    found = row_counts.satisfying(condition.tree, rows, of_test, values)
    matches = as_numpy(kept.table["matches"])
    return Rows(np.where(matches, rows, found.low), found.high, np.where(matches, rows, found.guess))


def _bytes_to_read(kept: Kept, facts: Collection[ColumnFacts] | None) -> int | None:
    """The compressed bytes of columns in the kept files, at most the files' sizes; None if not known.

    Args:
        facts: Those of the columns; None for all columns.
    """
    sizes = kept.table["size_bytes"]
    if facts is None:
        return None if sizes.null_count else int(pc.sum(sizes.cast(pa.decimal128(38))).as_py() or 0)
    at = kept.places
    scanned = [each.scanned[at] for each in facts]
    if any((each < 0).any() for each in scanned):
        return None
    most = as_numpy(sizes.fill_null(np.iinfo(np.int64).max))
    total = np.minimum(np.sum(scanned, axis=0), most) if scanned else np.zeros(len(at), np.int64)
    return sum(total.tolist())


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
