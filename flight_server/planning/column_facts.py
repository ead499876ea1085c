"""Facts about the files and the columns of a snapshot that no condition changes, for estimates; cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flight_server.planning.answers import has_other_rows
from flight_server.planning.listings import Listing, data_files
from flight_server.planning.merged_sketches import MergedSketches
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection
from store.duckdb.lru import LruCache
from store.history.file_spans import listed_rows
from store.model import sketches
from store.model.columns import THETA
from store.model.freshness import is_whole_sql
from store.model.predicates.buckets import Bucket, bucket_sql
from store.model.predicates.file_counts import COLUMNS, UNKNOWN, ColumnCounts, Mask
from store.model.predicates.plain_conditions import Column

Ints: TypeAlias = npt.NDArray[np.int64]
FactCache: TypeAlias = LruCache[tuple[int, int, str, int], Any]
"""(table key, snapshot id, what, column id) → facts."""

_FILES, _COUNTS, _SKETCHES = "files", "counts", "sketches"
_NO_COLUMN: Final = -1
_COUNTED: Final = ("bytes_scanned", *COLUMNS)


class _Facts(Protocol):
    @property
    def generation(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class FileFacts:
    """Facts about the data files of a snapshot that do not depend on the condition; -1 is unknown.

    Attributes:
        paths: Paths of the files.
        rows: Rows of each file.
        sizes: Its bytes.
        whole: Mask of the files whose rows are known, in a record that is sure.
        partitions: Field with a bucket transform → its bucket in each file.
        contradicted: The data was found to have another number of rows than the metadata says.
        row_count: Rows of the table, where its record is sure; else None.
    """

    generation: int
    paths: pa.Array
    rows: Ints
    sizes: Ints
    whole: Mask
    partitions: Mapping[Bucket, Ints]
    contradicted: bool
    row_count: int | None

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        arrays = (self.rows, self.sizes, self.whole, *self.partitions.values())
        return int(self.paths.nbytes) + sum(each.nbytes for each in arrays)


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column, for each file in the order of `FileFacts.paths`.

    Attributes:
        counts: Counts and bounds.
        scanned: Compressed bytes of the column, -1 where not known.
    """

    generation: int
    counts: ColumnCounts
    scanned: Ints

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.counts.nbytes + self.scanned.nbytes


@dataclass(frozen=True)
class ColumnSketches:
    """The sketches of a column's values, for each file in the order of `FileFacts.paths`."""

    generation: int
    merged: MergedSketches

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.merged.nbytes


class SnapshotFacts:
    """The facts of a snapshot, read as they are needed.

    Args:
        listing: The listing that the cursor's transaction sees.

    Attributes:
        files: Facts about its files.
    """

    def __init__(self, cache: FactCache, cursor: Connection, table_key: int, listing: Listing):
        self._cache, self._cursor, self._key, self._listing = cache, cursor, table_key, listing
        self.files: FileFacts = self._cached(_FILES, _NO_COLUMN, self._read_files)

    def counts(self, column: Column) -> ColumnFacts:
        """Counts and bounds of a column."""
        found: ColumnFacts = self._cached(_COUNTS, column.id, lambda: self._read_counts(column))
        return found

    def sketches(self, column: Column) -> MergedSketches:
        """The sketches of a column."""
        found: ColumnSketches = self._cached(_SKETCHES, column.id, lambda: self._read_sketches(column))
        return found.merged

    def found_sketches(self, column: Column) -> MergedSketches | None:
        """The sketches of a column if they are cached."""
        found = self._found(_SKETCHES, column.id)
        return None if found is None else found.merged

    def _cached(self, what: str, column_id: int, read: Callable[[], _Facts]) -> Any:
        found = self._found(what, column_id)
        if found is None:
            found = read()
            self._cache.put((self._key, self._listing.snapshot_id, what, column_id), found, found.nbytes + 1)
        return found

    def _found(self, what: str, column_id: int) -> Any:
        found = self._cache.get((self._key, self._listing.snapshot_id, what, column_id))
        return found if found is not None and found.generation == self._listing.generation else None

    def _read_files(self) -> FileFacts:
        listing = self._listing
        fields = list(dict.fromkeys(field for fields in listing.buckets.values() for field in fields))
        numbers = [f"coalesce({bucket_sql(field, 's')}, {UNKNOWN}) AS b{at}" for at, field in enumerate(fields)]
        columns = ["s.file_path", "s.row_count", "s.size_bytes", f"{is_whole_sql('s')} AS whole", *numbers]
        found = query(self._cursor, f"SELECT {', '.join(columns)} {data_files(self._key, listing.positions)}")
        ((contradicted,),) = self._cursor.execute(f"SELECT {has_other_rows(self._key, listing)}").fetchall()
        counted = self._cursor.execute(
            "SELECT s.row_count FROM stats_tables s"
            f" WHERE s.table_key = ? AND s.snapshot_id = ? AND {is_whole_sql('s')}",
            [self._key, listing.snapshot_id],
        ).fetchall()
        rows, sizes = (found[name].fill_null(UNKNOWN).to_numpy() for name in ("row_count", "size_bytes"))
        return FileFacts(
            listing.generation,
            found["file_path"].combine_chunks(),
            rows,
            sizes,
            found["whole"].to_numpy() & (rows != UNKNOWN),
            {field: found[f"b{at}"].to_numpy() for at, field in enumerate(fields)},
            bool(contradicted),
            counted[0][0] if counted and not contradicted else None,
        )

    def _read_counts(self, column: Column) -> ColumnFacts:
        pos = self._listing.positions.get("stats.file_columns", -1)
        rows = listed_rows("stats.file_columns", self._key, pos, f"s.column_id = {int(column.id)}")
        columns = ", ".join(f"s.{name}" for name in ("file_path", *_COUNTED))
        found = query(self._cursor, f"SELECT {columns} {rows}")
        found = found.take(pc.index_in(self.files.paths, found["file_path"].combine_chunks()))
        unsampled = pc.equal(found["row_groups_sampled"].fill_null(0), 0)
        scanned = pc.if_else(unsampled, found["bytes_scanned"], None).fill_null(UNKNOWN)
        return ColumnFacts(self._listing.generation, ColumnCounts.of(found, column.type), scanned.to_numpy())

    def _read_sketches(self, column: Column) -> ColumnSketches:
        data: dict[int, bytes] = {}
        if "file_sketches" in self._listing.positions and column.type is not None:
            stored = query(self._cursor, _sketches_sql(self._key, self._listing, column.id), [str(column.type)])
            places = pc.index_in(stored["file_path"], self.files.paths).to_pylist()
            rows = zip(places, stored["data"].to_pylist(), stored["params"].to_pylist(), strict=True)
            data = {at: each for at, each, params in rows if at is not None and not sketches.is_partial(params)}
        return ColumnSketches(self._listing.generation, MergedSketches(len(self.files.paths), data))


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
