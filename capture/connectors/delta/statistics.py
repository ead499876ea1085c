"""Per-file column statistics of a Delta table, from the log, or from Parquet footers if the log has none.

In the log:

* Timestamps are truncated to milliseconds: upper bounds are moved up by one, and no bound is exact.
* Decimals of more than 15 digits were written through a double: bounds are widened. Beyond 18 digits they are dropped.
* Strings of at least 32 UTF-16 units or 61 bytes may be truncated. Earlier Delta versions of Spark end such an upper
  bound with U+FFFD, which is less than characters beyond U+FFFF, and write half of one before it as a question mark.
* If a column was widened from float to double, the log may have the text of a float, and the file that float.
* In files with deleted rows no bound is exact.
* There are no NaN counts, and bounds of floats skip NaN.
* The commit names its writer (`engineInfo`), which is known to write bounds right or not (`known_writers`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.delta.lake_table import LakeTable
from capture.connectors.delta.log import DeltaColumn
from capture.connectors.delta.log_statistics import typed
from capture.connectors.delta.table_log import doubt_about
from capture.connectors.delta.table_version import TableVersion, has_statistics, position_in, wanted_columns
from capture.connectors.file_columns import (
    ROWS_PER_TABLE,
    alike,
    live_counts,
    numbers,
    partition_facts,
    repeated,
    rows_of_groups,
)
from capture.connectors.footers.statistics import (
    MAX_FOOTERS,
    FooterCache,
    Statistics,
    completed,
    footer_facts,
    of_live_rows,
)
from capture.connectors.spi import FILE_COLUMN_SCHEMA, ColumnIds
from capture.connectors.storage.places import batched
from store.model.logical_types import Kind, LogicalType, parse, to_arrow

_FOOTERS: Final = 256  # footers read at once


def column_statistics(
    table: LakeTable,
    footers: FooterCache,
    ids: ColumnIds,
    names: frozenset[str] | None,
    load: Callable[[], TableVersion],
) -> Iterator[pa.Table]:
    """Yields tables of FILE_COLUMN_SCHEMA for the files that `load` returns, of columns with these names or keys."""
    version = load()
    leaves = wanted_columns(version.schema, names)
    if not len(version) or not leaves:
        yield FILE_COLUMN_SCHEMA.empty_table()
        return
    is_complete = has_statistics(version, [leaf for leaf in leaves if not version.is_partition(leaf)])
    if len(version) - sum(is_complete) > MAX_FOOTERS:
        is_complete = [True] * len(version)
    lacking = [i for i, complete in enumerate(is_complete) if not complete]
    if len(lacking) < len(version):
        whole = version.files([i for i, complete in enumerate(is_complete) if complete]) if lacking else version
        yield from _tables(whole, leaves, ids, ())
    for positions in batched(lacking, _FOOTERS):
        with table.reading_files():
            read = footers.readable_statistics(table.listed(version.actions, positions))
        yield from _tables(version.files(positions), leaves, ids, read)


def _tables(
    files: TableVersion, leaves: Sequence[DeltaColumn], ids: ColumnIds, footers: Sequence[Statistics]
) -> Iterator[pa.Table]:
    """Rows of some files, few columns at once; those alike together, because each call has a fixed cost."""

    def kind(logged: tuple[Any, ...]) -> tuple[Any, ...]:
        leaf, *values = logged
        types = [None if each is None else each.type for each in values]
        return leaf.column.logical_type, files.is_partition(leaf), "float" in leaf.widened_from, *types

    tight = files.has_tight_statistics
    for some in batched(leaves, max(1, ROWS_PER_TABLE // len(files))):
        groups = []
        for group in alike([(leaf, *files.statistics(leaf)) for leaf in some], kind):
            columns, *logged = zip(*group, strict=True)
            facts = _facts(files, columns, [_joined(values) for values in logged], tight, footers)
            groups.append(([leaf.column for leaf in columns], facts))
        yield rows_of_groups(files.paths, groups, ids, files.rows)


def _joined(values: Sequence[pa.Array | None]) -> pa.Array | None:
    return None if values[0] is None else pa.concat_arrays(values)


def _facts(
    files: TableVersion,
    group: Sequence[DeltaColumn],
    logged: Sequence[pa.Array | None],
    tight: pa.Array,
    footers: Sequence[Statistics],
) -> dict[str, Any]:
    """Facts for `rows_of_groups` about columns alike: from the log, what it does not have from footers.

    Args:
        logged: Null counts, least and greatest values in the log, those of a column after those of another.
        tight: `files.has_tight_statistics`.
    """
    count = len(group)
    rows = repeated(files.rows, count)
    if files.is_partition(group[0]):
        values = _joined([files.partition(leaf) for leaf in group])
        return {} if values is None else partition_facts(values, rows)
    kind, tight = parse(group[0].column.logical_type), repeated(tight, count)
    nulls, *bounds = logged
    records = files.column("num_records")
    facts: dict[str, Any] = {}
    if nulls is not None:
        of_all = None if records is None else repeated(records, count)
        facts["null_count"] = live_counts(nulls.cast(pa.int64()), rows, of_all, tight)
    was_float = kind.kind is Kind.DOUBLE and "float" in group[0].widened_from
    for side, values in zip(("lower", "upper"), bounds, strict=True):
        if values is not None and kind.orderable:
            in_type = typed(values, kind)
            facts[side], attained = enclosing(in_type, kind, upwards=side == "upper", was_float=was_float)
            facts[f"{side}_exact"] = pc.and_(attained, tight)
    logged_bounds = [facts[side] for side in ("lower", "upper") if side in facts]
    if logged_bounds and (doubts := _doubts(files, kind)) is not None:
        has_bound = pc.is_valid(pc.coalesce(*logged_bounds))  # those of footers have doubts of their own
        facts["doubt"] = pc.if_else(has_bound, repeated(doubts, count), pa.scalar(None, pa.string()))
    if not footers:
        return facts
    others = footer_facts(footers, [partial(position_in, leaf) for leaf in group], kind)
    counts = pa.array([None if footer is None else footer[0].row_count for footer in footers], pa.int64())
    lacking = pa.repeat(True, len(rows)) if nulls is None else pc.is_null(nulls)
    return completed(facts, of_live_rows(others, rows, repeated(counts, count), tight), lacking)


def _doubts(files: TableVersion, kind: LogicalType) -> pa.Array | None:
    """The reason why each file's logged bounds of a type may be wrong; None without any."""
    engines = files.column("engine")
    if engines is None or engines.null_count == len(engines):
        return None
    coded = engines.dictionary_encode()
    reasons = [doubt_about(engine, kind.kind) or None for engine in coded.dictionary.to_pylist()]
    return pa.array(reasons, pa.string()).take(coded.indices) if any(reasons) else None


