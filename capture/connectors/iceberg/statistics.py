"""Per-file column statistics of an Iceberg snapshot, from manifests, else from Parquet footers.

Manifests may lack metrics: by table property, and by default beyond the first hundred columns.

Files without field ids are read by the table's name mapping as it is now: a column may be in a file though the manifest
was written before the column was added, and what a manifest says of a column is about another one if its name there
leads to another now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.types import IntegerType

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
from capture.connectors.iceberg.schema import NANOS, IcebergLeaf, identity_values, names_in_files, typed_array
from capture.connectors.metadata.known_writers import ICEBERG, ICEBERG_VERSION, UNNAMED, WriterName, bound_type, doubt
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
        self._names_in_files = names_in_files(metadata)
        self._writers = {snapshot.snapshot_id: _writer_of(snapshot) for snapshot in metadata.snapshots}
        self._known_reasons: dict[str, tuple[dict[int, str], str]] = {}
        self._of_uniform = _UNIFORM if "delta-version" in metadata.properties else None
        self._footers, self._open_place = footers, open_place

    def rows(self, block: Files, metrics: Columns, live: Mapping[int, int]) -> Iterator[pa.Table]:
        """Yields tables of FILE_COLUMN_SCHEMA for a block; `live`: index → live rows of files with deleted rows."""
        rows = rows_left(block, live)
        metrics = self._still_meant(block, metrics)
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

    def _still_meant(self, block: Files, metrics: Columns) -> Columns:
        """The metrics of columns whose names at that time still lead to them in files without field ids."""
        by_name = self._names_in_files
        if by_name is None:
            return metrics

        def is_meant(leaf: IcebergLeaf) -> bool:
            ids = (leaf.field_id, *(parent.field_id for parent in leaf.parents))
            return all(block.names.get(field_id) in by_name.get(field_id, ()) for field_id in ids)

        ids = {leaf.field_id for leaf in self._leaves if is_meant(leaf)}
        return {field_id: of_column for field_id, of_column in metrics.items() if field_id in ids}

    def _is_absent(self, leaf: IcebergLeaf, block: Files) -> bool:
        """True if no file of a block can have the column."""
        return self._names_in_files is None and bool(block.names) and leaf.field_id not in block.names

    def _column(
        self,
        leaf: IcebergLeaf,
        block: Files,
        metrics: Columns,
        rows: pa.Array,
        footers: Sequence[Statistics],
        of_column: Metrics,
        known: _Facts,
    ) -> dict[str, Any]:
        """Facts for `rows_of_groups` about one column."""
        statistics = self._facts(leaf, block, of_column, known, rows)
        no_bytes = pa.repeat(pa.scalar(0, pa.int64()), len(block))
        statistics["size_bytes"] = no_bytes if self._is_absent(leaf, block) else of_column.sizes
        lacking = self._lacking(leaf, block, metrics) if footers else None
        if lacking is not None:
            reliable = [pair if pair is not None and _is_reliable(pair[0], leaf) else None for pair in footers]
            facts = footer_facts(reliable, [lambda footer: footer.position_of(leaf.field_id)], leaf.logical)
            facts = of_live_rows(facts, rows, block.rows, pc.equal(rows, block.rows))
            statistics = completed(statistics, facts, lacking)
        return statistics

    def _facts(
        self, leaf: IcebergLeaf, block: Files, metrics: Metrics, facts: _Facts, rows: pa.Array
    ) -> dict[str, Any]:
        """The same without sizes: from manifests (`facts`), else from partition values and defaults."""
        doubts = self._doubts(leaf, block, facts)
        # a file with a count of nulls has metrics
        if facts.null_count.null_count and not pc.all(metrics.known).as_py():
            facts = self._with_constants(facts, leaf, block, metrics.known)
        if facts.lower.null_count and self._transforms(leaf, block):
            facts = self._with_ranges(facts, leaf, block)
        of_rows = facts if rows is block.rows else _of_rows_left(facts, leaf, rows, block.rows)
        return of_rows._asdict() | {"doubt": doubts}

    def _reasons(self, type: str) -> tuple[dict[int, str], str]:
        """Snapshot id → the reason why its bounds of a type may be wrong, empty for none; and that of all others."""
        if type not in self._known_reasons:
            reasons = {id: doubt(ICEBERG, self._of_uniform or name, type) for id, name in self._writers.items()}
            of_others = next(filter(None, reasons.values()), doubt(ICEBERG, self._of_uniform or _UNNAMED, type))
            self._known_reasons[type] = reasons, of_others
        return self._known_reasons[type]

    def _doubts(self, leaf: IcebergLeaf, block: Files, facts: _Facts) -> pa.Array | None:
        """The reason why each file's bounds in the manifest may be wrong, null without such bounds; None without any.

        A snapshot that is gone names no writer: it is taken for one that is not known if another snapshot names one.
        """
        reasons, of_others = self._reasons(bound_type(leaf.logical.kind))
        if not of_others and not any(reasons.values()):
            return None
        coded = block.added_by.dictionary_encode(null_encoding="encode")
        found = [reasons.get(id, of_others) or None for id in coded.dictionary.to_pylist()]
        if not any(found):
            return None
        has_bound = pc.or_(pc.is_valid(facts.lower), pc.is_valid(facts.upper))
        of_files = pa.array(found, pa.string()).take(coded.indices)
        return pc.if_else(has_bound, of_files, pa.scalar(None, pa.string()))

    def _with_constants(self, facts: _Facts, leaf: IcebergLeaf, block: Files, known: pa.Array) -> _Facts:
        """Completes files without metrics (`known` is False) in which the column has but one value, and nulls."""
        only = [self._only_value(leaf, block, partition) for partition in block.partitions]
        fixed = pc.and_(pc.invert(known), _of_files([each is not None for each in only], block))
        everywhere = _of_files([each is not None and each.everywhere for each in only], block)
        is_null = _of_files([each is None or each.value is None for each in only], block)
        value = _bounds_of_files([each and each.value for each in only], leaf, block)
        none, unknown = pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())
        nulls, nans = pc.if_else(is_null, block.rows, pc.if_else(everywhere, none, unknown)), none
        if leaf.logical.kind in FLOATING:  # NaN is a value, but no bound
            is_nan = pc.is_nan(value).fill_null(False)
            nans, value = pc.if_else(is_nan, pc.if_else(everywhere, block.rows, unknown), none), numbers(value)
        constants = nulls, nans, value, value, everywhere, everywhere
        return _Facts(*(pc.if_else(fixed, ours, of) for ours, of in zip(constants, facts, strict=True)))

    def _with_ranges(self, facts: _Facts, leaf: IcebergLeaf, block: Files) -> _Facts:
        """Completes files without bounds by the range of the column's values in their partition."""
        spans = [self._span(leaf, block, partition) for partition in block.partitions]
        unknown = pc.and_(pc.is_null(facts.lower), pc.is_null(facts.upper))
        unknown = pc.and_(unknown, _of_files([span is not None for span in spans], block))
        unknown = pc.and_(unknown, pc.not_equal(facts.null_count, block.rows).fill_null(True))
        is_empty = _of_files([span is not None and span.empty for span in spans], block)
        uncounted = pc.and_(unknown, pc.is_null(facts.null_count))
        low = _bounds_of_files([span and span.low for span in spans], leaf, block)
        high = _bounds_of_files([span and span.high for span in spans], leaf, block)
        return facts._replace(
            null_count=pc.if_else(uncounted, pc.if_else(is_empty, block.rows, 0), facts.null_count),
            lower=pc.if_else(unknown, low, facts.lower),
            upper=pc.if_else(unknown, high, facts.upper),
            lower_exact=pc.if_else(unknown, False, facts.lower_exact),
            upper_exact=pc.if_else(unknown, False, facts.upper_exact),
        )

    def _transforms(self, leaf: IcebergLeaf, block: Files) -> list[tuple[int, Transform[Any, Any]]]:
        """Positions and transforms of the partition fields of a block that say something of a column."""
        if isinstance(leaf.type, NANOS):  # ranges end at a microsecond
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
        bits = 32 if isinstance(leaf.type, IntegerType) else 64
        spans = (span(transform, value, leaf.logical, bits) for transform, value in known)
        found = next((found for found in spans if found is not None), None)
        return None if found is None else _Span(False, *found)

    def _only_value(self, leaf: IcebergLeaf, block: Files, partition: tuple[Any, ...]) -> _OnlyValue | None:
        """The constant value of a column in files without metrics; None if the files may contain the column."""
        identity = identity_values(self._specs[block.spec_id], partition)
        if leaf.field_id in identity:
            value, within = identity[leaf.field_id], None
        elif not self._is_absent(leaf, block):
            return None
        else:
            value, within = leaf.value_where_missing(block.names)
        if isinstance(leaf.type, NANOS) and value is not None:
            value, beyond = divmod(value, 1000)
            if beyond:  # no bound can be that value
                return None
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


