"""Columns of a plain Parquet table: unified schema of all files, and statistics from footers and paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from capture.connectors.file_columns import column_rows, partition_facts
from capture.connectors.footers.leaf_types import FooterLeaf, promoted
from capture.connectors.footers.reader import Footer
from capture.connectors.footers.statistics import FileStats, footer_facts
from capture.connectors.parquet.files import DataFile, partition_values
from capture.connectors.spi import Column, ColumnIds, Schema
from capture.connectors.storage.places import Unreadable
from store.model.logical_types import LogicalType, parse


@dataclass(frozen=True, slots=True)
class Layout:
    """The unified schema of a table's files, and the types of partition columns."""

    schema: Schema
    partitions: dict[str, LogicalType]
    widths: dict[str, int]  # column key → bytes, for integer columns whose width differs between files
    comments: Mapping[str, str] = field(default_factory=dict)  # column key → comment
    has_field_ids: bool = False  # some file has field ids, which readers of Iceberg use instead of names

    def is_partition(self, column: Column) -> bool:
        """True for a partition column, whose values come from paths."""
        return column.name in self.partitions and len(column.path) == 1


class Merged:
    """One column over all files; its type is promoted to fit all of them."""

    def __init__(self, leaf: FooterLeaf):
        self.leaf, self.type, self.nullable = leaf, leaf.logical_type, leaf.nullable
        self.files, self.untyped = 1, leaf.untyped
        self.widths = {leaf.width_bytes} if leaf.width_bytes else set()

    def add(self, leaf: FooterLeaf, footer: Footer, table: str) -> None:
        """Adds the column of one more file.

        Raises:
            Unreadable: There is no common type.
        """
        self.files += 1
        self.nullable = self.nullable or leaf.nullable
        self.widths |= {leaf.width_bytes} if leaf.width_bytes else set()
        if leaf.untyped:
            return
        if self.untyped:
            self.type, self.untyped = leaf.logical_type, False
            return
        both = promoted(self.type, leaf.logical_type)
        if both is None or self.leaf.is_leaf != leaf.is_leaf:
            raise Unreadable(
                f'table "{table}": column {leaf.name} is {leaf.logical_type.text} in file "{footer.place.stem}"'
                f" and {self.type.text} in files before it"
            )
        self.type = both


def same_columns(some: tuple[FooterLeaf, ...], others: tuple[FooterLeaf, ...]) -> bool:
    """True if two footers have equal columns."""
    if some is others:
        return True
    return len(some) == len(others) and all(
        (a.parts, a.logical_type, a.nullable, a.untyped, a.width_bytes)
        == (b.parts, b.logical_type, b.nullable, b.untyped, b.width_bytes)
        for a, b in zip(some, others, strict=True)
    )


def structs_first(columns: list[Column]) -> list[Column]:
    """Sorts columns so that leaves follow their struct; a leaf from a later file comes last in it."""
    if not any(column.logical_type == "STRUCT" for column in columns):
        return columns
    positions = {column.path: number for number, column in enumerate(columns)}

    def key(column: Column) -> tuple[int, ...]:
        prefixes = (column.path[: i + 1] for i in range(len(column.path)))
        return tuple(positions[prefix] for prefix in prefixes if prefix in positions)

    return sorted(columns, key=key)


def footer_rows(
    footers: list[tuple[Footer, FileStats]], paths: pa.Array, rows: pa.Array, column: Column, ids: ColumnIds
) -> pa.Table:
    """Rows of FILE_COLUMN_SCHEMA for one column, from footers."""
    statistics = footer_facts(footers, lambda footer: footer.positions.get(column.key), parse(column.logical_type))
    return column_rows(paths, column, ids, rows, **statistics)


def partition_rows(
    files: list[DataFile], paths: pa.Array, rows: pa.Array, column: Column, kind: LogicalType, ids: ColumnIds
) -> pa.Table:
    """Rows of FILE_COLUMN_SCHEMA for a partition column, whose value in a file is both bounds.

    Args:
        files: N files.
        paths: Paths of the files, N strings.
        rows: Row counts of the files, N integers.
        kind: Type of the column: INT, DATE or STRING.
    """
    values = partition_values([dict(file.partition).get(column.name) for file in files], kind)
    return column_rows(paths, column, ids, rows, **partition_facts(values, rows))
