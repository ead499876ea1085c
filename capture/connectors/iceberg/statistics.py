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

from capture.connectors.file_columns import column_rows, live_counts
from capture.connectors.footers.reader import Footer, batched
from capture.connectors.footers.statistics import (
    MAX_FOOTERS,
    FooterCache,
    ListedFile,
    Statistics,
    completed,
    footer_facts,
    of_live_rows,
)
from capture.connectors.iceberg.bounds import decode_all, decoder, span
from capture.connectors.iceberg.manifests import Columns, Files, Metrics
from capture.connectors.iceberg.schema import IcebergLeaf, identity_values, typed_array
from capture.connectors.storage.places import Place

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
        self._footers_left = MAX_FOOTERS

    def rows(self, block: Files, metrics: Columns, live: Mapping[int, int]) -> Iterator[pa.Table]:
        """Yields tables of FILE_COLUMN_SCHEMA for a block; `live`: index → live rows of files with deleted rows."""
        rows = rows_left(block, live)
        footers = self._footers_for(block, metrics)
        for some in batched(self._leaves, max(1, BATCH_ROWS // len(block))):
            yield pa.concat_tables(
                [self._column(leaf, block, metrics, rows, live, footers) for leaf in some]
            ).combine_chunks()

    def _column(
        self,
        leaf: IcebergLeaf,
        block: Files,
        metrics: Columns,
        rows: pa.Array,
        live: Mapping[int, int],
        footers: Sequence[Statistics],
    ) -> pa.Table:
        """Rows of one column for a block."""
        of_column = metrics.get(leaf.field_id) or Metrics.unknown(len(block))
        needs_span = of_column.lower.null_count and self._transforms(leaf, block)
        statistics = None if live or needs_span else _vectorized(leaf, of_column, rows)
        if statistics is None:
            statistics = self._per_file(leaf, block, of_column, rows)
        is_absent = block.known_ids and leaf.field_id not in block.known_ids
        statistics["size_bytes"] = pa.repeat(pa.scalar(0, pa.int64()), len(block)) if is_absent else of_column.sizes
        lacking = self._lacking(leaf, block, metrics) if footers else None
        if lacking is not None:
            reliable = [pair if pair is not None and _is_reliable(pair[0], leaf) else None for pair in footers]
            facts = footer_facts(reliable, lambda footer: _position(footer, leaf.field_id), leaf.logical)
            facts = of_live_rows(facts, rows, block.rows, pc.equal(rows, block.rows))
            statistics = completed(statistics, facts, lacking)
        return column_rows(block.locations, leaf.column, {leaf.column.key: leaf.field_id}, rows, **statistics)

    def _per_file(self, leaf: IcebergLeaf, block: Files, metrics: Metrics, rows: pa.Array) -> dict[str, pa.Array]:
        """Statistics of a column, computed file by file."""
        low_of, high_of = decoder(leaf, upper=False), decoder(leaf, upper=True)
        parts: list[tuple[int | None, int | None, Any, Any, bool | None, bool | None]] = []
        arrays = (
            metrics.known,
            metrics.nulls,
            metrics.nans,
            metrics.lower,
            metrics.upper,
            metrics.tight,
            block.rows,
            rows,
        )
        columns = [*(values.to_pylist() for values in arrays), block.partition_of.to_pylist()]
        only = [self._only_value(leaf, block, partition) for partition in block.partitions]
        spans = [self._span(leaf, block, partition) for partition in block.partitions]
        for has_metrics, nulls, nans, lower, upper, tight, count, left, partition in zip(*columns, strict=True):
            low, low_exact = low_of(lower)
            high, high_exact = high_of(upper)
            if tight is not None:
                low_exact, high_exact = (tight and exact is not False for exact in (low_exact, high_exact))
            if low is not None and low == high:  # one value, which both bounds are
                low_exact = high_exact = True
            if not has_metrics and (value := only[partition]) is not None:
                low = high = value.value
                nulls, nans = (count, 0) if low is None else (0 if value.everywhere else None, 0)
                low_exact = high_exact = value.everywhere
            elif low is None and high is None and (within := spans[partition]) is not None and nulls != count:
                nulls = within.null_count(count) if nulls is None else nulls
                low, high = within.low, within.high
                low_exact = high_exact = False
            if left != count:
                one_value = low is not None and low == high and nulls == 0
                low_exact, high_exact = low_exact and one_value, high_exact and one_value
            if not left:
                low = high = None
            parts.append((nulls, nans, low, high, low_exact, high_exact))
        all_nulls, all_nans, lows, highs, low_flags, high_flags = (list(side) for side in zip(*parts, strict=True))
        orderable, whole = leaf.logical.orderable, pc.equal(rows, block.rows)
        return {
            "null_count": live_counts(pa.array(all_nulls, pa.int64()), rows, block.rows, whole),
            "nan_count": live_counts(pa.array(all_nans, pa.int64()), rows, block.rows, whole),
            "lower": typed_array(lows, leaf.logical) if orderable else None,
            "upper": typed_array(highs, leaf.logical) if orderable else None,
            "lower_exact": pa.array(low_flags, pa.bool_()),
            "upper_exact": pa.array(high_flags, pa.bool_()),
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
        """What a partition says of the values of a column, None if nothing."""
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
        if (count := sum(lacking)) > self._footers_left:
            return ()
        self._footers_left -= count
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


def _vectorized(leaf: IcebergLeaf, metrics: Metrics, rows: pa.Array) -> dict[str, pa.Array] | None:
    """Statistics of a column without a loop; None if a file lacks counts, is empty, or needs `decoder`."""
    if metrics.nulls.null_count or not len(rows) or pc.min(rows).as_py() == 0:
        return None
    lower, upper = decode_all(metrics.lower, leaf), decode_all(metrics.upper, leaf)
    if lower is None or upper is None:
        return None
    only = pc.equal(lower[0], upper[0]).fill_null(False)  # one value, which both bounds are
    return {
        "null_count": metrics.nulls,
        "nan_count": metrics.nans,
        "lower": lower[0],
        "upper": upper[0],
        "lower_exact": pc.if_else(only, True, _attained(lower[1], metrics.tight)),
        "upper_exact": pc.if_else(only, True, _attained(upper[1], metrics.tight)),
    }


def _attained(exact: pa.Array, tight: pa.Array) -> pa.Array:
    """True where bounds are values of the file: their type says no other, nor does the manifest; null if unknown."""
    return pc.if_else(pc.is_valid(tight), pc.and_(pc.fill_null(exact, True), tight), exact)


def _is_reliable(footer: Footer, leaf: IcebergLeaf) -> bool:
    """True if the file has field ids, and has the column or its values are null."""
    if not any(other.field_id is not None for other in footer.leaves):
        return False
    return _position(footer, leaf.field_id) is not None or leaf.initial_default is None


def _position(footer: Footer, field_id: int) -> int | None:
    return next((i for i, leaf in enumerate(footer.leaves) if leaf.is_leaf and leaf.field_id == field_id), None)


class _Span(NamedTuple):
    """The range of the values of a column in a file; all are null if `empty`, else none is."""

    empty: bool
    low: Any = None
    high: Any = None

    def null_count(self, rows: int) -> int:
        return rows if self.empty else 0


class _OnlyValue(NamedTuple):
    """The constant value of a column in a file; `everywhere` is False if some rows may be null instead."""

    value: Any
    everywhere: bool
