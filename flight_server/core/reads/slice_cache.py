"""The one cache in front of DuckDB: an LRU with a size budget.

Its main entries are slices: the rows of a flight about one table, either all stored ones or those valid for a snapshot,
as one Arrow batch. Lookups by column id, name or file path use an index of the slice; other conditions use Arrow
kernels, which are equivalent to the SQL. Records of `resolve` are entries of the same LRU. Each entry is valid for one
generation of its table (`store.duckdb.table_versions`): any commit that changes the table invalidates it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.conditions.one_table import TableCondition
from store.duckdb.lru import LruCache

INDEX_UP_TO: Final = 50_000  # rows; beyond, building an index costs more than a filter
TOO_LARGE_SECONDS: Final = 30.0  # interval between attempts to load a slice that did not fit
_ROW_BYTES: Final = 256  # estimated size of the index entries of a row
_COLUMN_BYTES: Final = 256  # estimated size of Arrow's objects for a column


class Slice:
    """Rows of one table in serving order, copied into a single buffer.

    Separate buffers for each column and null bitmap would take several times the size of a small slice, and a view of a
    larger batch would keep that batch in memory.
    """

    def __init__(self, rows: pa.RecordBatch, generation: int):
        """Copies rows.

        Args:
            rows: One table's rows of a flight at a snapshot.
            generation: The table's generation before they were read.
        """
        block = rows.serialize()
        self.generation, self.batch = generation, pa.ipc.read_record_batch(block, rows.schema)
        self.size = block.size + _ROW_BYTES * rows.num_rows + _COLUMN_BYTES * rows.num_columns
        self._rows_by: dict[str, Mapping[Any, Sequence[int]]] = {}

    def _index(self, column: str) -> Mapping[Any, Sequence[int]]:
        index = self._rows_by.get(column)
        if index is None:
            built: dict[Any, list[int]] = {}
            for row, value in enumerate(self.batch.column(column).to_pylist()):
                built.setdefault(value, []).append(row)
            built.pop(None, None)  # null equals nothing
            index = self._rows_by[column] = built
        return index

    def select(self, wanted: TableCondition, limit: int | None = None) -> pa.RecordBatch:
        """The rows that satisfy a condition, with all columns; at most `limit`, None for all."""
        batch = self.batch
        if wanted.column is not None:
            batch = self._equal(wanted.column, wanted.values)
        if wanted.kept is not None and batch.num_rows:
            batch = _rows(batch, wanted.kept(batch).to_numpy())
        return batch if limit is None else batch.slice(0, limit)

    def _equal(self, column: str, values: tuple[Any, ...]) -> pa.RecordBatch:
        if self.batch.num_rows > INDEX_UP_TO:
            keep = pc.is_in(self.batch.column(column), pa.array(values, self.batch.schema.field(column).type))
            return self.batch.filter(keep)
        index = self._index(column)
        return _rows(self.batch, sorted(row for value in values for row in index.get(value, ())))


def _rows(batch: pa.RecordBatch, numbers: Sequence[int]) -> pa.RecordBatch:
    """Takes rows by ascending numbers, without a copy if they are consecutive."""
    count = len(numbers)
    if not count or numbers[-1] - numbers[0] == count - 1:
        return batch.slice(int(numbers[0]) if count else 0, count)
    return batch.take(pa.array(numbers))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table as a single batch."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], type) for type in table.schema.types], schema=table.schema)
    return pa.concat_batches(batches)


SliceKey = tuple[str, int, int | None, bool]
"""Flight, table key, id of the requested snapshot (None for all stored rows), True if STALE rows are included."""


class Derived(NamedTuple):
    """A record of a table, valid for one generation of it."""

    table_key: int
    generation: int
    value: Any


class SliceCache:
    """A thread-safe LRU of slices and of records, with a budget in bytes; 0 turns the cache off.

    A slice is loaded at its second read only, so that one scan over all tables does not evict popular entries.
    """

    def __init__(self, budget: int):
        self.budget, self.largest = budget, budget // 4
        self._slices: LruCache[Hashable, Slice | Derived] = LruCache(budget)
        self._seen: LruCache[Hashable, bool] = LruCache(65_536)
        self._too_large: LruCache[Hashable, float] = LruCache(65_536)
        self._loading: set[SliceKey] = set()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Total size of the entries in bytes."""
        return self._slices.size

    def has(self, key: SliceKey) -> bool:
        """True if a slice of any generation is cached."""
        return self._slices.get(key) is not None

    @property
    def is_half_full(self) -> bool:
        """True once prewarming has to stop; the other half is for slices requested by readers."""
        return self.used > self._slices.limit // 2

    def derived(self, key: Hashable, generation: Callable[[int], int]) -> Derived | None:
        """A record; None if none of the current generation of its table is cached."""
        entry = self._slices.get(key)
        if isinstance(entry, Derived) and entry.generation == generation(entry.table_key):
            return entry
        return None

    def put_derived(self, key: Hashable, derived: Derived, size_bytes: int) -> None:
        """Caches a record by a key that is not a `SliceKey`."""
        self._slices.put(key, derived, size_bytes)

    def find(self, key: SliceKey, generation: int) -> Slice | None:
        """The cached slice of a generation of its table; None if there is none."""
        entry = self._slices.get(key)
        return entry if isinstance(entry, Slice) and entry.generation == generation else None

    def load(self, key: SliceKey, generation: int, read: Callable[[int], pa.RecordBatch | None]) -> Slice | None:
        """Loads a slice and caches it; None if it is too large, or another thread loads it.

        Args:
            generation: The generation of the table before this call.
            read: Reads the rows from DuckDB; returns None if they have more bytes than its argument.
        """
        with self._lock:
            if key in self._loading:
                return None
            self._loading.add(key)
        try:
            batch = read(self.largest)
        finally:
            with self._lock:
                self._loading.discard(key)
        if batch is None or not self.put(key, new := Slice(batch, generation)):
            self._too_large.put(key, time.monotonic())
            self._slices.drop(key)
            return None
        return new

    def put(self, key: SliceKey, new: Slice) -> bool:
        """Caches a slice; False if it is too large."""
        if new.size > self.largest:
            return False
        self._slices.put(key, new, new.size)
        return True

    def is_worth_loading(self, key: SliceKey | tuple[str, int]) -> bool:
        """True at the second call for a slice or an answer, if there is a cache and the slice was not too large
        lately."""
        if not self.largest:
            return False
        if self._seen.get(key) is None:
            self._seen.put(key, True)
            return False
        failed = self._too_large.get(key)
        return failed is None or time.monotonic() - failed > TOO_LARGE_SECONDS
