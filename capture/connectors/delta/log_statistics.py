"""Parses the statistics and partition values of add actions into typed columns.

pyarrow parses statistics. Where it refuses a slice, DuckDB does, in which what is not JSON or not of its column's type
is null. A query of DuckDB has a fixed cost of some milliseconds, which a small table would notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache, reduce
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from capture.connectors.delta.log import DeltaColumn, DeltaSchema
from capture.connectors.delta.log_files import PARSED, one_array
from store.duckdb.arrow_sql import query
from store.model.logical_types import TEMPORAL, Kind, LogicalType, parse, to_arrow

TIGHT: Final = "tight_bounds"
"""Name of the column with `tightBounds`: False if bounds may be wide and null counts wrong."""
_BOUNDED: Final = frozenset(
    {
        Kind.BOOLEAN,
        Kind.INT,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.STRING,
        Kind.DATE,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)
_SQL: Final = {pa.bool_(): "BOOLEAN", pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE"}
STATISTICS: Final = {"null_count": "nullCount", "min": "minValues", "max": "maxValues"}
_ROWS: Final = r'^\s*\{\s*"numRecords"\s*:\s*(?P<rows>-?\d+)\s*[,}]'  # as all known writers begin
_ZONE: Final = r"(Z|[+-]\d\d:?\d\d)$"
_BREAK: Final = "[\r\n]"
_BLOCK_BYTES: Final = 4 << 20  # parsed at once; at least the longest statistics

_Structure = dict[str, Any]
"""The fields of JSON objects: names to Arrow types or further structures."""


def row_counts(adds: pa.Table) -> pa.Array:
    """`numRecords` of each add (int64), null if unknown."""
    if PARSED in adds.column_names:
        return _child(one_array(adds[PARSED]), "numRecords", pa.int64())
    stats = one_array(adds["stats"])
    counts = pc.struct_field(pc.extract_regex(stats, _ROWS), [0])
    if counts.null_count > stats.null_count:
        return _child(_transformed(adds, {"numRecords": pa.int64()}), "numRecords", pa.int64())
    return counts.cast(pa.int64())


def statistics(adds: pa.Table, schema: DeltaSchema, partitions: Sequence[str]) -> pa.Table:
    """`null_count`, `min` and `max`, structs by physical names, and TIGHT, one row per add.

    Args:
        adds: Output of `adds_of`.
        partitions: Names of the partition columns, which have no statistics.
    """
    parsed = (
        one_array(adds[PARSED]) if PARSED in adds.column_names else _transformed(adds, _structure(schema, partitions))
    )
    tight = _child(parsed, "tightBounds", pa.bool_())
    columns = {name: _child(parsed, there) for name, there in STATISTICS.items()}
    return pa.table(columns | {TIGHT: pc.if_else(pc.is_valid(parsed), pc.fill_null(tight, True), tight)})


def partition_values(adds: pa.Table, schema: DeltaSchema, partitions: Sequence[str]) -> pa.Array:
    """A struct of the typed values of the partition columns by name, one per add; null if there are none, or one of the
    values is not of its column's type, as in a removed file, after which the type was changed."""
    leaves = [leaf for leaf in schema.columns if len(leaf.logical) == 1 and leaf.logical[0] in partitions]
    if not leaves:
        return pa.nulls(len(adds))
    logged = one_array(adds["partitionValues"])
    texts = [_partition_text(logged, leaf) for leaf in leaves]
    arrays = [typed(text, parse(leaf.column.logical_type)) for text, leaf in zip(texts, leaves, strict=True)]
    wrong = (pc.and_not(pc.is_null(array), pc.is_null(text)) for text, array in zip(texts, arrays, strict=True))
    return pa.StructArray.from_arrays(arrays, [leaf.logical[0] for leaf in leaves], mask=reduce(pc.or_, wrong))


def typed(values: pa.Array, kind: LogicalType) -> pa.Array:
    """Texts or similar values of a log in the type of their column, null where they are not of the type."""
    if kind.kind in TEMPORAL and pa.types.is_string(values.type):
        if kind.kind is Kind.TIMESTAMPTZ:
            zone = pc.if_else(pc.match_substring_regex(values, _ZONE), "", "Z")
            values = pc.binary_join_element_wise(values, zone, "")
        else:
            values = pc.replace_substring_regex(values, _ZONE, "")
    try:
        if kind.kind is Kind.DECIMAL and pa.types.is_string(values.type):  # a cast wraps around
            values = pa.array(None if text is None else Decimal(text) for text in values.to_pylist())
        return values.cast(to_arrow(kind))
    except (ArithmeticError, pa.ArrowInvalid):  # ArithmeticError: a text is no decimal number
        if len(values) == 1:
            return pa.nulls(1, to_arrow(kind))
    half = len(values) // 2
    return pa.concat_arrays([typed(values.slice(0, half), kind), typed(values.slice(half), kind)])


