"""Estimates of what a condition leaves of a table: rows, bytes, and the nulls and distinct values of the files kept.

The files are those that the plan of a scan keeps (`planning/scan_plan.py`). The limits of their rows come from counts
and bounds (`store.model.predicates.row_counts`) and are certain: they hold for readers that order NaN above all numbers
and for those where NaN compares with nothing. Where files are not counted for sure there is no upper limit. Distinct
values are counted by the sketches of the kept files, since the count of a whole table says little of a few of them.

What does not depend on the condition is cached for each column of a snapshot (`ColumnFacts`).
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
from flight_server.planning.answers import has_other_rows
from flight_server.planning.listings import Listing
from flight_server.planning.merged_sketches import MergedSketches
from flight_server.planning.scan_plan import ScanPlanner
from flight_server.planning.scan_query import Query
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection
from store.duckdb.lru import LruCache
from store.history.file_spans import listed_rows
from store.model import sketches
from store.model.catalog_entries import TableEntry
from store.model.freshness import UNCONFIRMED, is_whole_sql
from store.model.predicates import row_counts
from store.model.predicates.literals import Scalar
from store.model.predicates.pruning import Column, Comparison, FileCondition
from store.model.predicates.row_counts import Rows
from store.model.predicates.tree import Node
from store.model.schemas import THETA

CACHE_BYTES: Final = 256 << 20
"""Most bytes of cached facts; those of a column that has more are read for each estimate."""

Ints: TypeAlias = npt.NDArray[np.int64]
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
class FileFacts:
    """Facts about the files of a snapshot that do not depend on the condition.

    Attributes:
        paths: Paths of the data files.
        contradicted: The data was found to have another number of rows than the metadata says.
        row_count: Rows of the table, where its record is sure; else None.
    """

    generation: int
    paths: pa.ChunkedArray
    contradicted: bool
    row_count: int | None

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return int(self.paths.nbytes)


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column, for each file in the order of `FileFacts.paths`; -1 is unknown.

    Attributes:
        rows: Rows that the counts are of.
        nulls: Nulls among them.
        scanned: Compressed bytes of the column.
        sketches: The sketches of its values.
    """

    generation: int
    rows: Ints
    nulls: Ints
    scanned: Ints
    sketches: MergedSketches

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.rows.nbytes + self.nulls.nbytes + self.scanned.nbytes + self.sketches.nbytes


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
        self._facts: LruCache[tuple[int, int, int | None], Any] = LruCache(CACHE_BYTES)

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
        cache: LruCache[Any, Any],
        cursor: Connection,
        table: TableEntry,
        listing: Listing,
        node: Node | None,
    ):
        self._cache, self._cursor, self._key, self._listing = cache, cursor, table.table_key, listing
        self._files = self._cached(None, self._read_files)
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
        facts = self._columns([column.id for column in read.values()])
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
        sure = _numpy(known) & (not self._files.contradicted) & (not self._listing.facts.merges_rows)
        rows = _numpy(table["row_count"].fill_null(0))
        return Kept(table, rows, sure, _numpy(pc.index_in(table["file_path"], self._files.paths)).astype(np.int64))

    def _having(self, files: pa.Table, column: Column, values: Sequence[Scalar]) -> pa.Table | None:
        """The files that may have one of some values, by cached sketches; None if they are not cached."""
        facts = self._found(column.id)
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

    # What is cached.

    def _cached(self, column_id: int | None, read: Callable[[], Any]) -> Any:
        found = self._found(column_id)
        if found is None:
            found = read()
            self._cache.put((self._key, self._listing.snapshot_id, column_id), found, found.nbytes + 1)
        return found

    def _found(self, column_id: int | None) -> Any:
        found = self._cache.get((self._key, self._listing.snapshot_id, column_id))
        return found if found is not None and found.generation == self._listing.generation else None

    def _read_files(self) -> FileFacts:
        listing = self._listing
        rows = listed_rows(
            "stats.files", self._key, listing.positions["stats.files"], "coalesce(s.file_content, 'DATA') = 'DATA'"
        )
        paths = query(self._cursor, f"SELECT s.file_path {rows}")["file_path"].combine_chunks()
        ((contradicted,),) = self._cursor.execute(f"SELECT {has_other_rows(self._key, listing)}").fetchall()
        counted = self._cursor.execute(
            "SELECT s.row_count FROM stats_tables s"
            f" WHERE s.table_key = ? AND s.snapshot_id = ? AND {is_whole_sql('s')}",
            [self._key, listing.snapshot_id],
        ).fetchall()
        row_count = counted[0][0] if counted and not contradicted else None
        return FileFacts(listing.generation, paths, bool(contradicted), row_count)

    def _columns(self, ids: Sequence[int]) -> dict[int, ColumnFacts]:
        return {id: self._cached(id, lambda id=id: self._read_column(id)) for id in ids}  # type: ignore[misc]

    def _read_column(self, column_id: int) -> ColumnFacts:
        paths = self._files.paths
        rows: Ints = np.full(len(paths), -1, np.int64)
        nulls, scanned = rows.copy(), rows.copy()
        found = query(self._cursor, _counts_sql(self._key, self._listing, column_id))
        found = found.filter(pc.is_in(found["file_path"], paths))
        at = _numpy(pc.index_in(found["file_path"], paths))
        for values, name in ((rows, "row_count"), (nulls, "null_count"), (scanned, "bytes_scanned")):
            values[at] = _numpy(found[name].fill_null(-1))
        return ColumnFacts(self._listing.generation, rows, nulls, scanned, self._read_sketches(column_id))

    def _read_sketches(self, column_id: int) -> MergedSketches:
        paths = self._files.paths
        column = self._listing.columns.of_id(column_id)
        data: dict[int, bytes] = {}
        if "file_sketches" in self._listing.positions and column is not None and column.type is not None:
            stored = query(self._cursor, _sketches_sql(self._key, self._listing, column_id), [str(column.type)])
            places = pc.index_in(stored["file_path"], paths).to_pylist()
            rows = zip(places, stored["data"].to_pylist(), stored["params"].to_pylist(), strict=True)
            data = {at: each for at, each, params in rows if at is not None and not sketches.is_partial(params)}
        return MergedSketches(len(paths), data)


