"""Live files of a Delta table at one version, with their statistics in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.delta.deletion_vectors import delete_files
from capture.connectors.delta.lake_table import LakeTable
from capture.connectors.delta.log import DeltaColumn, DeltaSchema
from capture.connectors.delta.log_files import one_array
from capture.connectors.delta.log_statistics import STATISTICS, TIGHT
from capture.connectors.delta.table_log import LogSlice
from capture.connectors.file_columns import partition_json
from capture.connectors.footers.reader import Footer
from capture.connectors.spi import file_table
from store.model.names import column_key


@dataclass(slots=True)
class TableVersion:
    """Live data files of a table at one version, as arrays with one value per file.

    Attributes:
        part: The slice of the log that lists the files.
        actions: `part.files`, or the output of `part.statistics`.
        rows: Live rows; null if unknown.
    """

    schema: DeltaSchema
    partitions: tuple[str, ...]
    part: LogSlice = field(repr=False)
    actions: pa.Table
    paths: pa.Array
    rows: pa.Array

    def __len__(self) -> int:
        return len(self.paths)

    def with_statistics(self) -> TableVersion:
        """The files with their statistics, which are read anew."""
        return replace(self, actions=self.part.statistics())

    def files(self, positions: Sequence[int]) -> TableVersion:
        """The files at some positions."""
        at = pa.array(positions, pa.int64())
        return replace(self, actions=self.actions.take(at), paths=self.paths.take(at), rows=self.rows.take(at))

    def column(self, name: str) -> pa.Array | None:
        """A column of the add actions, one value per file; None if there is no such column."""
        at = self.actions.schema.get_field_index(name)
        return None if at < 0 else one_array(self.actions.column(at))

    @property
    def vectors(self) -> pa.Array:
        """Descriptors of the deletion vectors; null for files without one."""
        return one_array(self.actions["vectors"])

    @property
    def has_deletes(self) -> pa.Array:
        """True for files with deleted rows."""
        return pc.is_valid(self.vectors)

    @property
    def has_tight_statistics(self) -> pa.Array:
        """True for files with reliable null counts and possibly exact bounds: no row was deleted, and statistics are
        not marked as wide."""
        tight, intact = self.column(TIGHT), pc.invert(self.has_deletes)
        return intact if tight is None else pc.and_(intact, pc.fill_null(tight, True))

    def statistic(self, name: str, path: tuple[str, ...]) -> pa.Array | None:
        """`null_count`, `min` or `max` of a column by its physical path; None if the log does not have it."""
        values = self.column(name)
        for part in path:
            at = values.type.get_field_index(part) if values is not None and pa.types.is_struct(values.type) else -1
            if values is None or at < 0:
                return None
            values = pc.struct_field(values, [at]) if values.null_count else values.field(at)
        return None if values is None or pa.types.is_struct(values.type) else values

    def statistics(self, leaf: DeltaColumn) -> tuple[pa.Array | None, ...]:
        """Null counts, least and greatest values of a column, each as logged; None for what the log does not have."""
        return tuple(self.statistic(name, leaf.physical) for name in STATISTICS)

    def is_partition(self, leaf: DeltaColumn) -> bool:
        """True for a partition column, whose values are in the log."""
        return len(leaf.logical) == 1 and leaf.logical[0] in self.partitions

    def partition(self, leaf: DeltaColumn) -> pa.Array | None:
        """The values of a partition column, one per file; None for other columns."""
        return self.statistic("partition", leaf.logical[:1])


def file_rows(version: TableVersion, table: LakeTable) -> pa.Table:
    """The files of a table as rows of FILE_SCHEMA."""
    files = len(version)
    return file_table(
        {
            "file_path": version.paths,
            "file_format": pa.repeat("PARQUET", files),
            "file_content": pa.repeat("DATA", files),
            "row_count": version.rows,
            "size_bytes": one_array(version.actions["size_bytes"].cast(pa.int64())),
            "partition_data_json": _partition_json(version),
            "delete_files": delete_files(version.vectors, table.place, table.file),
        }
    )


def wanted_columns(schema: DeltaSchema, names: frozenset[str] | None) -> list[DeltaColumn]:
    """The leaf columns with these names or keys; all if None."""
    return [k for k in schema.columns if k.column.is_leaf and (names is None or k.column.is_among(names))]


def containers(schema: DeltaSchema, names: frozenset[str] | None) -> list[DeltaColumn]:
    """The structs, lists and maps with these names or keys; none if None."""
    return [k for k in schema.columns if names is not None and not k.column.is_leaf and k.column.is_among(names)]


def has_statistics(version: TableVersion, columns: list[DeltaColumn]) -> list[bool]:
    """True for files whose statistics have every column; the footers of others show whether a column exists."""
    sure: Any = np.ones(len(version), dtype=bool)
    for leaf in columns:
        nulls = version.statistic("null_count", leaf.physical)
        if nulls is None:
            return [False] * len(version)
        if nulls.null_count:
            sure &= pc.is_valid(nulls).to_numpy(zero_copy_only=False)
    return [bool(leaf) for leaf in sure]


def path_in_file(leaf: DeltaColumn, footer: Footer | None) -> str | None:
    """The key of the column's path in a file; None if the file does not have the column."""
    if footer is None:
        return column_key(leaf.physical)
    position = position_in(leaf, footer)
    return None if position is None else footer.leaves[position].key


def position_in(column: DeltaColumn, footer: Footer) -> int | None:
    """Index of the column among the leaves of a footer, by path or field id; None if it does not exist."""
    position = footer.positions.get(column_key(column.physical))
    if position is not None and footer.leaves[position].is_leaf:
        return position
    number = column.column.field_id
    return None if number is None else footer.position_of(number)


def _partition_json(version: TableVersion) -> pa.Array:
    values = version.column("partition")
    if values is None or not pa.types.is_struct(values.type):
        return pa.nulls(len(version), pa.string())
    names = [values.type.field(i).name for i in range(values.type.num_fields)]
    # Python has no dates before the year 1
    columns = [c.cast(pa.string()) if pa.types.is_date(c.type) else c for c in values.flatten()]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([partition_json(dict(zip(names, row, strict=True))) for row in rows], pa.string())
