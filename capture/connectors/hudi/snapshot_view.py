"""A snapshot of a Hudi table: its schema, statistics and scan tasks, by the footers of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from capture.connectors.file_columns import ROWS_PER_TABLE, absent, alike, partition_json, rows_of_groups
from capture.connectors.footers.leaf_types import FooterLeaf, promoted, typed
from capture.connectors.footers.reader import Footer
from capture.connectors.footers.statistics import FileStats, FooterCache, ListedFile, footer_facts
from capture.connectors.spi import (
    FILE_COLUMN_SCHEMA,
    Column,
    ColumnIds,
    FilePart,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
    container,
    file_table,
)
from capture.connectors.storage.places import Unreadable, batched
from store.model.logical_types import from_arrow, parse

OF_HUDI: Final = frozenset(
    {
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "_hoodie_partition_path",
        "_hoodie_file_name",
        "_hoodie_operation",
    }
)
"""Columns that Hudi adds to files; they are not the table's."""
_FILES_AT_ONCE: Final = 1000
_PART: Final = 256  # approximate number of files per `FilePart`

Reading = Callable[[], AbstractContextManager[None]]


def schema_of_footer(footer: Footer) -> Schema:
    """The columns of a table whose newest file has this footer: each commit writes files of its schema."""
    columns = (
        Column(leaf.name, leaf.logical_type.text, leaf.nullable, None, leaf.parts)
        for leaf in footer.leaves
        if leaf.parts[0] not in OF_HUDI
    )
    return Schema(tuple(columns))


def schema_of_arrow(fields: Any, above: tuple[str, ...] = (), nullable: bool = False) -> Iterator[Column]:
    """The columns of a table without files, a struct before its leaves."""
    for field in fields:
        path, optional = (*above, field.name), nullable or field.nullable
        kind = from_arrow(field.type)
        if kind is not None:
            yield Column(".".join(path), kind.text, optional, None, path)
        if pa.types.is_struct(field.type):
            yield from schema_of_arrow(field.type, path, optional)


