"""Statistics that a Lance dataset keeps itself: zone maps per fragment, and Spark's ANALYZE in the manifest.

A zone map is exact for a fragment that never lost a row; with deletes it still encloses. What ANALYZE stored counts
only for the version it was computed at, and under the same schema (`lance.stats.*` in the dataset's config).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import pyarrow as pa

from capture.connectors.file_columns import column_rows
from capture.connectors.spi import FILE_COLUMN_SCHEMA, Column, ColumnIds
from store import bounds
from store.logical_types import Kind, LogicalType, parse, to_arrow

PREFIX = "lance.stats."
ENVELOPE_VERSION = "1"
COLUMN_VERSION = 2  # of Spark's CatalogColumnStat
ANALYZED_SCHEMA = pa.schema([f for f in FILE_COLUMN_SCHEMA if f.name != "file_path"])

_ZONE_MAP = "ZoneMapIndexDetails"
_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
# Kinds whose values a zone map is known to hold whole.
_WHOLE = frozenset({Kind.BOOLEAN, Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.DATE, Kind.TIME,
                    Kind.TIMESTAMP, Kind.TIMESTAMPTZ})  # fmt: skip


# Zone maps.


class Fragment(NamedTuple):
    """A fragment: the path of its first file, its live rows, and how many are deleted."""

    path: str
    live: int
    deleted: int


class _Zone(TypedDict):
    fragment_id: int
    min: Any
    max: Any
    null_count: int
    nan_count: int


def zone_map_rows(
    dataset: Any, fragments: Mapping[int, Fragment], wanted: Sequence[Column], ids: ColumnIds
) -> Iterator[pa.Table]:
    """Rows of `stats.file_columns`, one table per column that has a zone map.

    Args:
        dataset: The dataset, at the version asked for.
        fragments: The live fragments by their id.
        wanted: The leaf columns.
        ids: Column ids.
    """
    by_name = {column.name: column for column in wanted if column.name in ids}
    describe = getattr(dataset, "describe_indices", list)  # older releases tell less
    for index in describe():
        column = by_name.get(index.field_names[0]) if len(index.field_names) == 1 else None
        if column is None or not index.type_url.endswith(_ZONE_MAP) or not parse(column.logical_type).orderable:
            continue
        del by_name[column.name]  # a second zone map of the column says nothing new
        for segment in index.segments:
            covered = {i: fragments[i] for i in segment.fragment_ids if i in fragments}
            if segment.base_id is None and (zones := _read_zones(dataset, segment.uuid)) is not None:
                yield _rows(zones, covered, column, ids)


def _read_zones(dataset: Any, uuid: str) -> list[_Zone] | None:
    """The zones of an index file, None when there is no such file."""
    from lance.file import LanceFileReader

    uri = f"{str(dataset.uri).rstrip('/')}/_indices/{uuid}/zonemap.lance"
    try:
        table = LanceFileReader(uri, storage_options=dataset.latest_storage_options() or None).read_all().to_table()
    except (OSError, ValueError):
        return None
    if not set(_Zone.__annotations__) <= set(table.column_names):
        return None
    zones: list[_Zone] = table.select(list(_Zone.__annotations__)).to_pylist()
    return zones


def _rows(zones: list[_Zone], fragments: Mapping[int, Fragment], column: Column, ids: ColumnIds) -> pa.Table:
    """Zones merged by fragment."""
    merged: dict[int, _Zone] = {}
    for zone in zones:
        if zone["fragment_id"] not in fragments:
            continue
        sofar = merged.setdefault(zone["fragment_id"], zone)
        if sofar is not zone:
            sofar["min"] = _pick(min, sofar["min"], zone["min"])
            sofar["max"] = _pick(max, sofar["max"], zone["max"])
            sofar["null_count"] += zone["null_count"]
            sofar["nan_count"] += zone["nan_count"]
    kind = parse(column.logical_type)
    held = [fragments[i] for i in merged]
    exact = pa.array([not f.deleted and kind.kind in _WHOLE for f in held], pa.bool_())
    return column_rows(
        pa.array([f.path for f in held], pa.string()),
        column,
        ids,
        pa.array([f.live for f in held], pa.int64()),
        null_count=_counts(held, [zone["null_count"] for zone in merged.values()]),
        nan_count=_counts(held, [zone["nan_count"] for zone in merged.values()]) if kind.kind in _FLOATS else None,
        lower=_typed([zone["min"] for zone in merged.values()], kind),
        upper=_typed([zone["max"] for zone in merged.values()], kind),
        lower_exact=exact,
        upper_exact=exact,
    )


def _pick(how: Callable[..., Any], one: Any, other: Any) -> Any:
    """The lesser or the greater value: NaN is the greatest, text is in the order of its bytes, null is neither."""
    known = [value for value in (one, other) if value is not None]
    return how(known, key=lambda v: (v != v, v.encode() if isinstance(v, str) else v)) if known else None


def _counts(fragments: Sequence[Fragment], counts: Sequence[int]) -> pa.Array:
    """Counts over all rows of each fragment; where rows are gone only none is still known to be none."""
    known = [count if not f.deleted or not count else None for f, count in zip(fragments, counts, strict=True)]
    return pa.array(known, pa.int64())


def _typed(values: list[Any], kind: LogicalType) -> pa.Array:
    return pa.array(values, to_arrow(kind))


# ANALYZE of lance-spark.


def analyzed_columns(
    config: Mapping[str, str],
    version: int,
    rows: int,
    schema: pa.Schema,
    wanted: Sequence[Column],
    ids: ColumnIds,
) -> pa.Table | None:
    """Column statistics that Spark's ANALYZE left for just this version, None where there are none to be trusted."""
    told = {name.removeprefix(PREFIX): value for name, value in config.items() if name.startswith(PREFIX)}
    if told.get("version") != ENVELOPE_VERSION or told.get("complete", "true").lower() != "true":
        return None
    if told.get("computedAtVersion") != str(version) or told.get("numRows", str(rows)) != str(rows):
        return None
    if not told.get("schemaHash") or told["schemaHash"] != schema_hash(schema):
        return None
    found = [row for column in wanted if (row := _analyzed(told, column, rows, ids)) is not None]
    return pa.Table.from_pylist(found, ANALYZED_SCHEMA) if found else None


