"""Facts about the files and the columns of a snapshot that no condition changes, for estimates; cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flight_server.planning.answers import has_other_rows
from flight_server.planning.listings import Listing
from flight_server.planning.merged_sketches import MergedSketches
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection
from store.duckdb.lru import LruCache
from store.history.file_spans import listed_rows
from store.model import sketches
from store.model.columns import THETA
from store.model.freshness import UNCONFIRMED, is_whole_sql

Ints: TypeAlias = npt.NDArray[np.int64]
FactCache: TypeAlias = LruCache[tuple[int, int, int | None], Any]
"""(table key, snapshot id, column id) → facts; those of the files have no column id."""


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


class SnapshotFacts:
    """The facts of a snapshot, read as they are needed.

    Args:
        listing: The listing that the cursor's transaction sees.

    Attributes:
        files: Facts about its files.
    """

    def __init__(self, cache: FactCache, cursor: Connection, table_key: int, listing: Listing):
        self._cache, self._cursor, self._key, self._listing = cache, cursor, table_key, listing
        self.files: FileFacts = self._cached(None, self._read_files)

    def _cached(self, column_id: int | None, read: Callable[[], Any]) -> Any:
        found = self.found(column_id)
        if found is None:
            found = read()
            self._cache.put((self._key, self._listing.snapshot_id, column_id), found, found.nbytes + 1)
        return found

    def found(self, column_id: int | None) -> Any:
        """Cached facts about a column; None if there are none."""
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

    def columns(self, ids: Sequence[int]) -> dict[int, ColumnFacts]:
        """Facts about columns, by their ids."""
        return {id: self._cached(id, lambda id=id: self._read_column(id)) for id in ids}  # type: ignore[misc]

    def _read_column(self, column_id: int) -> ColumnFacts:
        paths = self.files.paths
        rows: Ints = np.full(len(paths), -1, np.int64)
        nulls, scanned = rows.copy(), rows.copy()
        found = query(self._cursor, _counts_sql(self._key, self._listing, column_id))
        found = found.filter(pc.is_in(found["file_path"], paths))
        at = as_numpy(pc.index_in(found["file_path"], paths))
        for values, name in ((rows, "row_count"), (nulls, "null_count"), (scanned, "bytes_scanned")):
            values[at] = as_numpy(found[name].fill_null(-1))
        return ColumnFacts(self._listing.generation, rows, nulls, scanned, self._read_sketches(column_id))

    def _read_sketches(self, column_id: int) -> MergedSketches:
        paths = self.files.paths
        column = self._listing.columns.of_id(column_id)
        data: dict[int, bytes] = {}
        if "file_sketches" in self._listing.positions and column is not None and column.type is not None:
            stored = query(self._cursor, _sketches_sql(self._key, self._listing, column_id), [str(column.type)])
            places = pc.index_in(stored["file_path"], paths).to_pylist()
            rows = zip(places, stored["data"].to_pylist(), stored["params"].to_pylist(), strict=True)
            data = {at: each for at, each, params in rows if at is not None and not sketches.is_partial(params)}
        return MergedSketches(len(paths), data)


def as_numpy(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """Values without nulls as a NumPy array."""
    return values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)


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
