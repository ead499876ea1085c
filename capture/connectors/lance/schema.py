"""Columns of Lance datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from capture.connectors.spi import Column, Schema
from store.model.logical_types import from_arrow


def to_schema(schema: pa.Schema) -> Schema:
    """All columns of a Lance dataset in depth-first order, containers before their leaves."""
    return Schema(tuple(_walk(schema, (), False)))


def _walk(fields: Any, above: tuple[str, ...], nullable: bool) -> Iterator[Column]:
    for field in fields:
        path, optional = (*above, field.name), nullable or field.nullable
        kind = from_arrow(field.type)
        yield Column(".".join(path), kind.text if kind else "VARIANT", optional, path=path)
        if pa.types.is_struct(field.type):
            yield from _walk(field.type, path, optional)
