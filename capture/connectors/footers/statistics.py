"""Column statistics from the footers of many files, cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.file_columns import live_counts
from capture.connectors.footers.kept import FooterKey, KnownFooters
from capture.connectors.footers.leaf_types import typed
from capture.connectors.footers.reader import Footer, LeafStats, read_footers
from capture.connectors.storage.immutable_cache import COLUMNS, FILES
from capture.connectors.storage.places import Place, Unreadable, batched
from store.model.logical_types import FLOATING, LogicalType, to_arrow

_STATS_BYTES: Final = 300  # estimated memory of one leaf's statistics
_GROUP: Final = 256  # files per batch of footers

FileStats: TypeAlias = tuple[LeafStats | None, ...]
"""Statistics of each leaf of a footer; None for containers."""

Statistics: TypeAlias = "tuple[Footer, FileStats] | None"
"""A footer with its statistics; None if it is unknown."""

MAX_FOOTERS: Final = 10_000
"""Files without statistics in a log or manifest up to which footers are read; beyond, their statistics stay unknown."""

Key: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A data file from a listing, log or manifest; `mark` is its modification time, or 0."""

    place: Place
    size_bytes: int
    mark: int = 0

    @property
    def key(self) -> Key:
        """Path, size and mark; files with equal keys have equal footers."""
        return self.place.path, self.size_bytes, self.mark

    @property
    def kept_key(self) -> FooterKey:
        """The same with the file's full name, for footers that outlive the process."""
        return self.place.name, self.size_bytes, self.mark


class FooterCache:
    """Reads footers through the worker's cache of immutable files.

    Args:
        scope: Prefix of cache keys, see `immutable_cache.scope`.
    """

    def __init__(self, scope: str):
        self._scope = scope
        self._left = MAX_FOOTERS  # files that `of_lacking` may read yet

    def outlines(self, files: Sequence[ListedFile]) -> Iterator[Footer]:
        """Footers without statistics, in the order of the files.

        Raises:
            UpstreamError: A file cannot be read; names it.
        """
        for group in batched(files, _GROUP):
            cached: dict[Key, Any] = {file.key: FILES.get(("footer", self._scope, file.key)) for file in group}
            missing = [file for file in group if cached[file.key] is None]
            cached |= {key: footer for key, footer, _ in self._read(missing)}
            yield from (cached[file.key] for file in group)

    def statistics(self, files: Sequence[ListedFile]) -> list[tuple[Footer, FileStats]]:
        """Footers with the statistics of their leaves, rolled up over row groups.

        Raises:
            UpstreamError: A file cannot be read; names it.
        """
        cached: dict[Key, tuple[Footer, FileStats]] = {}
        for file in files:
            footer, stats = (cache.get(("footer", self._scope, file.key)) for cache in (FILES, COLUMNS))
            if footer is not None and stats is not None:
                cached[file.key] = footer, stats
        missing = [file for file in files if file.key not in cached]
        cached |= {key: (footer, stats) for key, footer, stats in self._read(missing)}
        return [cached[file.key] for file in files]

    def readable_statistics(self, files: Sequence[ListedFile]) -> list[Statistics]:
        """The same, with None for a damaged or missing file, which a scan will report."""
        try:
            return list(self.statistics(files))
        except Unreadable:
            if len(files) == 1:
                return [None]
            return [footer for file in files for footer in self.readable_statistics([file])]

    def of_lacking(
        self, lacking: Sequence[bool], listed: Callable[[Sequence[int]], Sequence[ListedFile]]
    ) -> Sequence[Statistics]:
        """Footers of the files that are True in `lacking`, None for others; empty without such files, or for too many.

        Args:
            listed: Returns the files at some positions.
        """
        positions = [position for position, lacks in enumerate(lacking) if lacks]
        if not positions or len(positions) > self._left:
            return ()
        self._left -= len(positions)
        footers = dict(zip(positions, self.readable_statistics(listed(positions)), strict=True))
        return [footers.get(position) for position in range(len(lacking))]

    def _read(self, files: Sequence[ListedFile]) -> Iterator[tuple[Key, Footer, FileStats]]:
        """Reads the footers of files; opens none whose footer is kept."""
        with KnownFooters([file.kept_key for file in files]) as known:
            read = read_footers([(file.place, known.get(file.kept_key)) for file in files])
            for file, footer in zip(files, read, strict=True):
                known.add(file.kept_key, footer.data)
                yield self._cached(file, footer)

    def _cached(self, file: ListedFile, footer: Footer) -> tuple[Key, Footer, FileStats]:
        stats = footer.rolled_up()
        footer.groups, footer.data = [], b""  # not needed any more, and large
        key = ("footer", self._scope, file.key)
        FILES.put(key, footer, 300 + 2 * len(file.place.path))
        COLUMNS.put(key, stats, _STATS_BYTES * len(stats))
        return file.key, footer, stats