@dataclass(frozen=True)
class SnapshotView:
    """The files of a snapshot.

    Attributes:
        files: By their names.
        schema: Of the snapshot.
        partition_keys: Columns that directories are made of.
        scope: Prefix of keys of caches, of this lake.
        reading: Makes a context that translates errors of files.
    """

    files: Sequence[ListedFile]
    schema: Schema
    partition_keys: Sequence[str]
    footers: FooterCache
    scope: str
    reading: Reading

    def native_stats(self, ids: ColumnIds, names: frozenset[str] | None) -> NativeStats:
        """Statistics from the footers.

        Args:
            names: Names or keys of columns; None for all.
        """
        counts = [footer.row_count for footer in self._outlines]
        table = file_table(
            {
                "file_path": [file.place.name for file in self.files],
                "file_format": ["PARQUET"] * len(self.files),
                "file_content": ["DATA"] * len(self.files),
                "row_count": counts,
                "size_bytes": [file.size_bytes for file in self.files],
                "partition_data_json": self._partitions(),
                "delete_files": [[]] * len(self.files),
            }
        )
        return NativeStats(
            row_count=sum(counts),
            data_file_count=len(self.files),
            total_size_bytes=sum(file.size_bytes for file in self.files),
            files=table,
            file_columns=lambda: self._file_columns(self.files, ids, names),
            parts=list(self._parts(table, ids)) if names is None else (),
        )

    def tasks(self, ids: ColumnIds, names: frozenset[str] | None, storage: Mapping[str, str]) -> Iterator[ScanTask]:
        """One task for each file."""
        columns = [column for column in self.schema.scanned(names) if column.id_in(ids) is not None]
        for file, footer in zip(self.files, self._outlines, strict=True):
            state = f"{file.place.stem}\0{file.size_bytes}\0{sorted(self._widths.items())}"
            yield ScanTask(
                reader="parquet",
                file_path=file.place.name,
                location=file.place.name,
                row_count=footer.row_count,
                size_bytes=file.size_bytes,
                columns=tuple(self._source(column, ids, footer) for column in columns),
                fingerprint=hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest(),
                storage=storage,
            )

    @cached_property
    def _outlines(self) -> list[Footer]:
        """The footers without statistics; their columns fit the schema."""
        with self.reading():
            footers = list(self.footers.outlines(self.files))
        fitting: set[int] = set()  # by identity: files of one writer share their leaves
        for footer in footers:
            if id(footer.leaves) not in fitting:
                self._check(footer)
                fitting.add(id(footer.leaves))
        return footers

    def _check(self, footer: Footer) -> None:
        """Refuses a file whose columns cannot be read as those of the table."""
        for column in self.schema.columns:
            leaf, kind = footer.leaf(column.key), parse(column.logical_type)
            if leaf is not None and not leaf.untyped and promoted(leaf.logical_type, kind) != kind:
                with self.reading():
                    raise Unreadable(
                        f'column {column.name} is {leaf.logical_type.text} in file "{footer.place.stem}", and'
                        f" {column.logical_type} in the table"
                    )

    @cached_property
    def _widths(self) -> dict[str, int]:
        """Column key → bytes, of integer columns that are wider in some files than in others."""
        widths: dict[str, set[int]] = {}
        for footer in self._outlines:
            for leaf in footer.leaves:
                if leaf.width_bytes:
                    widths.setdefault(leaf.key, set()).add(leaf.width_bytes)
        return {key: max(several) for key, several in widths.items() if len(several) > 1}

    def _source(self, column: Column, ids: ColumnIds, footer: Footer) -> ScanColumn:
        """The place of a column in a file."""
        column_id = column.id_in(ids)
        assert column_id is not None
        leaf: FooterLeaf | None = footer.leaf(column.key)
        if not column.is_leaf:
            return container(column_id, column, None if leaf is None else leaf.key)
        if leaf is None or not leaf.is_leaf:
            return ScanColumn(column_id, column.name, column.logical_type, None, absent(column.logical_type))
        width = self._widths.get(column.key)
        return ScanColumn(column_id, column.name, column.logical_type, leaf.key, width_bytes=width)

    def _file_columns(
        self, some: Sequence[ListedFile], ids: ColumnIds, names: frozenset[str] | None
    ) -> Iterator[pa.Table]:
        leaves = self.schema.leaves(names)
        for files in batched(some, max(1, min(_FILES_AT_ONCE, ROWS_PER_TABLE // max(1, len(leaves))))):
            with self.reading():
                footers = self.footers.statistics(files)
            paths = pa.array([file.place.name for file in files], pa.string())
            rows = pa.array([footer.row_count for footer, _ in footers], pa.int64())
            groups = []
            for columns in alike(leaves, lambda column: column.logical_type):
                places = [_position(column) for column in columns]
                groups.append((columns, footer_facts(footers, places, parse(columns[0].logical_type))))
            yield rows_of_groups(paths, groups, ids, rows) if groups else FILE_COLUMN_SCHEMA.empty_table()

    def _parts(self, table: pa.Table, ids: ColumnIds) -> Iterator[FilePart]:
        """Files by a hash of their names, so that a commit changes few parts."""
        count = 1 << max(0, (len(self.files) // _PART).bit_length() - 1)
        members: dict[int, list[int]] = {}
        for position, file in enumerate(self.files):
            number = crc32(file.place.stem.encode("utf-8", "surrogatepass")) % count
            members.setdefault(number, []).append(position)
        of_table = repr((self.scope, self.schema.hash, self.partition_keys, sorted(ids.items())))
        for _, positions in sorted(members.items()):
            files = [self.files[position] for position in positions]
            listed = repr([file.key for file in files])
            key = hashlib.sha256(f"{of_table}{listed}".encode("utf-8", "surrogatepass")).hexdigest()
            columns = lambda files=files: self._file_columns(files, ids, None)  # noqa: E731
            yield FilePart(key, table.take(pa.array(positions, pa.int64())), columns)

    def _partitions(self) -> list[str | None]:
        """The partition of each file as JSON: the one value that each of its partition columns has in it; None where
        the footer does not tell, as of a column of which directories have a part."""
        columns = [column for column in self.schema.columns if column.name in self.partition_keys]
        if not columns or len(columns) < len(self.partition_keys):
            return [None] * len(self.files)
        found: list[str | None] = []
        for files in batched(self.files, _FILES_AT_ONCE):
            with self.reading():
                footers = self.footers.statistics(files)
            found += [self._partition(columns, footer, stats) for footer, stats in footers]
        return found

    def _partition(self, columns: Sequence[Column], footer: Footer, stats: FileStats) -> str | None:
        values: dict[str, Any] = {}
        if not footer.row_count:
            return None
        for column in columns:
            position = footer.positions.get(column.key)
            of_column = None if position is None else stats[position]
            if of_column is None or position is None:
                return None
            if of_column.null_count == footer.row_count:
                values[column.name] = None
            elif of_column.null_count == 0 and of_column.lower is not None and of_column.lower == of_column.upper:
                kind = footer.leaves[position].logical_type  # equal bounds enclose one value only
                values[column.name] = typed([of_column.lower], kind, parse(column.logical_type))[0].as_py()
            else:
                return None
        return partition_json(values)


def _position(column: Column) -> Callable[[Footer], int | None]:
    return lambda footer: footer.positions.get(column.key)
