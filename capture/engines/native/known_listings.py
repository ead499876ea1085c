"""Cache of the newest file listing of each table, so that the next native capture puts only the difference.

A connector lists the files of a snapshot in parts (`FilePart`), each keyed by a digest of its rows. The cache holds the
roll-ups of each part and the mark (digest) of the whole listing. If the store still has a listing with that mark, the
next capture puts only the files that changed, and the store carries the others over.
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
from capture.engines.rollup import Rollup
from capture.spi import TableHandle
from store.duckdb.lru import LruCache

MAX_REMOVED: Final = 50_000  # removed files in a delta; above, a full listing is put
_ROWS: Final = pa.schema({"file_path": pa.string(), "row": pa.string()})
_ROLLUP_BYTES: Final = 700  # memory of the roll-up of one column of one part, estimated


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A listed part: its files, the marks of their content, and the roll-ups of its columns, if they were needed."""

    files: pa.Table
    marks: pa.Array | None
    rollups: Mapping[int, Rollup] | None  # by column id

    @property
    def size_bytes(self) -> int:
        """Estimated memory, for the cache's budget."""
        return int(self.files.nbytes) + _ROLLUP_BYTES * len(self.rollups or ())


@dataclass(frozen=True, slots=True)
class RememberedListing:
    """The listing of one snapshot.

    Attributes:
        mark: Digest of the listing, see `mark_of`.
        schema_key: Schema and column ids of the table when it was listed.
        parts: The listed parts by `FilePart.key`.
    """

    snapshot_id: int
    mark: str
    schema_key: str
    parts: Mapping[str, ListedPart]


@dataclass(frozen=True, slots=True)
class ListingDelta:
    """Difference between a new listing and a cached one: removed and added paths; changed files are in both."""

    removed: pa.Array
    added: pa.Array


class KnownListings:
    """LRU cache of the newest listing of each table. Shared by the threads of a worker."""

    def __init__(self, limit_bytes: int = 256 << 20):
        self._listings: LruCache[Hashable, RememberedListing] = LruCache(limit_bytes, OVERHEAD_BYTES)

    def last(self, table: TableHandle) -> RememberedListing | None:
        """The newest listing of the table; None if there is none or the schema changed since."""
        listing = self._listings.get(_key(table))
        return listing if listing is not None and listing.schema_key == _schema_key(table) else None

    def remember(self, table: TableHandle, mark: str, parts: Mapping[str, ListedPart]) -> None:
        """Caches the listing of a table's snapshot."""
        listing = RememberedListing(table.snapshot_id, mark, _schema_key(table), parts)
        self._listings.put(_key(table), listing, sum(part.size_bytes for part in parts.values()))


def mark_of(table: TableHandle, parts: Sequence[FilePart]) -> str:
    """Digest of the listing that these parts produce, SHA-256 in hex."""
    keys = [_schema_key(table), *sorted(part.key for part in parts)]
    return hashlib.sha256("\0".join(keys).encode("utf-8", "surrogatepass")).hexdigest()


def delta(
    last: RememberedListing | None, table: TableHandle, parts: Sequence[FilePart], files: pa.Table
) -> ListingDelta | None:
    """Computes the difference between a cached listing and new parts; None if a full listing is needed or cheaper."""
    keys = {part.key for part in parts}
    if last is None or len(keys) < len(parts) or pc.count_distinct(files["file_path"]).as_py() < files.num_rows:
        return None
    if last.snapshot_id == table.snapshot_id and last.parts.keys() != keys:
        return None  # same snapshot, but its content changed
    old = _rows([part for key, part in last.parts.items() if key not in keys])
    new = _rows([part for part in parts if part.key not in last.parts])
    removed = old.filter(pc.invert(pc.is_in(old["row"], new["row"])))["file_path"]
    added = new.filter(pc.invert(pc.is_in(new["row"], old["row"])))["file_path"]
    return None if len(removed) > MAX_REMOVED else ListingDelta(removed.combine_chunks(), added.combine_chunks())


def _rows(parts: Sequence[ListedPart | FilePart]) -> pa.Table:
    """Table of `file_path` and `row`, all values of a file as one string."""
    tables = [_ROWS.empty_table()]
    for part in parts:
        texts: list[Any] = [_texts(part.files[name]) for name in FILE_SCHEMA.names]
        texts += [] if part.marks is None else [part.marks]
        row = pc.binary_join_element_wise(*texts, "\0", null_handling="replace", null_replacement="\1")
        tables.append(pa.table({"file_path": part.files["file_path"], "row": row}))
    return pa.concat_tables(tables)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Strings that are equal if and only if the values are."""
    if not pa.types.is_list(column.type):
        return column.cast(pa.string())
    if not len(pc.list_flatten(column)):  # the usual case: only empty lists and nulls
        return pc.list_value_length(column).cast(pa.string())
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())


def _key(table: TableHandle) -> tuple[str, ...]:
    return table.catalog, table.schema, table.name, table.table_id


def _schema_key(table: TableHandle) -> str:
    return f"{table.columns.hash}\0{sorted(table.column_ids.items())}"