def footer_facts(
    footers: Sequence[Statistics], columns: Sequence[Callable[[Footer], int | None]], kind: LogicalType
) -> dict[str, Any]:
    """Counts and bounds of columns of one type in many files, as arguments of `file_columns.column_rows`.

    Args:
        footers: Footer and statistics of each file; None if unknown.
        columns: Each returns its column's index among the leaves of a footer; None if the file lacks it, which means
            all null.
        kind: Type of the table's columns, to which the types of the files are promoted.
    """
    found: list[LeafStats] = []
    kinds: list[LogicalType] = []
    doubts: list[str | None] = []
    doubt_of: dict[int, str] = {}  # by the identity of a leaf, which files of one writer share
    unknown = LeafStats()
    for find, read in product(columns, footers):
        statistics, file_kind, doubt = unknown, kind, ""
        if read is not None:
            footer, leaves = read
            position = find(footer)
            stats = None if position is None else leaves[position]
            if position is None or stats is None:
                size = 0 if position is None else None
                statistics = LeafStats(footer.row_count, 0 if kind.kind in FLOATING else None, size)
            else:
                leaf = footer.leaves[position]
                statistics, file_kind = stats, leaf.logical_type
                if id(leaf) not in doubt_of:
                    doubt_of[id(leaf)] = leaf.doubt
                doubt = doubt_of[id(leaf)]
                if leaf.untyped:
                    statistics = LeafStats(footer.row_count, stats.nan_count, stats.size_bytes)
        found.append(statistics)
        kinds.append(file_kind)
        doubts.append(doubt or None)
    nulls, nans, sizes, lowers, uppers, low_exact, high_exact = zip(*found, strict=True) if found else [()] * 7
    ordered = kind.orderable
    return {
        "null_count": pa.array(nulls, pa.int64()),
        "nan_count": pa.array(nans, pa.int64()),
        "size_bytes": pa.array(sizes, pa.int64()),
        "lower": _typed(lowers, kinds, kind) if ordered else None,
        "upper": _typed(uppers, kinds, kind) if ordered else None,
        "lower_exact": pa.array(low_exact, pa.bool_()),
        "upper_exact": pa.array(high_exact, pa.bool_()),
        "doubt": pa.array(doubts, pa.string()) if any(doubts) else None,
    }


def of_live_rows(facts: dict[str, Any], rows: pa.Array, records: pa.Array, whole: pa.Array) -> dict[str, Any]:
    """Output of `footer_facts` limited to what it says of live rows; see `file_columns.live_counts`."""
    return facts | {
        "null_count": live_counts(facts["null_count"], rows, records, whole),
        "nan_count": pc.if_else(whole, facts["nan_count"], pa.scalar(None, pa.int64())),
        "lower_exact": pc.and_(facts["lower_exact"], whole),
        "upper_exact": pc.and_(facts["upper_exact"], whole),
    }


def completed(facts: dict[str, Any], others: dict[str, Any], lacking: pa.Array) -> dict[str, Any]:
    """Completes the facts that a log or manifest has of a column by those of footers.

    Args:
        facts: Arguments of `file_columns.column_rows`, one value per file; those that are missing or None are taken
            from `others`.
        others: Output of `footer_facts`.
        lacking: Mask of the files of which known `others` replace the facts, a bound with its exactness.
    """
    whole = {"doubt": _doubts(facts, others, lacking)}
    for name, other in others.items():
        if name == "doubt":
            continue
        values, known = facts.get(name), others[name.removesuffix("_exact")]
        if values is None or other is None or known is None:
            whole[name] = other if values is None else values
        else:
            whole[name] = pc.if_else(pc.and_(lacking, pc.is_valid(known)), other, values)
    return whole


def _doubts(facts: dict[str, Any], others: dict[str, Any], lacking: pa.Array) -> pa.Array | None:
    """The doubts of `completed`: those of the source of each bound, of both where either may be it."""
    ours, theirs = (None if doubts is None else doubts for doubts in (facts.get("doubt"), others.get("doubt")))
    if theirs is None:
        return ours
    if facts.get("lower") is not None and facts.get("upper") is not None:  # else theirs are taken of every file
        theirs = pc.if_else(lacking, theirs, pa.scalar(None, pa.string()))
    return theirs if ours is None else pc.coalesce(ours, theirs)


def _typed(values: Sequence[Any], kinds: list[LogicalType], to_kind: LogicalType) -> pa.Array:
    if len(set(kinds)) == 1:
        return typed(values, kinds[0], to_kind)
    return pa.concat_arrays(
        [typed([value], kind, to_kind).cast(to_arrow(to_kind)) for value, kind in zip(values, kinds, strict=True)]
    )