_UNNAMED: Final = WriterName.of(UNNAMED, ICEBERG_VERSION)
_UNIFORM: Final = WriterName.of("Delta UniForm", ICEBERG_VERSION)  # converts the statistics of a Delta log


def _writer_of(snapshot: Snapshot) -> WriterName:
    """The writer that the summary of a snapshot names."""
    summary = snapshot.summary
    if summary is None:
        return _UNNAMED
    engine = " ".join(filter(None, (summary["engine-name"], summary["engine-version"])))
    return WriterName.of(summary["iceberg-version"] or engine or UNNAMED, ICEBERG_VERSION)


def rows_left(block: Files, live: Mapping[int, int]) -> pa.Array:
    """Live rows of each file of a block."""
    if not live:
        return block.rows
    rows = block.rows.to_numpy().copy()
    rows[list(live)] = list(live.values())
    return pa.array(rows)


def _known(group: Sequence[IcebergLeaf], block: Files, metrics: Columns) -> Iterator[tuple[Metrics, _Facts]]:
    """The facts that manifests have of columns of one type. They are decoded together: each call has a fixed cost."""
    files, of_columns = len(block), [metrics.get(leaf.field_id) or Metrics.unknown(len(block)) for leaf in group]
    tight = pa.concat_arrays([of_column.tight for of_column in of_columns])
    lows, highs = ([getattr(of_column, side) for of_column in of_columns] for side in ("lower", "upper"))
    if isinstance(group[0].type, NANOS):
        lows, highs = ([_not_in_orc(of_column, block) for of_column in of_side] for of_side in (lows, highs))
    low, low_exact = decoded(lows, group[0], upper=False)
    high, high_exact = decoded(highs, group[0], upper=True)
    is_one = pc.equal(low, high).fill_null(False)  # one value, which both bounds are
    exact = [pc.if_else(is_one, True, _attained(side, tight)) for side in (low_exact, high_exact)]
    for at, (leaf, of_column) in enumerate(zip(group, of_columns, strict=True)):
        nulls = of_column.nulls
        if leaf.parents and of_column.left_out is not None:
            nulls = pc.add(nulls, of_column.left_out)
        bounds = (side.slice(at * files, files) for side in (low, high, *exact))
        yield of_column, _Facts(nulls, of_column.nans, *bounds)