# The log's bounds.

CUT_STRING: Final = 32  # UTF-16 units at which strings are truncated
CUT_BYTES: Final = 61  # Rust writers truncate before a character that would end beyond 64 bytes
_PAIRED: Final = "[\U00010000-\U0010ffff]"  # characters of two UTF-16 units
_TIE: Final = "\ufffd"
EXACT_DIGITS: Final = 15  # digits up to which a double represents a decimal exactly
WIDENED_DIGITS: Final = 18  # digits beyond which bounds are not used
_TICK: Final = 1000  # µs; resolution of the log's timestamps
_WIDE: Final = Context(prec=60)


def enclosing(values: pa.Array, kind: LogicalType, *, upwards: bool, was_float: bool) -> tuple[pa.Array, pa.Array]:
    """Bounds moved outwards by their possible error, and a mask of exact ones; `was_float`: some files store doubles
    as 32-bit floats."""
    all_true = pa.repeat(True, len(values))
    match kind.kind:
        case Kind.STRING:
            units = pc.add(pc.utf8_length(values), pc.count_substring_regex(values, _PAIRED))
            whole = pc.and_(pc.less(units, CUT_STRING), pc.less(pc.binary_length(values), CUT_BYTES))
            whole = pc.fill_null(whole, False)
            return _above_ties(values, whole) if upwards else values, whole
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            ticks = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
            rest = pc.subtract(ticks, pc.multiply(pc.divide(ticks, _TICK), _TICK))
            cut = pc.fill_null(pc.equal(rest, 0), True)
            if upwards:
                room = pc.less(ticks, np.iinfo(np.int64).max - _TICK)
                ticks = pc.if_else(pc.and_(cut, pc.fill_null(room, False)), pc.add(ticks, _TICK), ticks)
            return ticks.cast(to_arrow(kind)), pc.invert(cut)
        case Kind.DECIMAL:
            digits = kind.precision or 0
            if digits <= EXACT_DIGITS:
                return values, all_true
            wide = _widened(values, kind, upwards) if digits <= WIDENED_DIGITS else pa.nulls(len(values), values.type)
            return wide, pa.repeat(False, len(values))
        case Kind.FLOAT | Kind.DOUBLE:
            values = numbers(values)
            return _of_floats(values, upwards=upwards) if was_float else (values, all_true)
        case Kind.INT | Kind.DATE | Kind.BOOLEAN:
            return values, all_true
    return values, pa.repeat(False, len(values))


def _above_ties(values: pa.Array, whole: pa.Array) -> pa.Array:
    """Texts, those that end with a tie-breaker which the text that was cut may exceed moved upwards."""
    tied = pc.and_(pc.ends_with(values, _TIE), pc.invert(whole))
    if not pc.any(tied).as_py():
        return values
    pairs = zip(values.to_pylist(), tied.to_pylist(), strict=True)
    return pa.array([_above(text[:-2]) if is_tied else text for text, is_tied in pairs], values.type)


def _above(prefix: str) -> str | None:
    """The least text above all that begin with a prefix; None if there is none."""
    prefix = prefix.rstrip(chr(sys.maxunicode))
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if following == 0xD800 else following)  # without surrogates, which are no text


def _of_floats(values: pa.Array, *, upwards: bool) -> tuple[pa.Array, pa.Array]:
    """Doubles, those that may be the text of a 32-bit float moved outwards to it, and a mask of unchanged ones."""
    logged = np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = logged.astype(np.float32).astype(np.float64)
    # a float's text has at most nine digits; a number with more digits is a double
    texts = [
        bool(np.isfinite(there)) and float(f"{here:.9g}") == here for here, there in zip(logged, floats, strict=True)
    ]
    numbers = np.where(texts, floats, logged)
    moved = (np.maximum if upwards else np.minimum)(logged, numbers)
    return pa.array(moved, pa.float64(), mask=np.isnan(logged)), pa.array(numbers == logged)


def _widened(values: pa.Array, kind: LogicalType, upwards: bool) -> pa.Array:
    """Widens bounds that were written through a double, by four units in its last place and one in their own."""
    step = Decimal(1).scaleb(-(kind.scale or 0))
    limit = Decimal(10) ** ((kind.precision or 0) - (kind.scale or 0)) - step
    sign, rounding = (1, ROUND_CEILING) if upwards else (-1, ROUND_FLOOR)

    def widened(value: Decimal | None) -> Decimal | None:
        if value is None:
            return None
        moved = value + sign * (_WIDE.multiply(abs(value), Decimal(2) ** -50) + step)
        return max(-limit, min(limit, moved.quantize(step, rounding, _WIDE)))

    return pa.array([widened(value) for value in values.to_pylist()], to_arrow(kind))
