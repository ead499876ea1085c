"""Data files of a plain Parquet table: listing, partition values from directories, and the columns of all files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from capture.connectors.file_columns import Group, partition_facts
from capture.connectors.file_columns import partition_json as json_of
from capture.connectors.footers.leaf_types import FooterLeaf, promoted
from capture.connectors.footers.reader import Footer
from capture.connectors.footers.statistics import FileStats, ListedFile, footer_facts
from capture.connectors.spi import Column, Schema
from capture.connectors.storage.places import Place, Unreadable, reading_files
from store.model.errors import InvalidArgument
from store.model.logical_types import Kind, LogicalType, parse, to_arrow


@dataclass(frozen=True, slots=True)
class DataFile(ListedFile):
    """A data file of a listing; its `mark` is in nanoseconds since the epoch.

    Attributes:
        relative: Path within the table's directory.
        partition: Keys and values of the `key=value` directories, in order; None for null.
    """

    relative: str = ""
    partition: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class FileListing:
    """The current files of a table; `snapshot_id` is a digest of the listing."""

    namespace: str
    name: str
    root: Place
    files: tuple[DataFile, ...]
    snapshot_id: int

    def reading(self) -> AbstractContextManager[None]:
        """Prefixes errors of the files with the table's name."""
        return reading_files(self.namespace, self.name)

    @property
    def committed_at(self) -> datetime | None:
        """Modification time of the newest file; None without files."""
        newest = max((file.mark for file in self.files), default=None)
        return None if newest is None else datetime.fromtimestamp(newest // 1000 / 1e6, UTC)


def partition_type(values: set[str]) -> LogicalType:
    """The common type of the values of a partition column: INT or DATE, else STRING."""
    if values and all(re.fullmatch(r"-?[0-9]{1,18}", value) for value in values):
        return LogicalType(Kind.INT)
    if values and all(map(_as_date, values)):
        return LogicalType(Kind.DATE)
    return LogicalType(Kind.STRING)


def _as_date(value: str) -> date | None:
    try:
        return date.fromisoformat(value) if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value) else None
    except ValueError:
        return None


def partition_values(values: list[str | None], kind: LogicalType) -> pa.Array:
    """Converts partition values to an array of the column's type."""
    return pa.array(values, pa.string()).cast(to_arrow(kind))


def partition_json(file: DataFile, types: Mapping[str, LogicalType]) -> str | None:
    """The file's partition as JSON object for `stats.files`; None for a table without partitions."""
    partition: dict[str, Any] = {key: value for key, value in file.partition if key in types}
    if not partition:
        return None
    for key, value in partition.items():
        if value is not None and types[key].kind is Kind.INT:
            partition[key] = int(value)
    return json_of(partition)


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Compiles a glob: `*` and `?` match within a directory, `**` across directories, `[…]` a set of characters."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", glob)
    table = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = ""
    for part in parts:
        if part.startswith("[") and part.endswith("]") and len(part) > 2:
            text += f"[^{re.escape(part[2:-1])}]" if part[1] == "!" else f"[{part[1:-1]}]"
        else:
            text += table.get(part, re.escape(part))
    try:
        return re.compile(text)
    except re.error:
        raise InvalidArgument(f"uri: {glob!r} is not a glob", params={"field": "uri"}) from None


def may_hold(glob: str, folder: str) -> bool:
    """True if files in or below a folder may match a glob.

    Args:
        folder: Its path where the glob begins, without a slash at the end.
    """
    parts = glob.split("/")
    for number, name in enumerate(folder.split("/")):
        if "**" in parts[number]:
            return True
        if number == len(parts) - 1 or not glob_pattern(parts[number]).fullmatch(name):
            return False
    return True


# Columns.


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

    def add(self, leaf: FooterLeaf, footer: Footer) -> None:
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
                f'column {leaf.name} is {leaf.logical_type.text} in file "{footer.place.stem}" and {self.type.text} in '
                "files before it"
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


def stored_group(footers: list[tuple[Footer, FileStats]], columns: list[Column]) -> Group:
    """Columns of one type with their statistics in the footers."""

    def position(column: Column) -> Callable[[Footer], int | None]:
        return lambda footer: footer.positions.get(column.key)

    return columns, footer_facts(footers, list(map(position, columns)), parse(columns[0].logical_type))


def partition_group(files: list[DataFile], rows: pa.Array, column: Column, kind: LogicalType) -> Group:
    """A partition column, whose value in a file is both bounds; `rows` has the row counts of the files."""
    values = partition_values([dict(file.partition).get(column.name) for file in files], kind)
    return [column], partition_facts(values, rows)
