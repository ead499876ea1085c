"""Reads `content_stats`, in which manifests of Iceberg v4 have the metrics of columns: a struct per column, typed.

Ids tell what a field is: `10_000 + 200 × field id` is the struct of a column, and the ids after it are its metrics. A
missing field is unknown, except for the count of nulls of a column that cannot have any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType, StructType

CONTENT_STATS_ID: Final = 146
_FIRST_ID, _IDS = 10_000, 200
_LOWER, _UPPER, _TIGHT, _VALUES, _NULLS, _NANS = range(1, 7)
METRICS: Final = (_NULLS, _NANS, _LOWER, _UPPER, _VALUES, _TIGHT)
"""The metrics that are read, in the order of the maps that `decoder_of` returns."""

Maps = tuple[dict[int, Any], ...]


def with_content_stats(entry: Schema, found: Schema, file_id: int) -> tuple[Schema, Callable[[Any], Maps] | None]:
    """The schema to read a manifest's entries by.

    Args:
        entry: The schema of entries without `content_stats`.
        found: The manifest's own.
        file_id: Field id of the file's record.

    Returns:
        `entry`, with `content_stats` as the last field of a file's record if the manifest has it; and a function from
        its value to field id → metric, for each of `METRICS`, bounds as bytes, or None.
    """
    stats = _struct(next(item for item in found.fields if item.field_id == file_id)).field(CONTENT_STATS_ID)
    if stats is None:
        return entry, None
    fields = list(entry.fields)
    at = next(at for at, item in enumerate(fields) if item.field_id == file_id)
    fields[at] = fields[at].model_copy(update={"field_type": StructType(*_struct(fields[at]).fields, stats)})
    columns = [
        (at, (item.field_id - _FIRST_ID) // _IDS, _decoders(item))
        for at, item in enumerate(_struct(stats).fields)
        if item.field_id >= _FIRST_ID and item.field_id % _IDS == _FIRST_ID % _IDS
    ]

    def decoded(value: Any) -> Maps:
        maps: Maps = tuple({} for _ in METRICS)
        for at, field_id, decoders in columns:
            of_column = None if value is None else value[at]
            if of_column is None:
                continue
            for found, decode in zip(maps, decoders, strict=True):
                if decode is not None and (metric := decode(of_column)) is not None:
                    found[field_id] = metric
        return maps

    return Schema(*fields), decoded


def _decoders(column: NestedField) -> list[Callable[[Any], Any] | None]:
    """For each of `METRICS`, its value in the record of a column; None if the record does not have it."""
    places = {item.field_id - column.field_id: (at, item.field_type) for at, item in enumerate(_struct(column).fields)}

    def decoder(offset: int) -> Callable[[Any], Any] | None:
        if offset == _NULLS and offset not in places and _VALUES in places:  # the column is required
            return lambda record: None if record[places[_VALUES][0]] is None else 0
        if offset not in places:
            return None
        at, type = places[offset]
        if offset not in (_LOWER, _UPPER):
            return lambda record: record[at]
        if not isinstance(type, PrimitiveType):  # of a geometry or a variant
            return None
        return lambda record: None if record[at] is None else to_bytes(type, record[at])

    return [decoder(offset) for offset in METRICS]


def _struct(field: NestedField) -> StructType:
    if not isinstance(field.field_type, StructType):
        raise ValueError(f"field {field.field_id} of a manifest is not a struct")
    return field.field_type