def _analyzed(told: Mapping[str, str], column: Column, rows: int, ids: ColumnIds) -> dict[str, Any] | None:
    prefix = f"column.{column.name}."
    stat = {name.removeprefix(prefix): value for name, value in told.items() if name.startswith(prefix)}
    version = _number(stat.get("version"))
    if column.name not in ids or version is None or version > COLUMN_VERSION:
        return None
    nulls, distinct = _number(stat.get("nullCount")), _number(stat.get("distinctCount"))
    low, high = (_bound(stat.get(side), column.logical_type) for side in ("min", "max"))
    width, widest = _number(stat.get("avgLen")), _number(stat.get("maxLen"))
    return {
        "column_id": ids[column.name],
        "column_name": column.name,
        "logical_type": column.logical_type,
        "row_count": rows,
        "null_count": nulls if nulls is not None and nulls <= rows else None,
        "ndv": None if distinct is None else float(distinct),
        "ndv_exact": None if distinct is None else False,
        "min": low,
        "max": high,
        "min_is_exact": None if low is None else True,
        "max_is_exact": None if high is None else True,
        "avg_width_bytes": None if width is None else float(width),
        "max_width_bytes": widest,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def _bound(text: str | None, logical_type: str) -> str | None:
    """A value as Spark writes it, which for timestamps is UTC with a blank."""
    if text is None:
        return None
    kind = parse(logical_type)
    if kind.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        text = text.replace(" ", "T") + ("Z" if kind.kind is Kind.TIMESTAMPTZ else "")
    try:
        return bounds.canonical(text, kind)
    except ValueError:
        return None


def schema_hash(schema: pa.Schema) -> str | None:
    """The fingerprint lance-spark keeps: SHA-256 over name, Spark's type and nullability of each field."""
    digest = hashlib.sha256()
    for field in schema:
        type = spark_type(field.type)
        if type is None:
            return None
        digest.update(field.name.encode() + b"\0" + type.encode() + b"\0" + bytes([field.nullable]) + b"\0")
    return digest.hexdigest()


_SPARK: Mapping[str, str] = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float": "float",
    "halffloat": "float", "double": "double", "string": "string", "large_string": "string", "binary": "binary",
    "large_binary": "binary", "date32[day]": "date", "timestamp[us]": "timestamp_ntz",
}  # fmt: skip


def spark_type(type: pa.DataType) -> str | None:
    """Spark's `catalogString` of an Arrow type, None where Spark would have another or none."""
    if pa.types.is_timestamp(type) and type.tz:
        return "timestamp"
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        inner = spark_type(type.value_type)
        return inner and f"array<{inner}>"
    if pa.types.is_struct(type):
        parts = [(f.name, spark_type(f.type)) for f in type]
        return None if any(t is None for _, t in parts) else f"struct<{','.join(f'{n}:{t}' for n, t in parts)}>"
    return _SPARK.get(str(type))
