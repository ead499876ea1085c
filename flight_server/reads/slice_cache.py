"""Arrow kept ready: the rows of one table at one snapshot as a batch, found again without asking DuckDB.

A slice holds what a flight shows of one table for one way of asking (all stored rows, or those valid for a snapshot)
as of a generation of the table (`store.table_versions`). Lookups by column id, name or file path go through an index
of the slice; any other condition through Arrow's kernels, which mean the same as the SQL.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.conditions.one_table import Plan
from store.lru import LruCache

INDEX_UP_TO: Final = 50_000  # rows; beyond, building an index costs more than a filter
TOO_LARGE_FOR: Final = 30.0  # seconds that a slice which did not fit is not tried again
_ROW_COST: Final = 256  # bytes that the indexes of a row may take besides the Arrow buffers
_COLUMN_COST: Final = 256  # bytes that Arrow takes to describe the buffers of a column
_CODEC: Final = "lz4_raw"
_PACKED: Final = 1  # grows when the same stored rows are to be shown in another way


class Slice:
    """Rows of one table, in the order they are served in.

    They are copied into a single block: with one for each column and its nulls, a slice of few rows takes several times
    what is in it, and a part of something larger would keep all of that.
    """

    def __init__(self, block: pa.Buffer, schema: pa.Schema, generation: int):
        """From a record batch as an IPC message."""
        self.block, self.generation = block, generation
        self.batch = batch = pa.ipc.read_record_batch(block, schema)
        self.size = block.size + _ROW_COST * batch.num_rows + _COLUMN_COST * batch.num_columns

    @classmethod
    def of(cls, batch: pa.RecordBatch, generation: int) -> Slice:
        return cls(batch.serialize(), batch.schema, generation)

    def packed(self, mark: bytes) -> bytes:
        """It as bytes, to be kept; `unpacked` has it back."""
        return mark + self.block.size.to_bytes(8, "little") + pa.compress(self.block, _CODEC, asbytes=True)

    @classmethod
    def unpacked(cls, data: bytes, mark: bytes, schema: pa.Schema, generation: int) -> Slice | None:
        """None where it was packed under another mark."""
        if data[: len(mark)] != mark:
            return None
        size, packed = data[len(mark) : len(mark) + 8], pa.py_buffer(data)[len(mark) + 8 :]
        return cls(pa.decompress(packed, int.from_bytes(size, "little"), _CODEC), schema, generation)

    @cached_property
    def _rows_by(self) -> dict[str, Mapping[Any, Sequence[int]]]:
        return {}

    def _index(self, column: str) -> Mapping[Any, Sequence[int]]:
        index = self._rows_by.get(column)
        if index is None:
            built: dict[Any, list[int]] = {}
            for row, value in enumerate(self.batch.column(column).to_pylist()):
                built.setdefault(value, []).append(row)
            built.pop(None, None)  # null equals nothing
            index = self._rows_by[column] = built
        return index

    def select(self, wanted: Plan, limit: int | None = None) -> pa.RecordBatch:
        """The rows that a plan keeps, all columns."""
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
    """The rows of these numbers, which grow; nothing is copied where none is left out between them."""
    count = len(numbers)
    if not count or numbers[-1] - numbers[0] == count - 1:
        return batch.slice(int(numbers[0]) if count else 0, count)
    return batch.take(pa.array(numbers))


def mark_of(schema: pa.Schema) -> bytes:
    """A version tag of packed rows, different for each schema and each version of the format."""
    return hashlib.sha256(b"%d" % _PACKED + schema.serialize().to_pybytes()).digest()[:8]


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table as a single batch."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], type) for type in table.schema.types], schema=table.schema)
    return pa.concat_batches(batches)


SliceKey = tuple[str, int, int | None, bool]  # flight, table key, snapshot asked for, stale rows allowed


class SliceCache:
    """Slices within a budget of bytes. The first look at a slice only notes it: what is asked once is not kept."""

    def __init__(self, budget: int):
        self.largest = budget // 4
        self._slices: LruCache[SliceKey, Slice] = LruCache(budget)
        self._seen: LruCache[SliceKey, bool] = LruCache(65_536)
        self._too_large: LruCache[SliceKey, float] = LruCache(65_536)
        self._loading: set[SliceKey] = set()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._slices.size

    def has(self, key: SliceKey) -> bool:
        """True if a slice is cached, of any generation."""
        return self._slices.get(key) is not None

    @property
    def is_half_full(self) -> bool:
        return self.used > self._slices.limit // 2

    def get(
        self, key: SliceKey, generation: Callable[[], int], load: Callable[[int], pa.RecordBatch | None],
        unpack: Callable[[int], Slice | None] = lambda _: None,
    ) -> Slice | None:  # fmt: skip
        """The slice as of the table's generation now; None where DuckDB is to be asked.

        Args:
            key: What the slice is of.
            generation: The table's generation at this moment.
            load: Reads the slice, unless it has more bytes than it is given.
            unpack: The slice as of a generation, where it was packed.
        """
        now = generation()
        found = self._slices.get(key)
        if found is not None and found.generation == now:
            return found
        worth = self.largest > 0 and self._worth_loading(key)
        if (unpacked := unpack(now)) is not None:
            if worth:
                self.put(key, unpacked)
            return unpacked
        if not worth:
            return None
        with self._lock:
            if key in self._loading:
                return None
            self._loading.add(key)
        try:
            batch = load(self.largest)
        finally:
            with self._lock:
                self._loading.discard(key)
        if batch is None or not self.put(key, made := Slice.of(batch, now)):
            self._too_large.put(key, time.monotonic())
            self._slices.drop(key)
            return None
        return made

    def put(self, key: SliceKey, made: Slice) -> bool:
        """Keeps a slice unless it is too large."""
        if made.size > self.largest:
            return False
        self._slices.put(key, made, made.size)
        return True

    def _worth_loading(self, key: SliceKey) -> bool:
        if self._seen.get(key) is None:
            self._seen.put(key, True)
            return False
        failed = self._too_large.get(key)
        return failed is None or time.monotonic() - failed > TOO_LARGE_FOR
