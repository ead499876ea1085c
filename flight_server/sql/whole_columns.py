"""Columns of whole flights, kept for statements that ask for all tables at once: those of dashboards, again and again.

A set of columns is kept once it is read for the second time while nothing is written, until the next write, within a
budget. Texts are dictionaries: they repeat, and DuckDB groups and compares their codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from store.lru import LruCache

MAX_BYTES: Final = 64 << 20  # of all that is kept
NOT_AGAIN_FOR_S: Final = 300.0  # that columns which were too large are not tried again
_REMEMBERED: Final = 1024  # sets of columns that were asked for once
Key: TypeAlias = tuple[str, str | None, tuple[str, ...]]
"""Flight, snapshot, columns."""


class WholeColumns:
    """Columns of flights as of the newest commit.

    Args:
        epoch: the number of the newest commit.
        most_bytes: the budget; 0 keeps nothing.
    """

    def __init__(self, epoch: Callable[[], int], most_bytes: int):
        self._epoch = epoch
        self._kept: LruCache[Key, tuple[int, pa.Table]] = LruCache(min(most_bytes, MAX_BYTES))
        self._too_large: LruCache[Key, float] = LruCache(_REMEMBERED)
        self._asked: LruCache[Key, int] = LruCache(_REMEMBERED)

    def get(self, key: Key, read: Callable[[int], pa.Table | None]) -> pa.Table | None:
        """Finds the columns, or reads them where they are worth keeping.

        Args:
            key: The columns wanted.
            read: Reads them; None where they have more bytes than its argument.

        Returns:
            The columns in one chunk; None where they are asked for the first time, or are too large.
        """
        epoch = self._epoch()
        found = self._kept.get(key)
        if found is not None and found[0] == epoch:
            return found[1]
        if self._asked.get(key) != epoch:
            self._asked.put(key, epoch)
            return None
        failed = self._too_large.get(key)
        if failed is not None and time.monotonic() - failed < NOT_AGAIN_FOR_S:
            return None
        table = read(self._kept.limit)
        if table is None:
            self._too_large.put(key, time.monotonic())
            return None
        columns = [_encoded(column) for column in table.columns]
        # one chunk: an answer taken from it is one message, and each message costs as much as thousands of rows
        encoded = pa.table(columns, names=table.column_names).combine_chunks()
        if self._epoch() == epoch:
            self._kept.put(key, (epoch, encoded), encoded.nbytes)
        return encoded


def _encoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_string(column.type):
        return column
    encoded = pc.dictionary_encode(column).unify_dictionaries()
    few = encoded.num_chunks == 0 or len(encoded.chunk(0).dictionary) <= len(column) // 4
    return encoded if few else column