def _partition_text(logged: pa.MapArray, leaf: DeltaColumn) -> pa.Array:
    """The values of one partition column as text; an empty one is null."""
    text = pc.map_lookup(logged, leaf.physical[0], "first")
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _bound_type(kind: LogicalType) -> pa.DataType | None:
    """The type as which bounds are parsed; None for columns whose bounds are not."""
    if kind.kind in (*TEMPORAL, Kind.DATE):
        return pa.string()
    return to_arrow(kind) if kind.kind in _BOUNDED else None


def _structure(schema: DeltaSchema, partitions: Sequence[str]) -> _Structure:
    """The JSON fields to parse. DuckDB's names differ in more than case: of other columns the statistics remain in the
    files."""
    structure: _Structure = {"tightBounds": pa.bool_()}
    seen: set[tuple[str, ...]] = set()
    for leaf in schema.columns:
        folded = tuple(name.casefold() for name in leaf.physical)
        if not leaf.column.is_leaf or folded in seen or (len(leaf.logical) == 1 and leaf.logical[0] in partitions):
            continue
        seen.add(folded)
        bound = _bound_type(parse(leaf.column.logical_type))
        for name, type in (("nullCount", pa.int64()), ("minValues", bound), ("maxValues", bound)):
            if type is not None:
                inner = structure.setdefault(name, {})
                for part in leaf.physical[:-1]:
                    inner = inner.setdefault(part, {})
                inner[leaf.physical[-1]] = type
    return structure


def _transformed(adds: pa.Table, structure: _Structure) -> pa.StructArray:
    """`stats` as structs; null if they are not a JSON object."""
    stats = one_array(adds["stats"])  # pyarrow crashes on a block that begins with the JSON null
    are_objects = pc.fill_null(pc.match_substring_regex(stats, r"^\s*\{"), False)
    objects = stats if pc.all(are_objects, min_count=0).as_py() else pc.if_else(are_objects, stats, "{}")
    if (columns := _parsed(objects, structure)) is None and pc.any(pc.match_substring_regex(objects, _BREAK)).as_py():
        columns = _parsed(pc.replace_substring_regex(objects, _BREAK, " "), structure)
    if columns is not None:
        return pa.StructArray.from_arrays(columns, list(structure), mask=pc.invert(are_objects))
    stats = pc.if_else(are_objects, stats, pa.scalar(None, pa.string()))
    sql = "SELECT TRY(from_json(stats, $structure)) AS stats FROM {adds}"
    given = {"structure": json.dumps(_sql_types(structure))}
    return one_array(query(_database().cursor(), sql, given, adds=pa.table({"stats": stats}))["stats"])


def _parsed(objects: pa.StringArray, structure: _Structure) -> list[pa.Array] | None:
    """The fields of JSON objects, each on a line; None if pyarrow refuses one, or one has several lines."""
    if not len(objects):
        return None
    lines = pc.binary_join_element_wise(objects, "", "\n").buffers()[2]  # each ends with a line break
    block = max(_BLOCK_BYTES, 2 * (pc.max(pc.binary_length(objects)).as_py() or 0))
    with suppress(pa.ArrowInvalid):
        table = pj.read_json(
            pa.BufferReader(lines),
            pj.ReadOptions(use_threads=False, block_size=block),
            pj.ParseOptions(pa.schema(_fields(structure)), unexpected_field_behavior="ignore"),
        )
        if len(table) == len(objects):
            return [one_array(table[name]) for name in structure]
    return None


def _fields(structure: Mapping[str, Any]) -> list[tuple[str, pa.DataType]]:
    return [(name, pa.struct(_fields(of)) if isinstance(of, Mapping) else of) for name, of in structure.items()]


def _sql_types(structure: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _sql_types(of)
        if isinstance(of, Mapping)
        else f"DECIMAL({of.precision},{of.scale})"
        if pa.types.is_decimal(of)
        else _SQL.get(of, "VARCHAR")
        for name, of in structure.items()
    }


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:")


def _child(values: pa.StructArray, name: str, type: pa.DataType | None = None) -> pa.Array:
    """A field of structs, null where they do not have it."""
    at = values.type.get_field_index(name)
    if at < 0:
        return pa.nulls(len(values), type or pa.null())
    child = pc.struct_field(values, [at])
    return child if type is None else child.cast(type)
