"""Rows of `stats.file_columns` from typed arrays: converts bounds to canonical text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import FILE_COLUMN_SCHEMA, Column, ColumnIds
from store.model import bounds
from store.model.logical_types import FLOATING, LogicalType, parse, to_arrow
from store.model.statistics import FLAGS, SIDES

Item = TypeVar("Item")
Group: TypeAlias = tuple[Sequence[Column], Mapping[str, Any]]
"""Columns of one type, and what is known of them, see `rows_of_groups`."""

ROWS_PER_TABLE = 262_144
"""Approximate maximum of rows in one table of file columns."""
_SIDES_AND_FLAGS: Final = tuple(chain.from_iterable(zip(SIDES, FLAGS, strict=True)))


def absent(logical_type: str) -> pa.Array:
    """A one-element null array: the constant of a column that is missing in a file."""
    try:
        return pa.nulls(1, to_arrow(parse(logical_type)))
    except ValueError:  # types without an Arrow form, such as INTERVAL
        return pa.nulls(1)


def alike(columns: Iterable[Item], key: Callable[[Item], Any]) -> list[list[Item]]:
    """Groups columns by a key, in the order of their first columns. Each Arrow call has a fixed cost, so the rows of a
    group are built together."""
    groups: dict[Any, list[Item]] = {}
    for column in columns:
        groups.setdefault(key(column), []).append(column)
    return list(groups.values())


def repeated(values: pa.Array, times: int) -> pa.Array:
    """Values of files for each of some columns, one column after the other."""
    return values if times == 1 else pa.concat_arrays([values] * times)


def joined(facts: Sequence[Mapping[str, Any]], kind: LogicalType) -> dict[str, pa.Array]:
    """Facts for `rows_of_groups` about columns of one type, from those about each: arrays of the same names."""
    type = to_arrow(kind)
    sides = {name: [of[name].cast(type) for of in facts] for name in ("lower", "upper")}
    others = {name: [of[name] for of in facts] for name in facts[0] if name not in (*sides, "doubt")}
    doubts = [of.get("doubt") for of in facts]
    if any(of_column is not None for of_column in doubts):
        none = pa.nulls(len(sides["lower"][0]), pa.string())
        others["doubt"] = [none if of_column is None else of_column for of_column in doubts]
    return {name: pa.concat_arrays(values) for name, values in (others | sides).items()}


def column_rows(
    file_paths: pa.Array, columns: Sequence[Column], ids: ColumnIds, row_count: pa.Array, **facts: Any
) -> pa.Table:
    """`rows_of_groups` for columns of one type."""
    return rows_of_groups(file_paths, [(columns, facts)], ids, row_count)


def rows_of_groups(file_paths: pa.Array, groups: Sequence[Group], ids: ColumnIds, row_count: pa.Array) -> pa.Table:
    """Builds the rows of columns, one per file, column after column.

    Contradictory values become null: a null count below zero or above the row count, a lower bound above the upper.
    Files without rows have no bounds, not even from their partition.

    Args:
        file_paths: Paths of the files.
        groups: Columns of one type each, and what is known of them: `null_count`, `nan_count`, `size_bytes` (compressed
            bytes of the column in the file), `lower`, `upper`, `lower_exact`, `upper_exact` and `doubt`, arrays with a
            value for each column and file, as in the result. An exactness may be one value for all.
        row_count: Live rows of each file.
    """
    columns = [column for group, _ in groups for column in group]
    count, files = len(columns), len(file_paths)
    column_of = pa.array(np.repeat(np.arange(count), files))
    arrays = dict(_blank(count * files))
    arrays["file_path"], arrays["row_count"] = repeated(file_paths, count), repeated(row_count, count)
    arrays["column_id"] = pa.array([column.id_in(ids) for column in columns], pa.int64()).take(column_of)
    arrays["column_name"] = pa.array([column.name for column in columns], pa.string()).take(column_of)
    arrays["logical_type"] = pa.array([column.logical_type for column in columns], pa.string()).take(column_of)
    sizes = _counts(groups, "size_bytes", files)
    if sizes is not None:
        arrays["bytes_scanned"] = pc.if_else(pc.less(sizes, 0), pa.scalar(None, pa.int64()), sizes)
    floating = [(group, facts if group[0].logical_type in FLOATING else {}) for group, facts in groups]
    for name, known in (("null_count", groups), ("nan_count", floating)):
        if (counts := _counts(known, name, files)) is not None:
            arrays[name] = _plausible(counts, arrays["row_count"])
    filled = pc.not_equal(row_count, 0).fill_null(True) if files and pc.min(row_count).as_py() == 0 else None
    sides = [_sides(facts, parse(group[0].logical_type), len(group) * files, filled) for group, facts in groups]
    for name, parts in zip(_SIDES_AND_FLAGS, zip(*sides, strict=True), strict=True):
        arrays[name] = pa.concat_arrays(parts)
    if (doubts := _doubts(groups, files)) is not None:
        arrays |= _doubted(arrays, doubts)
    return pa.table([arrays[name] for name in FILE_COLUMN_SCHEMA.names], FILE_COLUMN_SCHEMA)


def live_counts(counts: pa.Array, rows: pa.Array, records: pa.Array | None, whole: pa.Array) -> pa.Array:
    """Counts of the live rows of files, from counts of all rows.

    Args:
        counts: Null or NaN counts of all rows, shape (files,).
        records: Rows including deleted ones; None if unknown.
        whole: Whether all rows are live. Of other files only a count of no row or of every row is known.
    """
    if pc.all(whole).as_py():
        return counts
    known = pc.if_else(pc.equal(counts, 0), counts, pa.scalar(None, pa.int64()))
    if records is not None:
        known = pc.if_else(pc.fill_null(pc.equal(counts, records), False), rows, known)
    known = pc.if_else(pc.fill_null(pc.equal(rows, 0), False), 0, known)
    return pc.if_else(whole, counts, known)


def partition_facts(values: pa.Array, rows: pa.Array | None) -> dict[str, Any]:
    """Counts and bounds of a partition column, which has one value per file, or only nulls."""
    nulls = pc.if_else(pc.is_null(values), rows, pa.scalar(0, pa.int64()))
    nothing = pa.repeat(pa.scalar(0, pa.int64()), len(values))  # the column is not in the files
    columns = {"null_count": nulls, "lower_exact": True, "upper_exact": True, "size_bytes": nothing}
    if pa.types.is_floating(values.type):
        nan = pc.fill_null(pc.is_nan(values), False)
        columns["nan_count"] = pc.if_else(nan, rows, pa.scalar(0, pa.int64()))
        values = numbers(values)
    return columns | {"lower": values, "upper": values}


def partition_json(values: Mapping[str, Any]) -> str:
    """A partition as `partition_data_json` of `stats.files`: bytes as base64, dates and numbers that JSON lacks as
    text."""
    return json.dumps({name: _json_value(value) for name, value in values.items()}, ensure_ascii=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return bounds.java_double(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def numbers(values: pa.Array) -> pa.Array:
    """Floats with NaN as null, because bounds skip NaN."""
    return pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(None, values.type), values)


@lru_cache(maxsize=8)
def _blank(rows: int) -> Mapping[str, pa.Array]:
    """Columns of nulls, cached because all columns of a table need the same ones."""
    return {item.name: pa.nulls(rows, item.type) for item in FILE_COLUMN_SCHEMA}


def _counts(groups: Sequence[Group], name: str, files: int) -> pa.Array | None:
    """One of the facts about all groups (int64); None if it is known of none."""
    given = [facts.get(name) for _, facts in groups]
    if all(counts is None for counts in given):
        return None
    return pa.concat_arrays(
        [
            pa.nulls(len(group) * files, pa.int64()) if counts is None else counts.cast(pa.int64())
            for (group, _), counts in zip(groups, given, strict=True)
        ]
    )


def _doubts(groups: Sequence[Group], files: int) -> pa.Array | None:
    """The doubts about all groups; None without any."""
    given = [facts.get("doubt") for _, facts in groups]
    if all(doubts is None for doubts in given):
        return None
    return pa.concat_arrays(
        [
            pa.nulls(len(group) * files, pa.string()) if doubts is None else doubts
            for (group, _), doubts in zip(groups, given, strict=True)
        ]
    )


def _doubted(arrays: Mapping[str, pa.Array], doubts: pa.Array) -> dict[str, pa.Array]:
    """The columns of rows whose bounds are in doubt: whether these are attained is not known either."""
    has_bound = pc.or_(*(pc.is_valid(arrays[side]) for side in SIDES))
    doubts = pc.if_else(has_bound, doubts, pa.scalar(None, pa.string()))
    unsure, unknown = pc.is_valid(doubts), pa.scalar(None, pa.bool_())
    flags = {name: pc.if_else(unsure, unknown, arrays[name]) for name in FLAGS}
    return flags | {"doubt": doubts}


def _plausible(count: pa.Array, row_count: pa.Array) -> pa.Array:
    is_usual = len(count) and not (count.null_count or row_count.null_count)
    if is_usual and pc.min(count).as_py() >= 0 and pc.max(count).as_py() <= pc.min(row_count).as_py():
        return count
    sound = pc.and_kleene(
        pc.greater_equal(count, 0), pc.or_kleene(pc.is_null(row_count), pc.less_equal(count, row_count))
    )
    return pc.if_else(pc.fill_null(sound, False), count, pa.scalar(None, pa.int64()))


def _sides(facts: Mapping[str, Any], kind: LogicalType, rows: int, filled: pa.Array | None) -> tuple[pa.Array, ...]:
    """The arrays of `_SIDES_AND_FLAGS` of a group, null in files that are not `filled`."""
    lower, upper = _in_order(facts.get("lower"), facts.get("upper")) if kind.orderable else (None, None)
    if filled is not None:
        filled = repeated(filled, rows // len(filled))
        lower, upper = (
            None if side is None else pc.if_else(filled, side, pa.scalar(None, side.type)) for side in (lower, upper)
        )
    exact = facts.get("lower_exact"), facts.get("upper_exact")
    return *_bound(lower, kind, exact[0], rows), *_bound(upper, kind, exact[1], rows)


def _in_order(lower: pa.Array | None, upper: pa.Array | None) -> tuple[pa.Array | None, pa.Array | None]:
    if lower is None or upper is None or lower.null_count == len(lower) or upper.null_count == len(upper):
        return lower, upper
    crossed = pc.fill_null(pc.greater(lower, upper), False)
    if not pc.any(crossed).as_py():
        return lower, upper
    nothing = pa.scalar(None, lower.type)
    return pc.if_else(crossed, nothing, lower), pc.if_else(crossed, nothing, upper)


def _bound(
    values: pa.Array | None, kind: LogicalType, exact: pa.Array | bool | None, rows: int
) -> tuple[pa.Array, pa.Array]:
    if values is None or values.null_count == rows:
        return pa.nulls(rows, pa.string()), pa.nulls(rows, pa.bool_())
    text = bounds.encode_array(values, kind)
    if exact is None:
        return text, pa.nulls(rows, pa.bool_())
    flags = pa.repeat(pa.scalar(exact, pa.bool_()), rows) if isinstance(exact, bool) else exact
    if not text.null_count:
        return text, flags
    return text, pc.if_else(pc.is_valid(text), flags, pa.scalar(None, pa.bool_()))