def _numpy(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    return values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)


def _matching(kept: Kept, condition: FileCondition | None) -> Rows:
    """The numbers of rows of each file that satisfy a condition."""
    rows = kept.rows
    if condition is None:
        return row_counts.all_of(rows)
    numbers = condition.tests

    def of(name: str, unknown: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column = kept.table[name]
        return np.where(_numpy(pc.is_null(column)), unknown, _numpy(column.fill_null(0)))

    def of_test(test: Comparison) -> Rows:
        at = numbers[test]
        low, high = of(f"l{at}", np.zeros_like(rows)), of(f"h{at}", rows)
        return Rows(low.astype(np.int64), high.astype(np.int64), of(f"e{at}", (low + high) / 2).astype(np.float64))

    values = {id: of(f"v{id}", rows).astype(np.int64) for id in condition.columns}
    found = row_counts.satisfying(condition.tree, rows, of_test, values)
    matches = _numpy(kept.table["matches"])
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
    most = _numpy(sizes.fill_null(np.iinfo(np.int64).max))
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


def _counts_sql(table_key: int, listing: Listing, column_id: int) -> str:
    """The query of a column's counts in each file, null where they are not sure."""
    pos = listing.positions.get("stats.file_columns", -1)
    rows = listed_rows("stats.file_columns", table_key, pos, f"s.column_id = {int(column_id)}")
    unsampled = "coalesce(s.row_groups_sampled, 0) = 0"
    counted = (  # doubts in bounds do not concern counts
        f"coalesce(s.completeness = 'COMPLETE', FALSE) AND {unsampled}"
        f" AND coalesce(s.confidence_level, 1) >= {UNCONFIRMED}"
    )
    return (
        "SELECT s.file_path,"
        f" CASE WHEN {counted} THEN s.row_count END AS row_count,"
        f" CASE WHEN {counted} THEN s.null_count END AS null_count,"
        f" CASE WHEN {unsampled} THEN s.bytes_scanned END AS bytes_scanned {rows}"
    )


def _sketches_sql(table_key: int, listing: Listing, column_id: int) -> str:
    """The query of a column's sketches, each beside the row of the same scan, which tells the type of its values."""
    of_column = f"s.column_id = {int(column_id)}"
    positions = listing.positions
    of_files = listed_rows("file_sketches", table_key, positions["file_sketches"], of_column)
    rows = listed_rows("stats.file_columns", table_key, positions.get("stats.file_columns", -1), of_column)
    return (
        f"SELECT k.file_path, k.data, k.params FROM (SELECT s.* {of_files}) k JOIN (SELECT s.* {rows}) s"
        " ON s.file_path = k.file_path AND s.captured_at = k.captured_at"
        f" WHERE k.role = 'NDV' AND k.sketch_type = '{THETA}' AND s.producer = 'ENGINE_COMPUTED'"
        f" AND s.logical_type = ? AND {is_whole_sql('s')}"
    )
