"""The Parquet connector: directories of files, a single file, or a glob. The only snapshot is the current listing."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.file_columns import ROWS_PER_TABLE, absent, alike, rows_of_groups
from capture.connectors.footers.leaf_types import FooterLeaf
from capture.connectors.footers.reader import Footer
from capture.connectors.footers.statistics import FooterCache
from capture.connectors.options import check_choice, check_options
from capture.connectors.parquet import SUFFIXES, WILD, holds_table, is_data, partition_of
from capture.connectors.parquet.files import (
    DataFile,
    FileListing,
    Layout,
    Merged,
    glob_pattern,
    may_hold,
    partition_group,
    partition_json,
    partition_type,
    partition_values,
    same_columns,
    stored_group,
    structs_first,
)
from capture.connectors.spi import (
    FILE_COLUMN_SCHEMA,
    Column,
    ColumnIds,
    Connector,
    ConnectorConfig,
    FilePart,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
    Snapshot,
    SnapshotListing,
    SnapshotSelection,
    TableDescriptor,
    container,
    file_table,
)
from capture.connectors.storage.immutable_cache import scope
from capture.connectors.storage.lake_directories import DEFAULT_SCHEMA, Lake, files_below
from capture.connectors.storage.places import NoLake, Place, Unreadable, batched, unknown_table
from capture.connectors.storage.secrets import mask_uri
from store.model.columns import REMARK
from store.model.format_facts import FormatFacts
from store.model.logical_types import Kind, LogicalType, parse

OWN_OPTIONS: Final = ("hive_partitioning",)
_FACTS: Final = FormatFacts(
    reads_by_id=False, merges_rows=False, deletes_rows=False, plain_parquet=True, platform="file"
)
_PART: Final = 256  # approximate number of files per `FilePart`


class ParquetConnector(Connector):
    """Tables of plain Parquet files. Option `hive_partitioning`: `k=v` directories are columns."""

    format: ClassVar[str] = "parquet"

    def __init__(self, config: ConnectorConfig):
        check_options(self.format, config.options, OWN_OPTIONS)
        self._hive = check_choice(config.options, "hive_partitioning", ("auto", "true", "false"))
        top, self._glob = config.uri, ""
        if isinstance(config.uri, str) and (wild := WILD.search(config.uri)):
            slash = config.uri.rfind("/", 0, wild.start())
            top, self._glob = config.uri[: max(slash, 0)] or ("/" if slash == 0 else "."), config.uri[slash + 1 :]
        self._uri = mask_uri(config.uri)
        self._lake = Lake(self.format, top, config.options, holds_table)
        self._scope = scope(config)
        self._footers = FooterCache(self._scope)
        self._layouts: dict[tuple[str, str], tuple[int, Layout]] = {}  # table → snapshot id and layout

    @property
    def tables_at_once(self) -> int:
        return self._lake.tables_at_once

    def close(self) -> None:
        self._layouts.clear()

    # Names.

    def _only(self) -> str | None:
        """The table's name if the URI is a glob or a single file, else None."""
        root = self._lake.root
        if self._glob:
            return root.stem or "root"  # of a glob at the root of a file system
        if not root.path.lower().endswith(SUFFIXES):
            return None
        with self._lake.reading():
            info = root.file_system.get_file_info(root.path)
        return re.sub(r"\.[^.]+$", "", root.stem) if info.type == pafs.FileType.File else None

    def list_namespaces(self) -> list[str]:
        if self._only() is None:
            return self._lake.namespaces()
        self._listing(DEFAULT_SCHEMA, self._only() or "")
        return [DEFAULT_SCHEMA]

    def list_tables(self, namespace: str) -> list[str]:
        if (only := self._only()) is None:
            return self._lake.names(namespace)
        return [only] if namespace == DEFAULT_SCHEMA else []

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        listing = self._listing(namespace, name)
        layout = self._layout(listing)
        return TableDescriptor(
            namespace,
            name,
            None,
            listing.root.name,
            layout.schema,
            partition_keys=tuple(layout.partitions),
            properties={"format": "parquet"}
            | ({"parquet.field-ids": "true"} if layout.has_field_ids else {})
            | ({REMARK: remark} if (remark := self._stray(listing.files)) else {}),
            comments=layout.comments,
            facts=_FACTS,
        )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        listing = self._listing(namespace, name)
        current = listing.snapshot_id
        snapshots: tuple[Snapshot, ...] = ()
        if current in wanted:
            schema = self._layout(listing).schema
            now = time.time_ns() // 1000
            snapshots = (Snapshot(current, now, schema, None, None, listing.committed_at, "listing"),)
        return SnapshotListing(snapshots, frozenset({current}), current)

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        if self._only() is not None:
            return str(self._listing(namespace, name).snapshot_id)
        return self._lake.mark(namespace, name, before, lambda place: str(_fingerprint(self._sorted(place))))

    def lake_mark(self, before: str | None = None) -> str | None:
        return None if self._only() is not None else self._lake.lake_mark(before)

    # Statistics.

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        listing = self._at(namespace, name, snapshot_id)
        layout = self._layout(listing)
        counts = [footer.row_count for footer in self._read(listing)]
        files = listing.files
        columns = {
            "file_path": [file.place.name for file in files],
            "file_format": ["PARQUET"] * len(files),
            "file_content": ["DATA"] * len(files),
            "row_count": counts,
            "size_bytes": [file.size_bytes for file in files],
            "partition_data_json": [partition_json(file, layout.partitions) for file in files],
            "delete_files": [[]] * len(files),
        }
        table = file_table(columns)
        return NativeStats(
            row_count=sum(counts),
            data_file_count=len(files),
            total_size_bytes=sum(file.size_bytes for file in files),
            files=table,
            file_columns=lambda: self._file_columns(listing, files, layout, ids, column_names),
            parts=self._parts(listing, layout, ids, table) if column_names is None else (),
        )

    def _parts(self, listing: FileListing, layout: Layout, ids: ColumnIds, table: pa.Table) -> list[FilePart]:
        """Groups files by a hash of their names, so that an added or removed file changes only one part."""
        count = 1 << max(0, (len(listing.files) // _PART).bit_length() - 1)
        members: dict[int, list[int]] = {}
        for position, file in enumerate(listing.files):
            members.setdefault(crc32(file.relative.encode("utf-8", "surrogatepass")) % count, []).append(position)
        table_key = repr((self._scope, layout.schema.hash, sorted(layout.partitions), sorted(ids.items())))
        parts = []
        for _, positions in sorted(members.items()):
            files = tuple(listing.files[position] for position in positions)
            listed = repr([(file.key, file.partition) for file in files])
            key = hashlib.sha256(f"{table_key}{listed}".encode("utf-8", "surrogatepass")).hexdigest()
            columns = partial(self._file_columns, listing, files, layout, ids, None)
            times = pa.array([str(file.mark) for file in files], pa.string())
            parts.append(FilePart(key, table.take(pa.array(positions, pa.int64())), columns, times))
        return parts

    def _file_columns(
        self,
        listing: FileListing,
        some: Sequence[DataFile],
        layout: Layout,
        ids: ColumnIds,
        column_names: frozenset[str] | None,
    ) -> Iterator[pa.Table]:
        leaves = layout.schema.leaves(column_names)
        for files in batched(some, max(1, min(1000, ROWS_PER_TABLE // max(1, len(leaves))))):
            with listing.reading():
                footers = self._footers.statistics(files)
            paths = pa.array([file.place.name for file in files], pa.string())
            rows = pa.array([footer.row_count for footer, _ in footers], pa.int64())
            groups = [
                partition_group(files, rows, column, layout.partitions[column.name])
                for column in leaves
                if layout.is_partition(column)
            ]
            stored = [column for column in leaves if not layout.is_partition(column)]
            groups += [stored_group(footers, columns) for columns in alike(stored, lambda column: column.logical_type)]
            yield rows_of_groups(paths, groups, ids, rows) if groups else FILE_COLUMN_SCHEMA.empty_table()

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        listing = self._at(namespace, name, snapshot_id)
        layout = self._layout(listing)
        leaves = [column for column in layout.schema.scanned(column_names) if column.id_in(ids) is not None]
        for file, footer in zip(listing.files, self._read(listing), strict=True):
            values = dict(file.partition)
            columns = []
            for column in leaves:
                leaf = footer.leaf(column.key)
                path = constant = None
                column_id = column.id_in(ids)
                assert column_id is not None
                if not column.is_leaf:
                    columns.append(container(column_id, column, None if leaf is None else leaf.key))
                    continue
                if layout.is_partition(column):
                    constant = partition_values([values.get(column.name)], parse(column.logical_type))
                elif leaf is None or not leaf.is_leaf:
                    constant = absent(column.logical_type)
                else:
                    path = leaf.key
                width = layout.widths.get(column.key)
                columns.append(ScanColumn(column_id, column.name, column.logical_type, path, constant, width))
            # results from before a file with wider integers was added have another width
            widths = f"\0{sorted(layout.widths.items())}" if layout.widths else ""
            state = f"{file.relative}\0{file.size_bytes}\0{file.mark}{widths}"
            digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()
            yield ScanTask(
                reader="parquet",
                file_path=file.place.name,
                location=file.place.name,
                row_count=footer.row_count,
                size_bytes=file.size_bytes,
                columns=tuple(columns),
                fingerprint=digest,
                storage=self._lake.storage,
            )

    # Files.

    def _at(self, namespace: str, name: str, snapshot_id: int) -> FileListing:
        listing = self._listing(namespace, name)
        if listing.snapshot_id != snapshot_id:
            raise Unreadable(
                f'table "{namespace}.{name}": snapshot {snapshot_id} is gone, its listing of files has changed',
                hint="run discover, then capture the current snapshot",
            )
        return listing

    def _listing(self, namespace: str, name: str) -> FileListing:
        only = self._only()
        if only is not None and (namespace, name) != (DEFAULT_SCHEMA, only):
            raise unknown_table(namespace, name, [only])
        root = self._lake.root if only is not None else self._lake.find(namespace, name)
        files = self._sorted(root, single=only is not None)
        if not files:
            if only is not None:
                raise NoLake(f'uri "{self._uri}" matches no Parquet file', params={"field": "uri"})
            raise unknown_table(namespace, name, [])
        return FileListing(namespace, name, root, files, _fingerprint(files))

    def _sorted(self, root: Place, *, single: bool = False) -> tuple[DataFile, ...]:
        """The data files of a table, by their names."""
        return tuple(sorted(self._files(root, single=single), key=lambda file: file.relative))

    def _files(self, root: Place, *, single: bool) -> Iterator[DataFile]:
        with self._lake.reading():
            if single and not self._glob:
                info = root.file_system.get_file_info(root.path)
                yield DataFile(root, info.size, info.mtime_ns or 0, root.stem)
                return
            glob = self._glob if single else None
            pattern = glob_pattern(glob) if glob else None

            def follows(prefix: str, base: str) -> bool:
                """True if the files of a directory `base` below the path `prefix` may be of the table."""
                if base.startswith((".", "_")):
                    return False
                return may_hold(glob, f"{prefix}{base}") if glob else bool(partition_of(base))

            for info, relative in files_below(root, follows, by_directory=glob is not None):
                base, prefix = info.base_name, relative[: -len(info.base_name)]
                is_wanted = pattern.fullmatch(relative) if pattern else is_data(base)
                if is_wanted and info.size:
                    yield DataFile(
                        root.below(relative), info.size, info.mtime_ns or 0, relative, self._partition(prefix)
                    )

    def _partition(self, prefix: str) -> tuple[tuple[str, str | None], ...]:
        if self._hive == "false":
            return ()
        return tuple(pair for part in prefix.split("/") if (pair := partition_of(part)))

    def _read(self, listing: FileListing) -> Iterator[Footer]:
        """Reads footers without statistics, in the order of the files."""
        with listing.reading():
            yield from self._footers.outlines(listing.files)

    # Schema.

    def _layout(self, listing: FileListing) -> Layout:
        key = (listing.namespace, listing.name)
        cached = self._layouts.get(key)
        if cached is None or cached[0] != listing.snapshot_id:
            with listing.reading():
                cached = listing.snapshot_id, self._unified(listing.files)
            self._layouts[key] = cached
        return cached[1]

    def _unified(self, listed: Sequence[DataFile]) -> Layout:
        types = self._partition_types(listed)
        merged: dict[str, Merged] = {}
        spelt = {key.lower(): key for key in types}
        files = 0
        last: tuple[FooterLeaf, ...] | None = None
        comments: dict[str, str] = {}
        has_field_ids = False
        for footer in self._footers.outlines(listed):
            files += 1
            comments |= footer.comments
            if footer.leaves is not last:
                has_field_ids = has_field_ids or any(leaf.field_id is not None for leaf in footer.leaves)
            # readers take the value of the directory for a column that is in the file, too
            leaves = [leaf for leaf in footer.leaves if leaf.parts[0] not in types]
            if last is not None and same_columns(footer.leaves, last):
                for leaf in leaves:
                    merged[leaf.key].files += 1
                continue
            last = footer.leaves
            for leaf in leaves:
                if footer.leaf(leaf.key) is not leaf:
                    raise Unreadable(f'file "{footer.place.stem}" has two columns {leaf.name}')
                if leaf.key in merged:
                    merged[leaf.key].add(leaf, footer)
                    continue
                other = spelt.setdefault(leaf.key.lower(), leaf.key)
                if other != leaf.key and (other in types or footer.leaf(other) is None):
                    raise _differs_in_case(
                        leaf, footer, other, "the directories" if other in types else "files before it"
                    )
                merged[leaf.key] = Merged(leaf)
        in_files = [
            Column(column.leaf.name, column.type.text, column.nullable or column.files < files, None, column.leaf.parts)
            for column in merged.values()
        ]
        of_directories = [Column(key, kind.text, nullable, None, (key,)) for key, (kind, nullable) in types.items()]
        schema = Schema((*structs_first(in_files), *of_directories))
        kinds = {key: kind for key, (kind, _) in types.items()}
        return Layout(schema, kinds, _widened(merged), comments, has_field_ids)

    def _stray(self, listed: Sequence[DataFile]) -> str:
        """The reason why directories `key=value` are no columns, with a file of each kind; empty if they are, or if
        there are none."""
        if self._hive != "auto":
            return ""
        of = Counter(tuple(key for key, _ in file.partition) for file in listed)
        if len(of) < 2:
            return ""
        first = {tuple(key for key, _ in file.partition): file.relative for file in reversed(listed)}
        (usual, _), *_, (stray, _) = of.most_common()
        shown = (f"{'/'.join(keys) or 'none'} of {first[keys]}" for keys in (usual, stray))
        return (
            f"the directories key=value are not read as columns, because its files differ in partition keys:"
            f" {', '.join(shown)}; move the file, or leave it out with a glob"
        )

    def _partition_types(self, listed: Sequence[DataFile]) -> dict[str, tuple[LogicalType, bool]]:
        keys = [tuple(key for key, _ in file.partition) for file in listed]
        if self._hive == "false" or not any(keys):
            if self._hive == "true":
                raise Unreadable("hive_partitioning=true, but no directory is key=value")
            return {}
        if len(set(keys)) > 1:
            if self._hive == "true":
                raise Unreadable(
                    "hive_partitioning=true, but its files differ in partition keys "
                    f"({' and '.join('/'.join(names) or 'none' for names in sorted(set(keys))[:2])})"
                )
            return {}
        values: dict[str, set[str | None]] = {key: set() for key in keys[0]}
        for file in listed:
            for key, value in file.partition:
                values[key].add(value)
        return {key: (partition_type(seen - {None}), None in seen) for key, seen in values.items()}  # type: ignore[arg-type]


def _fingerprint(files: Sequence[DataFile]) -> int:
    """The id of a listing: a digest of its files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative}\0{file.size_bytes}\0{file.mark}\0".encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:8], "big") & (2**63 - 1) or 1


def _widened(merged: Mapping[str, Merged]) -> dict[str, int]:
    """Column key → greatest width in bytes of integer columns that have several."""
    widths = {key: column.widths for key, column in merged.items() if column.type.kind is Kind.INT}
    return {key: max(of_column) for key, of_column in widths.items() if len(of_column) > 1}


def _differs_in_case(leaf: FooterLeaf, footer: Footer, other: str, where: str) -> Unreadable:
    return Unreadable(
        f'column {leaf.name} of file "{footer.place.stem}" and {other} of {where} differ in case alone: they are '
        "one column to some readers, and two to others"
    )
