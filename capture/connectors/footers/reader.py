"""Reads Parquet footers: statistics of each leaf column and their reliability.

`leaf_types` has the columns and decodes values. Statistics are parsed from the Thrift bytes by `thrift.read_chunks`,
because pyarrow exposes neither exactness nor NaN counts, and crashes the process on some damaged footers. Rules:

* `min_value`/`max_value` are used if the column order is declared; the deprecated `min`/`max` only for signed numbers,
  because writers compared other types inconsistently (parquet-mr 1.8 wrote 2.00 as minimum of decimals from 1.00);
* numbers, dates, times, booleans have exact bounds. Bounds of floats skip NaN (store/SEMANTICS.md §4) and are exact as
  least and greatest number; a NaN bound is ignored, and nan_count is known only if the footer has it;
* writers known to be wrong (`writers`) have no bounds of the types concerned;
* a null count is unknown if the chunk has fewer values, or has bounds though all would be null, or if its writer is
  known to count wrongly;
* byte arrays: exactness as flagged; without a flag, exact if the writer never truncates, else unknown (null). Of
  dictionaries with nulls it is unknown: Arrow's bounds may be those of an entry that no row has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.footers.leaf_types import Bound, FooterLeaf, bound, leaves_of, writer_of
from capture.connectors.footers.metadata import parsed, read_bytes
from capture.connectors.footers.thrift import Chunk, Chunks, Kind, read_chunks
from capture.connectors.metadata.comments import comments_in
from capture.connectors.storage.places import Place, Unreadable, read_each
from store.duckdb.lru import LruCache
from store.model.errors import UpstreamError, first_line


class LeafStats(NamedTuple):
    """Statistics of one leaf over all row groups; None means unknown."""

    null_count: int | None = None
    nan_count: int | None = None
    size_bytes: int | None = None  # compressed
    lower: Any = None
    upper: Any = None
    lower_exact: bool | None = None
    upper_exact: bool | None = None


@dataclass(slots=True)
class Footer:
    """A footer: rows, leaves, and the statistics of each leaf in each row group."""

    place: Place
    row_count: int
    leaves: tuple[FooterLeaf, ...]
    whole_bytes: bool | None
    groups: list[list[Chunk]] = field(repr=False)
    positions: Mapping[str, int] = field(repr=False)  # key → index in `leaves`
    ids: Mapping[int, int] = field(repr=False)  # field id → index in `leaves`, of a scalar one if several have it
    comments: Mapping[str, str] = field(default_factory=dict, repr=False)  # key → comment of the column, by Spark
    data: bytes = field(default=b"", repr=False)  # the Thrift bytes it was made from

    def leaf(self, key: str) -> FooterLeaf | None:
        """The column with a key; None if the file does not have it."""
        position = self.positions.get(key)
        return None if position is None else self.leaves[position]

    def position_of(self, field_id: int) -> int | None:
        """Index of the scalar column with a field id; None if the file does not have it."""
        position = self.ids.get(field_id)
        return position if position is not None and self.leaves[position].is_leaf else None

    def rolled_up(self) -> tuple[LeafStats | None, ...]:
        """Statistics of all leaves in order; None for containers."""
        return tuple(_rolled_up(self, leaf) if leaf.is_leaf else None for leaf in self.leaves)


# Reading.


def read_footer(place: Place, kept: bytes | None = None) -> Footer:
    """Reads the footer of one file.

    Args:
        kept: Its bytes, if they are known; the file is not opened then.

    Raises:
        Unreadable: The file is not Parquet, or its footer is corrupt; has the file name and the reason.
        UpstreamError: The file cannot be reached.
    """
    name = place.stem
    try:
        data = _bytes_of(place) if kept is None else kept
        chunks = read_chunks(data)
        shared = _file_kinds.get(chunks.kind) or _file_kind(parsed(data))
        _check(chunks, shared.physical)
    except FileNotFoundError:
        raise Unreadable(f'file "{name}" is gone', hint="discover the table again") from None
    except PermissionError:
        raise Unreadable(f'file "{name}" may not be read') from None
    except (pa.ArrowException, OSError, ValueError, IndexError, RecursionError, MemoryError) as error:
        raise _refused(place, name, error) from None
    _file_kinds.put(chunks.kind, shared)
    return Footer(
        place,
        chunks.row_count,
        shared.leaves,
        shared.whole_bytes,
        chunks.groups,
        shared.positions,
        shared.ids,
        comments_in(chunks.spark_schema),
        data,
    )


def _bytes_of(place: Place) -> bytes:
    with place.open() as file:
        return read_bytes(file)


@dataclass(frozen=True, slots=True)
class _FileKind:
    """Properties shared by all files with the same schema and writer; derived with pyarrow from the first one only."""

    leaves: tuple[FooterLeaf, ...]
    physical: list[str]
    whole_bytes: bool | None
    positions: Mapping[str, int]
    ids: Mapping[int, int]


_file_kinds: Final[LruCache[Kind, _FileKind]] = LruCache(64)


def _file_kind(metadata: pq.FileMetaData) -> _FileKind:
    writer = writer_of(metadata)
    leaves = leaves_of(metadata, metadata.schema.to_arrow_schema(), writer)
    physical = [metadata.schema.column(i).physical_type for i in range(metadata.num_columns)]
    places = {leaf.key: position for position, leaf in enumerate(leaves)}
    ids: dict[int, int] = {}
    for position, leaf in sorted(enumerate(leaves), key=lambda place: not place[1].is_leaf):  # scalars first
        if leaf.field_id is not None:
            ids.setdefault(leaf.field_id, position)
    return _FileKind(leaves, physical, writer.keeps_bytes_whole, places, ids)


def _has_columns(group: Sequence[Chunk], physical: Sequence[str]) -> bool:
    """True if a row group has columns of these physical types; that of an encrypted one may be unknown."""
    return len(group) == len(physical) and all(
        chunk.physical == type or (chunk.is_encrypted and not chunk.physical)
        for chunk, type in zip(group, physical, strict=True)
    )


def _check(chunks: Chunks, physical: list[str]) -> None:
    """Rejects a footer that contradicts its schema, which could crash readers built on pyarrow."""
    row_count = chunks.row_count
    if row_count < 0 or sum(chunks.rows) != row_count or any(rows < 0 for rows in chunks.rows):
        raise ValueError(f"its footer says {row_count} rows, its row groups {sum(chunks.rows)}")
    for group in chunks.groups:
        if not _has_columns(group, physical):
            raise ValueError("its row groups have other columns than its schema")


def _refused(place: Place, name: str, error: Exception) -> UpstreamError:
    line = first_line(error).replace(place.path, name)
    corrupt = isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | ValueError) or "thrift" in line.lower()
    if place.is_local or corrupt:
        return Unreadable(f'file "{name}" cannot be read as Parquet ({line})')
    return UpstreamError(f'file "{name}" cannot be reached ({line})')


def read_footers(files: Sequence[tuple[Place, bytes | None]]) -> Iterator[Footer]:
    """Reads the footers of files in order, concurrently if remote.

    Args:
        files: The place of each, and its footer's bytes if they are known.
    """
    return read_each(lambda file: read_footer(*file), files, is_local=not files or files[0][0].is_local)


# Statistics.


def _rolled_up(footer: Footer, leaf: FooterLeaf) -> LeafStats:
    assert leaf.index is not None
    chunks = [group[leaf.index] for group in footer.groups]
    nulls = [0 if leaf.required else _nulls(leaf, chunk) for chunk in chunks]
    null_count = None if None in nulls else sum(filter(None, nulls))
    nan_count = _nans(chunks, nulls) if leaf.is_float else None
    sizes = [chunk.size_bytes for chunk in chunks]
    size = None if None in sizes else sum(filter(None, sizes))
    bounds = _outer_bounds(footer, leaf, chunks, nulls) if leaf.read is not None else _NO_BOUNDS
    return LeafStats(null_count, nan_count, size, *bounds)


def _nans(chunks: Sequence[Chunk], nulls: Sequence[int | None]) -> int | None:
    """The NaNs of chunks with so many nulls; None if they are unknown."""
    total = 0
    for chunk, count in zip(chunks, nulls, strict=True):
        if chunk.num_values == count:
            continue
        if chunk.nan_count is None:
            return None
        total += chunk.nan_count
    return total


_NO_BOUNDS: Final = (None, None, None, None)


def _outer_bounds(
    footer: Footer, leaf: FooterLeaf, chunks: Sequence[Chunk], nulls: Sequence[int | None]
) -> tuple[Any, Any, bool | None, bool | None]:
    """The lower and upper bound of chunks with so many nulls, and whether each is exact; all None if a chunk that has
    values has no usable bounds."""
    lower = upper = lower_exact = upper_exact = None
    for chunk, null_count in zip(chunks, nulls, strict=True):
        if chunk.num_values in (0, null_count):
            continue
        low, high = _bounds_of(leaf, chunk)
        if low is None or high is None or low[0] > high[1]:
            return _NO_BOUNDS
        uncertain = leaf.is_coded and leaf.is_bytes and null_count != 0
        if lower is None or low[0] <= lower:
            exact = None if uncertain else _exact(leaf, footer, chunk.min_exact, low[2])
            lower_exact = _merged(lower_exact, exact, lower, low[0])
            lower = low[0]
        if upper is None or high[1] >= upper:
            exact = None if uncertain else _exact(leaf, footer, chunk.max_exact, high[2])
            upper_exact = _merged(upper_exact, exact, upper, high[1])
            upper = high[1]
    return lower, upper, lower_exact, upper_exact


def _nulls(leaf: FooterLeaf, chunk: Chunk) -> int | None:
    """The nulls of a chunk; None if they are unknown, or cannot be believed."""
    nulls = chunk.null_count
    if nulls and (nulls > chunk.num_values >= 0 or leaf.writer.miscounts_nulls):
        return None
    has_bounds = chunk.min_value is not None or chunk.old_min is not None
    return None if nulls and nulls == chunk.num_values and has_bounds else nulls


def _bounds_of(leaf: FooterLeaf, chunk: Chunk) -> tuple[Bound | None, Bound | None]:
    if chunk.ordered and chunk.min_value is not None and chunk.max_value is not None:
        low, high = chunk.min_value, chunk.max_value
    elif leaf.old_bounds and chunk.old_min is not None and chunk.old_max is not None:
        low, high = chunk.old_min, chunk.old_max
    else:
        return None, None
    return bound(leaf, low), bound(leaf, high)


def _exact(leaf: FooterLeaf, footer: Footer, flag: bool | None, cut: bool) -> bool | None:
    if cut or flag is False:
        return False
    return True if flag or not leaf.is_bytes else footer.whole_bytes


def _merged(sofar: bool | None, this: bool | None, bound: Any, other: Any) -> bool | None:
    """Exactness of the outer of two bounds; of equal bounds, one exact is enough."""
    if bound is None or bound != other:
        return this
    return True if sofar or this else (False if sofar is False and this is False else None)