def _not_in_orc(bounds: pa.Array, block: Files) -> pa.Array:
    """Bounds of nanoseconds without those of ORC files, which Iceberg's Java library wrote in microseconds before 1.12;
    no metadata records by which version a manifest was written."""
    return pc.if_else(pc.equal(block.formats, "ORC"), pa.scalar(None, bounds.type), bounds)


def _attained(exact: pa.Array, tight: pa.Array) -> pa.Array:
    """True where bounds are values of the file: their type says no other, nor does the manifest; null if unknown."""
    return pc.if_else(pc.is_valid(tight), pc.and_(pc.fill_null(exact, True), tight), exact)


def _of_files(of_partitions: Sequence[bool], block: Files) -> pa.Array:
    """A value of each partition for each file."""
    return pa.array(of_partitions, pa.bool_()).take(block.partition_of)


def _bounds_of_files(of_partitions: Sequence[Any], leaf: IcebergLeaf, block: Files) -> pa.Array:
    """A bound of each partition for each file."""
    return typed_array(list(of_partitions), leaf.logical).take(block.partition_of)


def _of_rows_left(facts: _Facts, leaf: IcebergLeaf, rows: pa.Array, records: pa.Array) -> _Facts:
    """The facts of the live rows, `rows` of each file, given those of all rows, `records` of each file."""
    whole = pc.equal(rows, records)
    # of one value, all rows that are left have it
    others = pc.add(facts.null_count, facts.nan_count) if leaf.logical.kind in FLOATING else facts.null_count
    is_one = pc.and_(pc.equal(facts.lower, facts.upper).fill_null(False), pc.equal(others, 0).fill_null(False))
    attained = pc.or_(whole, is_one)
    return facts._replace(
        null_count=live_counts(facts.null_count, rows, records, whole),
        nan_count=live_counts(facts.nan_count, rows, records, whole),
        lower_exact=pc.if_else(attained, facts.lower_exact, pc.and_(facts.lower_exact, False)),
        upper_exact=pc.if_else(attained, facts.upper_exact, pc.and_(facts.upper_exact, False)),
    )


def _is_reliable(footer: Footer, leaf: IcebergLeaf) -> bool:
    """True if the file has field ids, and has the column or its values are null."""
    return bool(footer.ids) and (footer.position_of(leaf.field_id) is not None or leaf.initial_default is None)


class _Facts(NamedTuple):
    """The facts of a column, one value per file. They are named as the arguments of `file_columns.column_rows`."""

    null_count: pa.Array
    nan_count: pa.Array
    lower: pa.Array
    upper: pa.Array
    lower_exact: pa.Array
    upper_exact: pa.Array


class _Span(NamedTuple):
    """The range of the values of a column in a file; all are null if `empty`, else none is."""

    empty: bool
    low: Any = None
    high: Any = None


class _OnlyValue(NamedTuple):
    """The constant value of a column in a file; `everywhere` is False if some rows may be null instead."""

    value: Any
    everywhere: bool
