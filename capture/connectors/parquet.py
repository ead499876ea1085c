"""Plain Parquet: directories of files, a file, or a glob. Its snapshot is the listing: only the current one lives."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import unquote
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from capture.connectors.cache import COLUMNS, FILES, scope
from capture.connectors.credentials import check_choice, check_options, mask_uri
from capture.connectors.footers import Footer, Leaf, LeafStats, batched, promoted, read_footers, typed
from capture.connectors.layout import DEFAULT_SCHEMA, Folder, Lake, Place, Unreadable, folder_at, unknown_table
from capture.connectors.rows import ROWS_PER_TABLE, column_rows
from capture.connectors.spi import (
    FILE_COLUMN_SCHEMA,
    FILE_SCHEMA,
    Column,
    ColumnIds,
    ConnectorConfig,
    FilePart,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
    Snapshot,
    SnapshotLister,
    SnapshotListing,
    TableDescriptor,
    Wanted,
)
from store.errors import InvalidArgument, NotFound, UpstreamError
from store.logical_types import Kind, LogicalType, parse, to_arrow

OWN_OPTIONS: Final = ("hive_partitioning",)
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
SUFFIXES: Final = (".parquet", ".parq", ".pqt")
_PART: Final = 256  # files, about
_STATS_BYTES: Final = 300  # of one leaf's statistics in memory, about

FileStats: TypeAlias = tuple[LeafStats | None, ...]
"""What a footer says of each of its leaves, None for containers."""
_WILD = re.compile(r"[*?\[]")
_PARTITION = re.compile(r"([^=/]+)=([^/]*)")


@dataclass(frozen=True, slots=True)
class DataFile:
    place: Place
    relative: str
    size: int
    modified_ns: int
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def key(self) -> tuple[str, int, int]:
        return self.place.path, self.size, self.modified_ns


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table now, and the fingerprint of that."""

    root: Place
    files: tuple[DataFile, ...]
    snapshot_id: int

    @property
    def committed_at(self) -> datetime | None:
        newest = max((file.modified_ns for file in self.files), default=None)
        return None if newest is None else datetime.fromtimestamp(newest // 1000 / 1e6, UTC)


@dataclass(frozen=True, slots=True)
class Layout:
    """The union of the schemas of a table's files: columns, and the types of those that come from paths."""

    schema: Schema
    partitions: dict[str, LogicalType]


class ParquetConnector(SnapshotLister):
    """Tables that are nothing but Parquet files. `hive_partitioning`: `k=v` directories are columns."""

    format: ClassVar[str] = "parquet"

    def __init__(self, config: ConnectorConfig):
        check_options(self.format, config.options, OWN_OPTIONS)
        self._hive = check_choice(self.format, config.options, "hive_partitioning", ("auto", "true", "false"))
        pattern = config.uri if isinstance(config.uri, str) and _WILD.search(config.uri) else None
        top = config.uri
        if pattern:
            top = pattern[: _WILD.search(pattern).start()].rpartition("/")[0] or "."  # type: ignore[union-attr]
        self._uri = mask_uri(config.uri)
        self._lake = Lake(self.format, top, config.options, self._holds_table)
        self._glob = pattern and pattern[len(top) :].lstrip("/")
        self._scope = scope(config)
        self._layouts: dict[tuple[str, str, int], Layout] = {}

    def close(self) -> None:
        self._layouts.clear()

    # Names.

    @staticmethod
    def _holds_table(folder: Folder) -> bool:
        if "_delta_log" in folder.folders:
            return False  # its files are not all live; format delta knows
        return any(map(_is_data, folder.files)) or any(map(_partition_of, folder.folders))

    def _only(self) -> str | None:
        """The table's name where the uri is a glob or one file."""
        root = self._lake.root
        if self._glob:
            return root.stem
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
        layout = self._layout(namespace, name, listing)
        return TableDescriptor(
            namespace,
            name,
            None,
            listing.root.name,
            layout.schema,
            partition_keys=tuple(layout.partitions),
            properties={"format": "parquet"},
        )

    def _snapshots(self, namespace: str, name: str, wanted: Wanted) -> SnapshotListing:
        listing = self._listing(namespace, name)
        current = listing.snapshot_id
        snapshots: tuple[Snapshot, ...] = ()
        if current in wanted:
            schema = self._layout(namespace, name, listing).schema
            now = time.time_ns() // 1000
            snapshots = (Snapshot(current, now, schema, None, None, listing.committed_at, "listing"),)
        return SnapshotListing(snapshots, frozenset({current}), current)

    # Statistics.

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        listing = self._at(namespace, name, snapshot_id)
        layout = self._layout(namespace, name, listing)
        counts = [footer.row_count for footer in self._read(namespace, name, listing.files)]
        files = listing.files
        columns = {
            "file_path": [file.place.name for file in files],
            "file_format": ["PARQUET"] * len(files),
            "file_content": ["DATA"] * len(files),
            "row_count": counts,
            "size_bytes": [file.size for file in files],
            "partition_data_json": [_partition_json(file, layout) for file in files],
            "partition_spec_id": [None] * len(files),
            "sequence_number": [None] * len(files),
        }
        table = pa.table([columns[field.name] for field in FILE_SCHEMA], FILE_SCHEMA)
        return NativeStats(
            row_count=sum(counts),
            data_file_count=len(files),
            total_size_bytes=sum(file.size for file in files),
            files=table,
            file_columns=lambda: self._file_columns(namespace, name, files, layout, ids, column_names),
            parts=self._parts(namespace, name, listing, layout, ids, table) if column_names is None else (),
        )

    def _parts(
        self, namespace: str, name: str, listing: Listing, layout: Layout, ids: ColumnIds, table: pa.Table
    ) -> list[FilePart]:
        """The files by a hash of their names, so that one that comes or goes is a matter of one part."""
        count = 1 << max(0, (len(listing.files) // _PART).bit_length() - 1)
        members: dict[int, list[int]] = {}
        for position, file in enumerate(listing.files):
            members.setdefault(crc32(file.relative.encode("utf-8", "surrogatepass")) % count, []).append(position)
        shape = repr((self._scope, layout.schema.hash, sorted(layout.partitions), sorted(ids.items())))
        parts = []
        for _, positions in sorted(members.items()):
            files = tuple(listing.files[position] for position in positions)
            told = repr([(file.key, file.partition) for file in files])
            key = hashlib.sha256(f"{shape}{told}".encode("utf-8", "surrogatepass")).hexdigest()
            columns = partial(self._file_columns, namespace, name, files, layout, ids, None)
            times = pa.array([str(file.modified_ns) for file in files], pa.string())
            parts.append(FilePart(key, table.take(pa.array(positions, pa.int64())), columns, times))
        return parts

    def _file_columns(
        self,
        namespace: str,
        name: str,
        listed: Sequence[DataFile],
        layout: Layout,
        ids: ColumnIds,
        column_names: frozenset[str] | None,
    ) -> Iterator[pa.Table]:
        wanted = _wanted(layout.schema, column_names)
        for files in batched(listed, max(1, min(1000, ROWS_PER_TABLE // max(1, len(wanted))))):
            footers = self._read_stats(namespace, name, files)
            paths = pa.array([file.place.name for file in files], pa.string())
            rows = pa.array([footer.row_count for footer, _ in footers], pa.int64())
            parts = []
            for column in wanted:
                if column.name in layout.partitions:
                    parts.append(_partition_rows(files, paths, rows, column, layout.partitions[column.name], ids))
                else:
                    parts.append(_footer_rows(footers, paths, rows, column, ids))
            yield pa.concat_tables(parts) if parts else FILE_COLUMN_SCHEMA.empty_table()

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        listing = self._at(namespace, name, snapshot_id)
        layout = self._layout(namespace, name, listing)
        wanted = [
            column
            for column in _wanted(layout.schema, column_names)
            if column.name in ids and parse(column.logical_type).kind is not Kind.INTERVAL
        ]
        for file, footer in zip(listing.files, self._read(namespace, name, listing.files), strict=True):
            values = dict(file.partition)
            columns = []
            for column in wanted:
                kind = parse(column.logical_type)
                leaf = footer.leaf(column.name)
                if column.name in layout.partitions:
                    constant = _partition_values([values.get(column.name)], kind)
                    columns.append(ScanColumn(ids[column.name], column.name, column.logical_type, constant=constant))
                elif leaf is None or not leaf.is_leaf:
                    nothing = pa.nulls(1, to_arrow(kind))
                    columns.append(ScanColumn(ids[column.name], column.name, column.logical_type, constant=nothing))
                else:
                    columns.append(ScanColumn(ids[column.name], column.name, column.logical_type, path=leaf.path))
            digest = hashlib.sha256(f"{file.relative}\0{file.size}\0{file.modified_ns}".encode()).hexdigest()
            yield ScanTask(
                reader="parquet",
                file_path=file.place.name,
                location=file.place.name,
                row_count=footer.row_count,
                size_bytes=file.size,
                columns=tuple(columns),
                fingerprint=digest,
                storage=self._lake.storage,
            )

    # Files.

    def _at(self, namespace: str, name: str, snapshot_id: int) -> Listing:
        listing = self._listing(namespace, name)
        if listing.snapshot_id != snapshot_id:
            raise Unreadable(
                f'table "{namespace}.{name}": snapshot {snapshot_id} is gone, its listing of files has changed',
                hint="run discover, then capture the current snapshot",
            )
        return listing

    def _listing(self, namespace: str, name: str) -> Listing:
        only = self._only()
        if only is not None and (namespace, name) != (DEFAULT_SCHEMA, only):
            raise unknown_table(namespace, name, [only])
        root = self._lake.root if only is not None else self._lake.find(namespace, name)
        files = tuple(sorted(self._files(root, single=only is not None), key=lambda file: file.relative))
        if not files:
            if only is not None:
                raise NotFound(f'uri "{self._uri}" matches no Parquet file', params={"field": "uri"})
            raise unknown_table(namespace, name, [])
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.relative}\0{file.size}\0{file.modified_ns}\0".encode("utf-8", "surrogatepass"))
        fingerprint = int.from_bytes(digest.digest()[:8], "big") & (2**63 - 1)
        return Listing(root, files, fingerprint or 1)

    def _files(self, root: Place, *, single: bool) -> Iterator[DataFile]:
        with self._lake.reading():
            if single and not self._glob:
                info = root.file_system.get_file_info(root.path)
                yield DataFile(root, root.stem, info.size, info.mtime_ns or 0)
                return
            pattern = _glob_pattern(self._glob) if single and self._glob else None
            pending = [(root, "")]
            while pending:
                folder, prefix = pending.pop()
                infos, folders = folder_at(folder)
                pending.extend(
                    (folder.below(base), f"{prefix}{base}/")
                    for base in sorted(folders)
                    if not base.startswith((".", "_")) and (pattern or _partition_of(base))
                )
                for info in infos:
                    base, relative = info.base_name, f"{prefix}{info.base_name}"
                    wanted = pattern.fullmatch(relative) if pattern else _is_data(base)
                    if wanted and info.size:
                        place, partition = folder.below(base), self._partition(prefix)
                        yield DataFile(place, relative, info.size, info.mtime_ns or 0, partition)

    def _partition(self, prefix: str) -> tuple[tuple[str, str | None], ...]:
        if self._hive == "false":
            return ()
        return tuple(pair for part in prefix.split("/") if (pair := _partition_of(part)))

    def _read(self, namespace: str, name: str, files: Sequence[DataFile]) -> Iterator[Footer]:
        """Footers without statistics in the order of the files; one that was read lately is not read again."""
        for group in batched(files, 256):
            held: dict[Any, Any] = {file.key: FILES.get(("footer", self._scope, file.key)) for file in group}
            missing = [file for file in group if held[file.key] is None]
            held |= {key: footer for key, footer, _ in self._read_anew(namespace, name, missing)}
            yield from (held[file.key] for file in group)

    def _read_stats(self, namespace: str, name: str, files: Sequence[DataFile]) -> list[tuple[Footer, FileStats]]:
        """Footers with the statistics of their leaves."""
        held: dict[tuple[str, int, int], tuple[Footer, FileStats]] = {}
        for file in files:
            footer, stats = (cache.get(("footer", self._scope, file.key)) for cache in (FILES, COLUMNS))
            if footer is not None and stats is not None:
                held[file.key] = footer, stats
        missing = [file for file in files if file.key not in held]
        held |= {key: (footer, stats) for key, footer, stats in self._read_anew(namespace, name, missing)}
        return [held[file.key] for file in files]

    def _read_anew(
        self, namespace: str, name: str, files: Sequence[DataFile]
    ) -> Iterator[tuple[tuple[str, int, int], Footer, FileStats]]:
        try:
            for file, footer in zip(files, read_footers([file.place for file in files]), strict=True):
                stats = footer.rolled_up()
                footer.groups = []  # large, and told by now
                key = ("footer", self._scope, file.key)
                FILES.put(key, footer, 300 + 2 * len(file.place.path))
                COLUMNS.put(key, stats, _STATS_BYTES * len(stats))
                yield file.key, footer, stats
        except UpstreamError as trouble:
            raise _of_table(trouble, namespace, name) from None

    # Schema.

    def _layout(self, namespace: str, name: str, listing: Listing) -> Layout:
        key = (namespace, name, listing.snapshot_id)
        if key not in self._layouts:
            self._layouts = {k: v for k, v in self._layouts.items() if k[:2] != key[:2]}
            self._layouts[key] = self._unified(namespace, name, listing)
        return self._layouts[key]

    def _unified(self, namespace: str, name: str, listing: Listing) -> Layout:
        merged: dict[str, _Merged] = {}
        files = 0
        last: tuple[Leaf, ...] | None = None
        for footer in self._read(namespace, name, listing.files):
            files += 1
            if last is not None and _same(footer.leaves, last):
                for leaf in footer.leaves:
                    merged[leaf.name].files += 1
                continue
            last = footer.leaves
            for leaf in footer.leaves:
                if leaf.name in merged:
                    merged[leaf.name].add(leaf, footer, f"{namespace}.{name}")
                else:
                    merged[leaf.name] = _Merged(leaf)
        columns = [
            Column(known.leaf.name, known.type.text, known.nullable or known.files < files) for known in merged.values()
        ]
        partitions = {k: v for k, v in self._partition_types(namespace, name, listing).items() if k not in merged}
        columns = _structs_first(columns)
        for key, (kind, nullable) in partitions.items():
            columns.append(Column(key, kind.text, nullable))
        return Layout(Schema(tuple(columns)), {key: kind for key, (kind, _) in partitions.items()})

    def _partition_types(self, namespace: str, name: str, listing: Listing) -> dict[str, tuple[LogicalType, bool]]:
        keys = [tuple(key for key, _ in file.partition) for file in listing.files]
        if self._hive == "false" or not any(keys):
            if self._hive == "true":
                raise Unreadable(f'table "{namespace}.{name}": hive_partitioning=true, but no directory is key=value')
            return {}
        if len(set(keys)) > 1:
            if self._hive == "true":
                raise Unreadable(
                    f'table "{namespace}.{name}": hive_partitioning=true, but its files differ in partition keys '
                    f"({' and '.join('/'.join(found) or 'none' for found in sorted(set(keys))[:2])})"
                )
            return {}
        values: dict[str, set[str | None]] = {key: set() for key in keys[0]}
        for file in listing.files:
            for key, value in file.partition:
                values[key].add(value)
        return {key: (_type_of(held - {None}), None in held) for key, held in values.items()}  # type: ignore[arg-type]


class _Merged:
    """One column over the files: the first type, promoted by the others."""

    def __init__(self, leaf: Leaf):
        self.leaf, self.type, self.nullable, self.files, self.untyped = (
            leaf,
            leaf.logical_type,
            leaf.nullable,
            1,
            leaf.untyped,
        )

    def add(self, leaf: Leaf, footer: Footer, table: str) -> None:
        self.files += 1
        self.nullable = self.nullable or leaf.nullable
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


def _same(some: tuple[Leaf, ...], others: tuple[Leaf, ...]) -> bool:
    if some is others:
        return True
    return len(some) == len(others) and all(
        (a.name, a.logical_type, a.nullable, a.untyped) == (b.name, b.logical_type, b.nullable, b.untyped)
        for a, b in zip(some, others, strict=True)
    )


def _structs_first(columns: list[Column]) -> list[Column]:
    """A leaf that a later file brought goes to the end of its struct."""
    if not any(column.logical_type == "STRUCT" for column in columns):
        return columns
    positions = {column.name: number for number, column in enumerate(columns)}

    def key(column: Column) -> tuple[int, ...]:
        parts = column.name.split(".")
        prefixes = (".".join(parts[: i + 1]) for i in range(len(parts)))
        return tuple(positions[prefix] for prefix in prefixes if prefix in positions)

    return sorted(columns, key=key)


def _of_table(trouble: UpstreamError, namespace: str, name: str) -> UpstreamError:
    """The same trouble, with the table's name."""
    return type(trouble)(f'table "{namespace}.{name}": {trouble.message}', hint=trouble.hint, params=trouble.params)


def _wanted(schema: Schema, names: frozenset[str] | None) -> list[Column]:
    return [column for column in schema.columns if column.is_leaf and (names is None or column.name in names)]


# Statistics of one column over some files.


def _footer_rows(
    footers: list[tuple[Footer, FileStats]], paths: pa.Array, rows: pa.Array, column: Column, ids: ColumnIds
) -> pa.Table:
    kind = parse(column.logical_type)
    nulls: list[int | None] = []
    nans: list[int | None] = []
    lowers: list[Any] = []
    uppers: list[Any] = []
    lower_exact: list[bool | None] = []
    upper_exact: list[bool | None] = []
    kinds: list[LogicalType] = []
    for footer, told in footers:
        position = footer.positions.get(column.name)
        stats = None if position is None else told[position]
        if position is None or stats is None:  # a file without the column reads as null
            nulls.append(footer.row_count)
            nans.append(None)
            lowers.append(None)
            uppers.append(None)
            lower_exact.append(None)
            upper_exact.append(None)
            kinds.append(kind)
            continue
        leaf = footer.leaves[position]
        nulls.append(footer.row_count if leaf.untyped else stats.null_count)
        nans.append(stats.nan_count)
        lowers.append(stats.lower)
        uppers.append(stats.upper)
        lower_exact.append(stats.lower_exact)
        upper_exact.append(stats.upper_exact)
        kinds.append(leaf.logical_type)
    lower = upper = None
    if kind.orderable:
        lower, upper = _typed(lowers, kinds, kind), _typed(uppers, kinds, kind)
    return column_rows(
        paths,
        column,
        ids,
        rows,
        null_count=pa.array(nulls, pa.int64()),
        nan_count=pa.array(nans, pa.int64()),
        lower=lower,
        upper=upper,
        lower_exact=pa.array(lower_exact, pa.bool_()),
        upper_exact=pa.array(upper_exact, pa.bool_()),
    )


def _typed(values: list[Any], kinds: list[LogicalType], of: LogicalType) -> pa.Array:
    if len(set(kinds)) == 1:
        return typed(values, kinds[0], of)
    return pa.concat_arrays(
        [typed([value], kind, of).cast(to_arrow(of)) for value, kind in zip(values, kinds, strict=True)]
    )


def _partition_rows(
    files: list[DataFile], paths: pa.Array, rows: pa.Array, column: Column, kind: LogicalType, ids: ColumnIds
) -> pa.Table:
    values = _partition_values([dict(file.partition).get(column.name) for file in files], kind)
    nulls = pc.if_else(pc.is_null(values), rows, pa.scalar(0, pa.int64()))
    return column_rows(
        paths,
        column,
        ids,
        rows,
        null_count=nulls,
        lower=values,
        upper=values,
        lower_exact=True,
        upper_exact=True,
    )


# Partition directories.


def _is_data(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith((".", "_"))


def _partition_of(folder: str) -> tuple[str, str | None] | None:
    """Key and value of a `key=value` directory; an empty or Hive's default value is null."""
    found = _PARTITION.fullmatch(folder)
    if found is None or folder.startswith((".", "_")):
        return None
    value = unquote(found[2])
    return unquote(found[1]), None if value in ("", HIVE_NULL) else value


def _type_of(values: set[str]) -> LogicalType:
    if values and all(re.fullmatch(r"-?\d{1,18}", value) for value in values):
        return LogicalType(Kind.INT)
    if values and all(map(_as_date, values)):
        return LogicalType(Kind.DATE)
    return LogicalType(Kind.STRING)


def _as_date(value: str) -> date | None:
    try:
        return date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", value) else None
    except ValueError:
        return None


def _partition_values(values: list[str | None], kind: LogicalType) -> pa.Array:
    match kind.kind:
        case Kind.INT:
            return pa.array([None if value is None else int(value) for value in values], pa.int64())
        case Kind.DATE:
            return pa.array([None if value is None else _as_date(value) for value in values], pa.date32())
    return pa.array(values, pa.string())


def _partition_json(file: DataFile, layout: Layout) -> str | None:
    held: dict[str, Any] = {key: value for key, value in file.partition if key in layout.partitions}
    if not held:
        return None
    for key, value in held.items():
        if value is not None and layout.partitions[key].kind is Kind.INT:
            held[key] = int(value)
    return json.dumps(held, ensure_ascii=False)


def _glob_pattern(glob: str) -> re.Pattern[str]:
    """`*` and `?` stay within a directory, `**` goes through them, `[…]` is a set of characters."""
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
        raise InvalidArgument(f"uri: {glob!r} is no glob", params={"field": "uri"}) from None
