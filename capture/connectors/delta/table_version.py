"""A Delta table at one version: its live files side by side, and what the log says of them and their columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from capture.connectors.delta.log import DeltaColumn, DeltaSchema
from capture.connectors.footers.reader import Footer
from capture.connectors.spi import FILE_SCHEMA


@dataclass(slots=True)
class Version:
    """A table at one version, its files side by side: arrays of one value per live data file.

    Of a large log it is a slice of the files, whose `vectors` tell what `deleted` tells of others.
    """

    table: DeltaTable
    schema: DeltaSchema
    storage: Mapping[str, str] = field(repr=False)
    partitions: tuple[str, ...]
    actions: pa.Table
    paths: pa.Array  # of the files as they are named to others
    rows: pa.Array  # live rows, as far as they are known
    deleted: dict[int, pa.Array] = field(default_factory=dict)  # file → positions of rows that are gone
    vectors: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def column(self, name: str) -> pa.Array | None:
        if name not in self.actions.column_names:
            return None
        return one_array(self.actions[name])

    @property
    def has_deletes(self) -> pa.Array:
        """Which files lost rows."""
        if self.vectors is not None:
            return pc.is_valid(self.vectors)
        return pa.array([i in self.deleted for i in range(len(self))], pa.bool_())

    def statistic(self, name: str, path: tuple[str, ...]) -> pa.Array | None:
        """`null_count`, `min` or `max` of a column by its physical path; None where the log has none."""
        values = self.column(name)
        for part in path:
            if values is None or not pa.types.is_struct(values.type) or values.type.get_field_index(part) < 0:
                return None
            values = pc.struct_field(values, [values.type.get_field_index(part)])
        return None if values is None or pa.types.is_struct(values.type) else values

    def partition(self, known: DeltaColumn) -> pa.Array | None:
        for name in (known.logical[0], known.physical[0]):
            if (values := self.statistic("partition", (name,))) is not None:
                return values
        return None


def file_rows(version: Version) -> pa.Table:
    """The files as rows of FILE_SCHEMA."""
    files = len(version)
    columns = {
        "file_path": version.paths,
        "file_format": pa.repeat("PARQUET", files),
        "file_content": pa.repeat("DATA", files),
        "row_count": version.rows,
        "size_bytes": one_array(version.actions["size_bytes"].cast(pa.int64())),
        "partition_data_json": _partition_json(version),
        "partition_spec_id": pa.nulls(files, pa.int32()),
        "sequence_number": pa.nulls(files, pa.int64()),
    }
    return pa.table([columns[item.name] for item in FILE_SCHEMA], FILE_SCHEMA)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which would copy it


def wanted_columns(schema: DeltaSchema, names: frozenset[str] | None) -> list[DeltaColumn]:
    return [k for k in schema.columns if k.column.is_leaf and (names is None or k.column.name in names)]


def named_in_statistics(version: Version, columns: list[DeltaColumn]) -> list[bool]:
    """Files whose statistics name every column: only of the others one must look whether a column is there."""
    sure: Any = np.ones(len(version), dtype=bool)
    for known in columns:
        nulls = version.statistic("null_count", known.physical)
        sure &= False if nulls is None else pc.is_valid(nulls).to_numpy(zero_copy_only=False)
    return [bool(known) for known in sure]


def path_in_file(known: DeltaColumn, footer: Footer | None) -> str | None:
    """The column's path in a file; None when the file does not have it."""
    path = ".".join(known.physical)
    if footer is None:
        return path
    leaves = [leaf for leaf in footer.leaves if leaf.is_leaf]
    if any(leaf.path == path for leaf in leaves):
        return path
    number = known.column.field_id
    return next((leaf.path for leaf in leaves if number is not None and leaf.field_id == number), None)


def _partition_json(version: Version) -> pa.Array:
    values = version.column("partition")
    if values is None or not version.partitions:
        return pa.nulls(len(version), pa.string())
    return pa.array([json.dumps(row, ensure_ascii=False, default=_json) for row in values.to_pylist()], pa.string())


def _json(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
