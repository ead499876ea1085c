"""Per-file column statistics of an Iceberg snapshot, from manifests, else from Parquet footers.

Manifests may lack metrics: by table property, and by default beyond the first hundred columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

from capture.connectors.file_columns import alike, joined, live_counts, numbers, rows_of_groups
from capture.connectors.footers.reader import Footer
from capture.connectors.footers.statistics import (
    FooterCache,
    ListedFile,
    Statistics,
    completed,
    footer_facts,
    of_live_rows,
)
from capture.connectors.iceberg.bounds import decoded, span
from capture.connectors.iceberg.manifests import Columns, Files, Metrics
from capture.connectors.iceberg.schema import IcebergLeaf, identity_values, typed_array
from capture.connectors.storage.places import Place, batched
from store.model.logical_types import FLOATING

BATCH_ROWS: Final = 60_000
"""Approximate number of rows in one table of `rows()`."""

OpenPlace = Callable[[str], Place]
"""Location of a file → its place."""


class ColumnStatistics:
    """Per-file statistics of some columns.

    Args:
        open_place: Opens the location of a file whose footer is read.
    """

    def __init__(
        self, metadata: TableMetadata, leaves: Sequence[IcebergLeaf], footers: FooterCache, open_place: OpenPlace
    ):
        self._specs, self._leaves = metadata.specs(), leaves
        self._footers, self._open_place = footers, open_place

    def rows(self, block: Files, metrics: Columns, live: Mapping[int, int]) -> Iterator[pa.Table]:
        """Yields tables of FILE_COLUMN_SCHEMA for a block; `live`: index → live rows of files with deleted rows."""
        rows = rows_left(block, live)
        footers = self._footers_for(block, metrics)
        for some in batched(self._leaves, max(1, BATCH_ROWS // len(block))):
            groups = []
            for group in alike(some, lambda leaf: (leaf.logical, str(leaf.type))):
                known = _known(group, block, metrics)
                facts = [
                    self._column(leaf, block, metrics, rows, footers, *of_column)
                    for leaf, of_column in zip(group, known, strict=True)
                ]
                groups.append(([leaf.column for leaf in group], joined(facts, group[0].logical)))
            ids = {leaf.column.key: leaf.field_id for leaf in some}
            yield rows_of_groups(block.locations, groups, ids, rows)

    def _column(
        self, leaf: IcebergLeaf, block: Files, metrics: Columns, rows: pa.Array, footers: Sequence[Statistics],
        of_column: Metrics, bounds: _Bounds,
    ) -> dict[str, Any]:  # fmt: skip
        """Facts for `rows_of_groups` about one column."""
        statistics = self._facts(leaf, block, of_column, bounds, rows)
        is_absent = block.known_ids and leaf.field_id not in block.known_ids
        statistics["size_bytes"] = pa.repeat(pa.scalar(0, pa.int64()), len(block)) if is_absent else of_column.sizes
        lacking = self._lacking(leaf, block, metrics) if footers else None
        if lacking is not None:
            reliable = [pair if pair is not None and _is_reliable(pair[0], leaf) else None for pair in footers]
            facts = footer_facts(reliable, [lambda footer: footer.position_of(leaf.field_id)], leaf.logical)
            facts = of_live_rows(facts, rows, block.rows, pc.equal(rows, block.rows))
            statistics = completed(statistics, facts, lacking)
        return statistics

    def _facts(
        self, leaf: IcebergLeaf, block: Files, metrics: Metrics, bounds: _Bounds, rows: pa.Array
    ) -> dict[str, Any]:
        """The same without sizes: from manifests, else from partition values and defaults."""
        nulls, nans = metrics.nulls, metrics.nans
        low, high, *exact = bounds
        if leaf.parents and metrics.left_out is not None:
            nulls = pc.add(nulls, metrics.left_out)

        def of_files(values: Sequence[bool]) -> pa.Array:
            """A value of each partition for each file."""
            return pa.array(values, pa.bool_()).take(block.partition_of)

        def bound(values: Sequence[Any]) -> pa.Array:
            return typed_array(list(values), leaf.logical).take(block.partition_of)

        if nulls.null_count and not pc.all(metrics.known).as_py():  # a file with a count of nulls has metrics
            only = [self._only_value(leaf, block, partition) for partition in block.partitions]
            fixed = pc.and_(pc.invert(metrics.known), of_files([each is not None for each in only]))
            everywhere = of_files([each is not None and each.everywhere for each in only])
            value = bound([each and each.value for each in only])
            in_some = pc.if_else(everywhere, pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
            is_null = of_files([each is None or each.value is None for each in only])
            nulls = pc.if_else(fixed, pc.if_else(is_null, block.rows, in_some), nulls)
            given_nans = pa.scalar(0, pa.int64())
            if leaf.logical.kind in FLOATING:  # NaN is a value, but no bound
                is_nan = pc.is_nan(value).fill_null(False)
                every = pc.if_else(everywhere, block.rows, pa.scalar(None, pa.int64()))
                given_nans, value = pc.if_else(is_nan, every, given_nans), numbers(value)
            nans = pc.if_else(fixed, given_nans, nans)
            low, high = (pc.if_else(fixed, value, of) for of in (low, high))
            exact = [pc.if_else(fixed, everywhere, side) for side in exact]
        if low.null_count and self._transforms(leaf, block):
            spans = [self._span(leaf, block, partition) for partition in block.partitions]
            unknown = pc.and_(
                pc.and_(pc.is_null(low), pc.is_null(high)), of_files([span is not None for span in spans])
            )
            unknown = pc.and_(unknown, pc.not_equal(nulls, block.rows).fill_null(True))
            is_empty = of_files([span is not None and span.empty for span in spans])
            nulls = pc.if_else(pc.and_(unknown, pc.is_null(nulls)), pc.if_else(is_empty, block.rows, 0), nulls)
            low = pc.if_else(unknown, bound([span and span.low for span in spans]), low)
            high = pc.if_else(unknown, bound([span and span.high for span in spans]), high)
            exact = [pc.if_else(unknown, False, side) for side in exact]
        if rows is not block.rows:
            whole = pc.equal(rows, block.rows)
            # of one value, all rows that are left have it
            others = pc.add(nulls, nans) if leaf.logical.kind in FLOATING else nulls
            attained = pc.and_(pc.equal(low, high).fill_null(False), pc.equal(others, 0).fill_null(False))
            exact = [pc.if_else(pc.or_(whole, attained), side, pc.and_(side, False)) for side in exact]
            nulls, nans = (live_counts(counts, rows, block.rows, whole) for counts in (nulls, nans))
        return {
            "null_count": nulls,
            "nan_count": nans,
            "lower": low,
            "upper": high,
            "lower_exact": exact[0],
            "upper_exact": exact[1],
        }

    def _transforms(self, leaf: IcebergLeaf, block: Files) -> list[tuple[int, Transform[Any, Any]]]:
        """Positions and transforms of the partition fields of a block that say something of a column."""
        if isinstance(leaf.type, TimestampNanoType | TimestamptzNanoType):  # ranges end at a microsecond
            return []
        fields = self._specs[block.spec_id].fields
        return [
            (at, part.transform)
            for at, part in enumerate(fields)
            if part.source_id == leaf.field_id and not isinstance(part.transform, IdentityTransform | VoidTransform)
        ]

    def _span(self, leaf: IcebergLeaf, block: Files, partition: tuple[Any, ...]) -> _Span | None:
        """The range of a column's values by their partition; None if it does not restrict them."""
        known = [(transform, partition[at]) for at, transform in self._transforms(leaf, block) if at < len(partition)]
        if any(value is None for _, value in known):
            return _Span(True)
        spans = (span(transform, value, leaf.logical) for transform, value in known)
        found = next((found for found in spans if found is not None), None)
        return None if found is None else _Span(False, *found)

    def _only_value(self, leaf: IcebergLeaf, block: Files, partition: tuple[Any, ...]) -> _OnlyValue | None:
        """The constant value of a column in files without metrics; None if the files may contain the column."""
        identity = identity_values(self._specs[block.spec_id], partition)
        if leaf.field_id in identity:
            return _OnlyValue(identity[leaf.field_id], True)
        if not block.known_ids or leaf.field_id in block.known_ids:
            return None
        value, within = leaf.value_where_missing(block.known_ids)
        return _OnlyValue(value, within is None)

    # Footers.

    def _lacking(self, leaf: IcebergLeaf, block: Files, metrics: Columns) -> pa.Array | None:
        """Mask of the files without metrics or constant value of a column; None if there are none."""
        of_column = metrics.get(leaf.field_id)
        if of_column is not None and pc.all(of_column.known).as_py():
            return None
        missing = pa.repeat(True, len(block)) if of_column is None else pc.invert(of_column.known)
        only = [self._only_value(leaf, block, partition) is None for partition in block.partitions]
        missing = pc.and_(missing, pa.array(only, pa.bool_()).take(block.partition_of))
        mask = pc.and_(missing, pc.equal(block.formats, "PARQUET"))
        return mask if pc.any(mask).as_py() else None

    def _footers_for(self, block: Files, metrics: Columns) -> Sequence[Statistics]:
        """Footers of the files of a block that lack metrics; empty where there are none, or too many."""
        masks = [mask for leaf in self._leaves if (mask := self._lacking(leaf, block, metrics)) is not None]
        lacking = [any(of_file) for of_file in zip(*(mask.to_pylist() for mask in masks), strict=True)]
        locations, sizes = block.locations, block.sizes
        return self._footers.of_lacking(
            lacking, lambda at: [ListedFile(self._open_place(locations[i].as_py()), sizes[i].as_py()) for i in at]
        )


