"""Converts Paimon schemas, and compares types of older files with current ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pypaimon.schema.data_types import AtomicType, DataField, PyarrowFieldParser, RowType

from capture.connectors.spi import Column, Schema
from store.model.logical_types import from_arrow


def beyond_micros(field: Any) -> bool:
    """True if the type is finer than microseconds, to which the library truncates."""
    precision = re.match(r"TIMESTAMP(?:_LTZ)?\((\d+)\)", str(getattr(field.type, "type", "")).upper())
    return precision is not None and int(precision[1]) > 6


def reads_as(was: Any, now: Any) -> bool:
    """True if bounds of an older file's type are valid for the column's current type."""
    if not isinstance(was, AtomicType) or not isinstance(now, AtomicType):
        return False
    before, after = was.type.upper(), now.type.upper()
    if before == after:
        return True
    if before.startswith(("CHAR", "VARCHAR")) and after == "STRING":
        return True
    widths = ("TINYINT", "SMALLINT", "INT", "BIGINT")
    if before in widths and after in widths:
        return widths.index(before) < widths.index(after)
    return (before, after) == ("FLOAT", "DOUBLE")


def to_schema(fields: Sequence[DataField]) -> Schema:
    """All columns of a Paimon schema in depth-first order, containers before their leaves."""
    return Schema(tuple(_walk(fields, (), False)))


def _walk(fields: Sequence[DataField], above: tuple[str, ...], optional: bool) -> Iterator[Column]:
    for item in fields:
        path, nullable = (*above, item.name), optional or item.type.nullable
        yield Column(".".join(path), _logical_type(item.type), nullable, item.id + 1, path)
        if isinstance(item.type, RowType):
            yield from _walk(item.type.fields, path, nullable)


def _logical_type(type_: Any) -> str:
    if isinstance(type_, AtomicType) and type_.type.upper() == "VARIANT":
        return "VARIANT"  # which the library converts to a struct of bytes
    try:
        kind = from_arrow(PyarrowFieldParser.from_paimon_type(type_))
    except (ValueError, TypeError, NotImplementedError):
        kind = None
    return kind.text if kind else "VARIANT"
