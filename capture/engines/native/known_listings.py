"""File listings of the last native capture of a table, so that the next one puts only the difference.

A connector tells the files of a snapshot in parts (`FilePart`) whose keys name what is told of them. Here each part's
roll-up is remembered, and the listing as a whole by a mark. The next capture asks the sink whether the store still has
that listing under that mark; if so, it hands on the files that changed, and the store carries the others over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import FILE_SCHEMA, FilePart
from capture.connectors.storage.immutable_cache import OVERHEAD_BYTES
from capture.engines.native.rollup import Rollup
from capture.spi import Listing, TableHandle
from store.lru import LruCache

MAX_REMOVED: Final = 50_000  # files told to be gone; a listing that lost more is told anew
_ROLLUP_BYTES: Final = 700  # of one column of one part, about


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A part as it was told: its files, with what else marks their content, and its columns rolled up."""

    files: pa.Table
    marks: pa.Array | None
    rollups: Mapping[int, Rollup]  # by column id

    @property
    def size_bytes(self) -> int:
        """Memory held, for the cache's budget."""
        return int(self.files.nbytes) + _ROLLUP_BYTES * len(self.rollups)


@dataclass(frozen=True, slots=True)
class RememberedListing:
    """The listing of one snapshot, its parts by key."""

    snapshot_id: int
    mark: str
    shape: str
    parts: Mapping[str, ListedPart]


@dataclass(frozen=True, slots=True)
class ListingDelta:
    """The difference of a new listing from a remembered one: removed or changed paths, and new ones."""

    removed: pa.Array
    added: pa.Array


class KnownListings:
    """The last listing of each table, of the tables captured lately. Shared by the threads of a worker."""

    def __init__(self, limit_bytes: int = 256 << 20):
        self._held: LruCache[Hashable, RememberedListing] = LruCache(limit_bytes, OVERHEAD_BYTES)

    def last(self, table: TableHandle) -> RememberedListing | None:
        """The last listing, if what it says of a file still would be said."""
        remembered = self._held.get(_key(table))
        return remembered if remembered is not None and remembered.shape == _shape(table) else None

    def remember(self, table: TableHandle, mark: str, parts: Mapping[str, ListedPart]) -> None:
        """Keeps the listing of a table's snapshot, part by part, for the capture of a later one."""
        listing = RememberedListing(table.snapshot_id, mark, _shape(table), parts)
        self._held.put(_key(table), listing, sum(part.size_bytes for part in parts.values()))


def mark_of(table: TableHandle, parts: Sequence[FilePart]) -> str:
    """A name for all that is told of the files of a table in these parts."""
    keys = [_shape(table), *sorted(part.key for part in parts)]
    return hashlib.sha256("\0".join(keys).encode("utf-8", "surrogatepass")).hexdigest()


def step(
    last: RememberedListing | None, table: TableHandle, parts: Sequence[FilePart], files: pa.Table
) -> ListingDelta | None:
    """From the last listing to these parts; None where there is no such step, or it is longer than a new beginning."""
    keys = {part.key for part in parts}
    if last is None or len(keys) < len(parts) or pc.count_distinct(files["file_path"]).as_py() < files.num_rows:
        return None
    if last.snapshot_id == table.snapshot_id and last.parts.keys() != keys:
        return None  # it was told, and is told otherwise now
    old = _rows([(part.files, part.marks) for key, part in last.parts.items() if key not in keys])
    new = _rows([(part.files, part.marks) for part in parts if part.key not in last.parts])
    removed = old.filter(pc.invert(pc.is_in(old["row"], new["row"])))["file_path"]
    added = new.filter(pc.invert(pc.is_in(new["row"], old["row"])))["file_path"]
    return None if len(removed) > MAX_REMOVED else ListingDelta(_one(removed), _one(added))


def listing(mark: str, last: RememberedListing | None, delta: ListingDelta | None) -> Listing:
    """The listing as a sink is told of it."""
    if last is None or delta is None:
        return Listing(mark)
    return Listing(mark, last.snapshot_id, last.mark, tuple(delta.removed.to_pylist()))


def _rows(parts: Sequence[tuple[pa.Table, pa.Array | None]]) -> pa.Table:
    """`file_path` of each file, and `row`: all that is said of it."""
    tables = []
    for files, marks in parts:
        texts: list[Any] = [_texts(files[name]) for name in FILE_SCHEMA.names]
        texts += [] if marks is None else [marks]
        row = pc.binary_join_element_wise(*texts, "\0", null_handling="replace", null_replacement="\1")
        tables.append(pa.table({"file_path": files["file_path"], "row": row}))
    return pa.concat_tables(tables) if tables else pa.table({"file_path": pa.array([], pa.string()), "row": pa.array([], pa.string())})  # fmt: skip  # noqa: E501


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The values as texts that are equal where the values are."""
    if not pa.types.is_list(column.type):
        return column.cast(pa.string())
    if not len(pc.list_flatten(column)):  # what most files have: nothing, or nothing known
        return pc.list_value_length(column).cast(pa.string())
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())


def _key(table: TableHandle) -> tuple[str, ...]:
    return table.catalog, table.schema, table.name, table.table_id


def _shape(table: TableHandle) -> str:
    return f"{table.columns.hash}\0{sorted(table.column_ids.items())}"