def rows_left(block: Files, live: Mapping[int, int]) -> pa.Array:
    """Live rows of each file of a block."""
    if not live:
        return block.rows
    rows = block.rows.to_numpy().copy()
    rows[list(live)] = list(live.values())
    return pa.array(rows)


def _known(group: Sequence[IcebergLeaf], block: Files, metrics: Columns) -> Iterator[tuple[Metrics, _Bounds]]:
    """The metrics and the bounds of columns of one type, decoded together because each call has a fixed cost."""
    files, of_columns = len(block), [metrics.get(leaf.field_id) or Metrics.unknown(len(block)) for leaf in group]
    tight = pa.concat_arrays([of_column.tight for of_column in of_columns])
    low, low_exact = decoded([of_column.lower for of_column in of_columns], group[0], upper=False)
    high, high_exact = decoded([of_column.upper for of_column in of_columns], group[0], upper=True)
    is_one = pc.equal(low, high).fill_null(False)  # one value, which both bounds are
    exact = [pc.if_else(is_one, True, _attained(side, tight)) for side in (low_exact, high_exact)]
    for at, of_column in enumerate(of_columns):
        yield of_column, _Bounds(*(side.slice(at * files, files) for side in (low, high, *exact)))


def _attained(exact: pa.Array, tight: pa.Array) -> pa.Array:
    """True where bounds are values of the file: their type says no other, nor does the manifest; null if unknown."""
    return pc.if_else(pc.is_valid(tight), pc.and_(pc.fill_null(exact, True), tight), exact)


def _is_reliable(footer: Footer, leaf: IcebergLeaf) -> bool:
    """True if the file has field ids, and has the column or its values are null."""
    return bool(footer.ids) and (footer.position_of(leaf.field_id) is not None or leaf.initial_default is None)


class _Bounds(NamedTuple):
    """The bounds of a column in each file, and whether they are values of it."""

    low: pa.Array
    high: pa.Array
    low_exact: pa.Array
    high_exact: pa.Array


class _Span(NamedTuple):
    """The range of the values of a column in a file; all are null if `empty`, else none is."""

    empty: bool
    low: Any = None
    high: Any = None


class _OnlyValue(NamedTuple):
    """The constant value of a column in a file; `everywhere` is False if some rows may be null instead."""

    value: Any
    everywhere: bool
