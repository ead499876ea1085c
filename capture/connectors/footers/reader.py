"""Parquet footers: statistics of each leaf column, and how far they can be trusted.

`footer_leaves` knows the columns and what raw values mean. The statistics are read from the thrift by
`thrift.read_chunks`: pyarrow shows neither exactness nor NaN counts, and ends the process at some damaged footers.
Rules:

* what counts is `min_value`/`max_value` under a declared column order; the older `min`/`max` only of signed numbers
  (writers compared everything else as they liked: parquet-mr 1.8 told 2.00 as the minimum of decimals from 1.00 on);
* numbers, dates, times, booleans: exact bounds. Floats: bounds skip NaN (store/SEMANTICS.md §4), exact as the least
  and greatest number; a NaN bound is not a bound, and nan_count is known only where the footer has it;
* byte arrays: as flagged; where there is no flag, exact if the writer never truncates, else not known (null).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.footers.leaf_types import Bound, FooterLeaf, bound, leaves_of
from capture.connectors.footers.thrift import Chunk, Chunks, read_chunks
from capture.connectors.storage.places import Place, Unreadable, first_line
from store.errors import UpstreamError

READERS: Final = 8  # footers asked for at once from an object store; locally threads are slower than one
_TAIL: Final = 65_536  # what is read from the end of a file to find most footers whole


@dataclass(slots=True)
class LeafStats:
    """Statistics of one leaf over all row groups; None is unknown."""

    null_count: int | None = 0
    nan_count: int | None = None
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
    size: int
    whole_bytes: bool | None
    groups: list[list[Chunk]] = field(repr=False)
    positions: Mapping[str, int] = field(repr=False)  # of leaves, by key

    def leaf(self, key: str) -> FooterLeaf | None:
        """The column with this key (names joined by dots); None where the file lacks it."""
        position = self.positions.get(key)
        return None if position is None else self.leaves[position]

    def stats(self, leaf: FooterLeaf) -> LeafStats:
        """The statistics of a leaf, row groups rolled up."""
        return _rolled_up(self, leaf)

    def rolled_up(self) -> tuple[LeafStats | None, ...]:
        """The statistics of all leaves in their order, None for containers."""
        return tuple(_rolled_up(self, leaf) if leaf.is_leaf else None for leaf in self.leaves)


# Reading.


def read_footer(place: Place) -> Footer:
    """The footer of one file.

    Raises:
        Unreadable: The file is not Parquet, or its footer is corrupt; names the file by its last part and the reason.
        UpstreamError: The file cannot be reached.
    """
    name = place.stem
    try:
        with place.file_system.open_input_file(place.path) as file:
            data = _footer_bytes(file)
            chunks = None if data is None else read_chunks(data)
            alike = None if chunks is None else _alike.get(chunks.kind)
            if data is None or chunks is None or alike is None:
                alike = _look(pq.read_metadata(file))
        if data is None or chunks is None:  # pyarrow knows what is wrong with most files
            raise ValueError("its footer is not where it should be")
        _check(chunks, alike.physical)
    except FileNotFoundError:
        raise Unreadable(f'file "{name}" is gone', hint="discover the table again") from None
    except PermissionError:
        raise Unreadable(f'file "{name}" may not be read') from None
    except (pa.ArrowException, OSError, ValueError, IndexError, RecursionError, MemoryError) as error:
        raise _refused(place, name, error) from None
    if len(_alike) >= _KINDS:
        _alike.clear()
    _alike[chunks.kind] = alike
    return Footer(place, chunks.row_count, alike.leaves, len(data), alike.whole_bytes, chunks.groups, alike.positions)


@dataclass(frozen=True, slots=True)
class _Alike:
    """Properties shared by files of one schema and writer: pyarrow is asked about the first of them only."""

    leaves: tuple[FooterLeaf, ...]
    physical: list[str]
    whole_bytes: bool | None
    positions: Mapping[str, int]


_KINDS: Final = 64
_alike: dict[tuple[bytes, bytes, bytes], _Alike] = {}


def _look(metadata: pq.FileMetaData) -> _Alike:
    try:
        whole_bytes = _whole_bytes(metadata.created_by)
    except UnicodeDecodeError:
        whole_bytes = None
    leaves = leaves_of(metadata, metadata.schema.to_arrow_schema())
    physical = [metadata.schema.column(i).physical_type for i in range(metadata.num_columns)]
    return _Alike(leaves, physical, whole_bytes, {leaf.key: position for position, leaf in enumerate(leaves)})


def _footer_bytes(file: pa.NativeFile) -> bytes | None:
    """The thrift of a footer, None where the file does not end as a plain Parquet file does."""
    size = file.size()
    start = max(0, size - _TAIL)
    tail: bytes = file.read_at(size - start, start)
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != b"PAR1" or length + 12 > size:
        return None
    return tail[-8 - length : -8] if length + 8 <= len(tail) else file.read_at(length, size - 8 - length)


def _check(chunks: Chunks, physical: list[str]) -> None:
    """Refuses a footer that contradicts its own schema; readers built on pyarrow end the process at such a one."""
    row_count = chunks.row_count
    if row_count < 0 or sum(chunks.rows) != row_count or any(rows < 0 for rows in chunks.rows):
        raise ValueError(f"its footer says {row_count} rows, its row groups {sum(chunks.rows)}")
    for group in chunks.groups:
        if [chunk.physical for chunk in group] != physical:
            raise ValueError("its row groups have other columns than its schema")


def _refused(place: Place, name: str, error: Exception) -> UpstreamError:
    line = first_line(error).replace(place.path, name)
    corrupt = isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | ValueError) or "thrift" in line.lower()
    if place.is_local or corrupt:
        return Unreadable(f'file "{name}" cannot be read as Parquet ({line})')
    return UpstreamError(f'file "{name}" cannot be reached ({line})')


def read_footers(places: Sequence[Place]) -> Iterator[Footer]:
    """The footers of many files, in order; several at once where a file is far away."""
    if not places or places[0].is_local or len(places) == 1:
        yield from map(read_footer, places)
        return
    with ThreadPoolExecutor(READERS, "footer") as pool:
        for group in batched(places, READERS * 4):
            yield from pool.map(read_footer, group)


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items in a row, the last one shorter."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


# Statistics.


def _whole_bytes(created_by: str | None) -> bool | None:
    """True for a writer that does not flag its bounds and leaves byte arrays whole; None where that is not known."""
    match = re.match(r"(?P<name>parquet-cpp(?:-arrow)?|parquet-mr) version (?P<version>\d+\.\d+)", created_by or "")
    if match is None:
        return None
    # parquet-cpp leaves out what is longer than its limit; parquet-mr may be told to truncate from 1.11 on, silently.
    return True if match["name"] != "parquet-mr" or match["version"] == "1.10" else None


def _rolled_up(footer: Footer, leaf: FooterLeaf) -> LeafStats:
    assert leaf.index is not None
    statistics = LeafStats()
    nulls: int | None = 0
    nans: int | None = 0
    lower = upper = None
    lower_exact: bool | None = True
    upper_exact: bool | None = True
    bounded = leaf.read is not None
    for group in footer.groups:
        chunk = group[leaf.index]
        here = 0 if leaf.required else chunk.null_count
        nulls = None if nulls is None or here is None else nulls + here
        if leaf.is_float:
            count = 0 if chunk.num_values == here else chunk.nan_count
            nans = None if nans is None or count is None else nans + count
        if not bounded or chunk.num_values in (0, here):
            continue
        low, high = _bounds_of(leaf, chunk)
        if low is None or high is None or low[0] > high[1]:
            bounded = False
            continue
        if lower is None or low[0] <= lower:
            lower_exact = _merged(lower_exact, _exact(leaf, footer, chunk.min_exact, low[2]), lower, low[0])
            lower = low[0]
        if upper is None or high[1] >= upper:
            upper_exact = _merged(upper_exact, _exact(leaf, footer, chunk.max_exact, high[2]), upper, high[1])
            upper = high[1]
    statistics.null_count = nulls
    if leaf.is_float:
        statistics.nan_count = nans
    if bounded and lower is not None:
        statistics.lower, statistics.upper = lower, upper
        statistics.lower_exact, statistics.upper_exact = lower_exact, upper_exact
    return statistics


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
    """Exactness of the outermost bound: of two equal ones, one that is exact is enough."""
    if bound is None or bound != other:
        return this
    return True if sofar or this else (False if sofar is False and this is False else None)
