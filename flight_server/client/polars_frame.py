"""Parquet files of a scan as a frame that polars reads by itself.

Over a dataset of pyarrow it reads all rows that the conditions leave that pyarrow knows. By itself it skips row groups
by all its expressions, reads batch by batch, and stops early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.types as types

MOST_FILES: Final = 1_000
"""Most files whose footers are read to find the types of their columns."""

MOST_GROUPS: Final = 200
"""Most different sets of types and of values known of files; each is a scan of its own."""


@dataclass(frozen=True)
class File:
    """A file of the local file system.

    Attributes:
        schema: Its own.
        known: Column → the value in all its rows, null too, of columns that are not read from it.
    """

    path: str
    schema: pa.Schema
    known: Mapping[str, pa.Scalar]


def frame_of(files: Sequence[File], schema: pa.Schema) -> pl.LazyFrame | None:
    """The rows of files by the names of their columns; null where a file lacks one.

    Args:
        schema: Columns of the frame.

    Returns:
        The frame; None if polars would read a column otherwise than pyarrow, or there are many kinds of files.
    """
    groups: dict[tuple[Any, ...], list[File]] = {}
    for file in files:
        own = {field.name: field.type for field in file.schema if field.name not in file.known}
        if len(set(file.schema.names)) < len(file.schema.names):
            return None
        if not all(_is_read_alike(own[field.name], field.type) for field in schema if field.name in own):
            return None
        key = tuple((own.get(name), file.known.get(name)) for name in schema.names)
        groups.setdefault(key, []).append(file)
    if not groups or len(groups) > MOST_GROUPS or not all(_is_plain(field.type) for field in schema):
        return None
    return pl.concat([_scan(group, schema) for group in groups.values()])


def _scan(files: Sequence[File], schema: pa.Schema) -> pl.LazyFrame:
    """The rows of files whose columns have the same types and whose known values are the same."""
    own, known = files[0].schema, files[0].known
    read = pa.schema([own.field(field.name) for field in schema if field.name in own.names and field.name not in known])
    rows = pl.scan_parquet(
        [file.path for file in files],
        schema=_polars_schema(read),
        extra_columns="ignore",
        hive_partitioning=False,
        glob=False,
    )
    columns = []
    for name, type in _polars_schema(schema).items():
        if name in read.names:
            columns.append(pl.col(name).cast(type))
        else:
            value = known[name].as_py() if name in known else None
            columns.append(pl.lit(value, type).alias(name))
    return rows.select(columns)


def _polars_schema(schema: pa.Schema) -> pl.Schema:
    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema


def _is_plain(type: pa.DataType) -> bool:
    """True if polars and pyarrow read a type alike from Parquet."""
    if types.is_struct(type):
        return all(_is_plain(field.type) for field in type)
    if types.is_list(type) or types.is_large_list(type):
        return _is_plain(type.value_type)
    return bool(
        types.is_integer(type)
        or types.is_float32(type)
        or types.is_float64(type)
        or types.is_boolean(type)
        or types.is_string(type)
        or types.is_large_string(type)
        or types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_date32(type)
        or types.is_time64(type)
        or types.is_fixed_size_binary(type)
        or (types.is_timestamp(type) and type.unit != "ns")  # perhaps INT96, of which polars makes another unit
        or types.is_decimal128(type)
    )


def _is_read_alike(own: pa.DataType, wanted: pa.DataType) -> bool:
    """True if a column of a file is of the wanted type, or polars widens it as pyarrow does."""
    if own.equals(wanted):
        return True
    if types.is_integer(own) and types.is_integer(wanted):
        return bool(types.is_signed_integer(wanted) and (own.bit_width < 64 or types.is_signed_integer(own)))
    if types.is_float32(own) and types.is_float64(wanted):
        return True
    texts, binaries = (types.is_string, types.is_large_string), (types.is_binary, types.is_large_binary)
    return any(any(test(own) for test in tests) and any(test(wanted) for test in tests) for tests in (texts, binaries))
