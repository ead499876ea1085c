"""The connector interface: namespaces, tables, snapshots, native statistics and scan tasks of one lake.

A connector reads metadata only and needs no JVM. Many may be open at once; none keeps state after `close()`. Upstream
errors are raised as `store.model.errors.UpstreamError` (retryable or not) or `NotFound`, with a message that names the
table and the reason.

A table is `(namespace, name)`; a nested namespace is dotted. A column is displayed as its dotted path and identified by
its key (`Column.key`). In formats without field ids `Column.field_id` is None; the store then assigns an id to the key
for the table's lifetime and passes the mapping to the connector as `ColumnIds`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, cached_property
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from store.model.columns import DELETES, SCALAR
from store.model.errors import Unimplemented
from store.model.format_facts import UNKNOWN, FormatFacts
from store.model.names import column_key
from store.model.statistics import INT, TEXT

ColumnIds = Mapping[str, int]
"""Column key (`Column.key`) → column id, for every column the table ever had; also by dotted name if it is unique."""

CONTAINERS = frozenset({"ARRAY", "MAP", "STRUCT", "VARIANT"})
COUNTED = CONTAINERS - {"VARIANT"}
"""Containers whose nulls can be counted."""

FILE_SCHEMA = pa.schema(
    {
        "file_path": TEXT,
        "file_format": TEXT,
        "file_content": TEXT,
        "row_count": INT,
        "size_bytes": INT,
        "partition_data_json": TEXT,
        "partition_spec_id": pa.int32(),
        "sequence_number": INT,
    }
    | DELETES
)
"""`stats.files` without key and provenance, one row per path.

`row_count` is the number of live rows of a data file, and of all rows of a delete file. `delete_files` are the delete
files that apply to a data file: empty if none, null if unknown.
"""


def file_table(columns: Mapping[str, Any]) -> pa.Table:
    """Builds rows of FILE_SCHEMA from columns by name; missing columns are null."""
    rows = len(columns["file_path"])
    return pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in FILE_SCHEMA], FILE_SCHEMA)


FILE_COLUMN_SCHEMA = pa.schema(
    {
        "file_path": TEXT,
        "column_id": INT,
        "column_name": TEXT,
        **SCALAR,
        "bytes_scanned": INT,
        "doubt": TEXT,
    }
)
"""`stats.file_columns` without key and provenance, except the compressed bytes of the column in the file, and with the
reason why its bounds may be wrong (`known_writers.doubt`), null if there is none."""

COLUMN_SCHEMA = pa.schema({"column_id": INT, "column_name": TEXT} | SCALAR)
"""`stats.columns` without key and provenance."""


def no_delete_files(rows: int) -> pa.Array:
    """`delete_files` values of data files without deletes: `rows` empty lists."""
    kind = FILE_SCHEMA.field("delete_files").type
    offsets = pa.repeat(pa.scalar(0, pa.int32()), rows + 1)
    return pa.ListArray.from_arrays(offsets, pa.nulls(0, kind.value_type)).cast(kind)


def delete_file(
    path: str | None, content: str = "DELETION_VECTOR", offset_bytes: int | None = None, size_bytes: int | None = None
) -> dict[str, Any]:
    """An item of `delete_files`; `content` is in DELETE_CONTENTS, offset and size locate it within a shared file."""
    return {"file_path": path, "file_content": content, "content_offset": offset_bytes, "content_size": size_bytes}


@dataclass(frozen=True, slots=True)
class Column:
    """A column or struct leaf of a table's schema. `logical_type` is canonical (`store.model.logical_types`)."""

    name: str
    logical_type: str
    nullable: bool = True
    field_id: int | None = None
    path: tuple[str, ...] = ()  # parts of the name; empty if the name has no dots or its parts are unknown

    @property
    def is_leaf(self) -> bool:
        """True if the column has scalar values; structs, lists and maps do not."""
        return self.logical_type not in CONTAINERS

    @property
    def key(self) -> str:
        """Identifier of the column within its table, see `store.model.names.column_key`."""
        return column_key(self.path) if self.path else self.name

    def is_among(self, names: Container[str]) -> bool:
        """True if the column's key or dotted name is in `names`."""
        return self.key in names or self.name in names

    def id_in(self, ids: ColumnIds) -> int | None:
        """The column's id, that of the format if it has one, for its name may be another column's by now; else None if
        `ids` lack it."""
        return ids.get(self.key, ids.get(self.name)) if self.field_id is None else self.field_id


@dataclass(frozen=True)  # no slots: the hash is cached
class Schema:
    """The columns of one snapshot in order, a struct before its leaves; lists and maps are not expanded."""

    columns: tuple[Column, ...]

    @cached_property
    def hash(self) -> str:
        """SHA-256 in hex of the ordered (name, type, nullable) triples, each with the field id if the format has one.

        A column that is dropped and added again is another one, though nothing but its field id tells."""
        digest = hashlib.sha256()
        for column in self.columns:
            field_id = "" if column.field_id is None else f"{column.field_id}\0"
            digest.update(f"{column.name}\0{column.logical_type}\0{int(column.nullable)}\0{field_id}".encode())
        return digest.hexdigest()

    def leaves(self, names: frozenset[str] | None) -> list[Column]:
        """The leaf columns with these keys or names; all leaf columns if None."""
        return [column for column in self.columns if column.is_leaf and (names is None or column.is_among(names))]

    def scanned(self, names: frozenset[str] | None) -> list[Column]:
        """The columns with these keys or names, containers included; all leaf columns if None."""
        return self.leaves(None) if names is None else [column for column in self.columns if column.is_among(names)]

    def sources(self, names: frozenset[str] | None, ids: ColumnIds) -> tuple[ScanColumn, ...]:
        """The `scanned` columns that have an id, for files with the schema of the table."""
        return tuple(
            ScanColumn(column_id, column.name, column.logical_type, column.key)
            for column in self.scanned(names)
            if (column_id := column.id_in(ids)) is not None
        )


@dataclass(frozen=True, slots=True)
class Constraint:
    """A declared constraint: `kind` is PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK (NOT NULL is a CHECK).

    The clause of a foreign key is JSON: namespace and name of the table that it refers to, and its columns.
    """

    kind: str
    name: str
    columns: tuple[str, ...]
    clause: str | None = None


def declared(table: str, schema: Schema, key: Sequence[str]) -> tuple[Constraint, ...]:
    """The primary key of a table, empty if it has none, and the NOT NULL of its required columns."""
    found = [Constraint("PRIMARY KEY", f"{table}_pkey", tuple(key))] if key else []
    for column in schema.columns:
        if len(column.path) == 1 and not column.nullable:
            name = column.name
            found.append(Constraint("CHECK", f"{table}_{name}_not_null", (name,), f"{name} IS NOT NULL"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TableDescriptor:
    """Current state of a table. `table_id` is the format's own id, `metadata_location` the address of its newest
    metadata file, `format_schema` its schema as the format writes it (JSON), `description` of the table; None if it has
    none. `comments`: column key → comment, where `format_schema` does not have them (`comments.comments_in`). `facts`
    of its format, without which nothing is taken for granted: no scan of the table skips a file."""

    namespace: str
    name: str
    table_id: str | None
    location: str
    schema: Schema
    partition_keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    metadata_location: str | None = None
    format_schema: str | None = None
    description: str | None = None
    comments: Mapping[str, str] = field(default_factory=dict)
    facts: FormatFacts = UNKNOWN


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot. A later snapshot of a table has a greater `ordinal`."""

    snapshot_id: int
    ordinal: int
    schema: Schema
    parent_snapshot_id: int | None = None
    sequence_number: int | None = None
    committed_at: datetime | None = None
    operation: str | None = None
    manifest_list: str | None = None  # address of the file that lists its data files, or the manifests of these
    summary: str | None = None  # JSON as the format has it


@dataclass(frozen=True, slots=True)
class SnapshotListing:
    """The requested snapshots (new ones, or all on a full rescan), the ids of all live ones, and the current id.

    The current snapshot has the table's current schema, which some formats change without a new snapshot.

    Attributes:
        identities: Snapshot id → text that a table created again under the same name does not repeat, such as the
            commit's time or digest. Has at least the current snapshot and the newest known one that is live; empty for
            formats whose ids or tables' ids never repeat.
    """

    snapshots: tuple[Snapshot, ...]
    live_snapshot_ids: frozenset[int]
    current_snapshot_id: int | None
    identities: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScanColumn:
    """Source of a column's values in one file. Exactly one of `path` and `constant` is set.

    Attributes:
        path: Key of the column's path in the file (`store.model.names.column_key`), without lists.
        constant: Partition value, default, or null for a column missing in the file, as a one-element array of the
            column's Arrow type.
        width_bytes: Width of an integer in the table's type, since older files may store it in fewer bytes; None: as in
            the file.
        within: Key of a struct, list or map in the file; in rows where it is null, the column is null instead of
            `constant`.
    """

    column_id: int
    name: str
    logical_type: str
    path: str | None = None
    constant: pa.Array | None = None
    width_bytes: int | None = None
    within: str | None = None


def container(column_id: int, column: Column, path: str | None) -> ScanColumn:
    """A struct, list or map to scan, whose values are only null or not; `path` is None if the file lacks it."""
    value = pa.nulls(1, pa.bool_()) if path is None else pa.array([True])
    return ScanColumn(column_id, column.name, column.logical_type, None, value, within=path)


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """An Iceberg equality delete file: deletes rows equal in all `columns` (column, its path in the delete file)."""

    path: str
    columns: tuple[tuple[ScanColumn, str], ...]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One file (or fragment) to scan; picklable and self-contained, so that an executor can run it.

    `reader` names the reader of the file: "parquet", or one of `capture.connectors.READERS`. `deleted_rows` has the
    ascending positions (int64) of deleted rows. `fingerprint` changes whenever the live rows may: it covers path, size
    and deletes.
    """

    reader: str
    file_path: str
    location: str
    row_count: int
    size_bytes: int
    columns: tuple[ScanColumn, ...]
    fingerprint: str
    storage: Mapping[str, str] = field(default_factory=dict)
    deleted_rows: pa.Array | None = None
    equality_deletes: tuple[EqualityDelete, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FilePart:
    """Files of a snapshot that the format lists together, for example in one manifest.

    `key` is a digest of their rows: parts of two snapshots with equal keys have equal rows, so a capture can skip
    them. `files` and `file_columns()` are as in `NativeStats`, but for all leaf columns. `marks` has one string per
    file that changes with the file's content even if its row of `files` does not.
    """

    key: str
    files: pa.Table
    file_columns: Callable[[], Iterator[pa.Table]]
    marks: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class EarlierColumns:
    """Column statistics that the source computed for an earlier snapshot and still carries in the requested one.

    They become records of `snapshot_id`, whose schema has `schema_hash`. `columns` has COLUMN_SCHEMA.
    """

    snapshot_id: int
    schema_hash: str
    columns: pa.Table


@dataclass(frozen=True, slots=True)
class NativeStats:
    """Statistics of one snapshot from metadata alone.

    Attributes:
        row_count: Live rows; None if metadata does not give them.
        files: Rows of FILE_SCHEMA.
        file_columns: Yields tables of FILE_COLUMN_SCHEMA, bounded in size, for the requested leaf columns. ndv and
            widths are null unless the format has them; every bound has its exactness.
        columns: Rows of COLUMN_SCHEMA, for columns with table-level statistics of exactly this snapshot (Paimon
            statistics file, Lance properties, Puffin); None: the engine rolls the files up.
        row_deletes: Whether row-level deletes exist.
        sketches: Table-level sketches of the source: (column_id, role, sketch_type, data, params).
        parts: Optional: `files` and `file_columns()` again, split into parts, for captures of all columns.
        earlier: Table-level statistics of earlier snapshots that are still live.
        remarks: Reasons why expected statistics are missing.
        sources: Where `columns`, `sketches` and `earlier` were found, in words.
    """

    row_count: int | None
    data_file_count: int | None
    total_size_bytes: int | None
    files: pa.Table
    file_columns: Callable[[], Iterator[pa.Table]]
    columns: pa.Table | None = None
    merged_size_bytes: int | None = None
    row_deletes: bool = False
    producer: str = "UPSTREAM_METADATA_DERIVED"
    sketches: Sequence[tuple[int, str, str, bytes, Mapping[str, Any]]] = ()
    parts: Sequence[FilePart] = ()
    earlier: Sequence[EarlierColumns] = ()
    remarks: Sequence[str] = ()
    sources: Sequence[str] = ()

    def kept(self) -> NativeStats:
        """These statistics, whose rows about the columns of files are made once."""
        parts = [replace(part, file_columns=_once(part.file_columns)) for part in self.parts]
        rows = _once(
            lambda: chain.from_iterable(part.file_columns() for part in parts) if parts else self.file_columns()
        )
        return replace(self, file_columns=rows, parts=parts)


def _once(rows: Callable[[], Iterable[pa.Table]]) -> Callable[[], Iterator[pa.Table]]:
    tables = cache(lambda: list(rows()))
    return lambda: iter(tables())


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """Address and options of a lake. `options` contain resolved secrets: never log, store or echo them."""

    catalog: str
    format: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SnapshotSelection:
    """Snapshots to list: the targets; without targets all on a full rescan, else the unknown ones."""

    full_rescan: bool = False
    known_snapshot_ids: frozenset[int] = frozenset()
    target_snapshot_ids: frozenset[int] | None = None

    def identified(self, live: Collection[int], current: int | None) -> set[int]:
        """The snapshots whose identity a listing must have: the current one, and the newest known one that is live."""
        known = self.known_snapshot_ids & frozenset(live)
        return {snapshot_id for snapshot_id in (max(known, default=None), current) if snapshot_id is not None}

    def __contains__(self, snapshot_id: int) -> bool:
        if self.target_snapshot_ids is not None:
            return snapshot_id in self.target_snapshot_ids
        return self.full_rescan or snapshot_id not in self.known_snapshot_ids


class Connector(ABC):
    """An opened lake.

    Attributes:
        format: Its name among the `statflight.connectors` entry points.
        states_files: Whether a log or manifest, apart from the files, says what their live rows are like. Scans are
            compared with it.
        changes_schemas_alone: Whether schemas change without a new snapshot, so that a snapshot may have another one
            once it is no longer current.
    """

    format: ClassVar[str]
    states_files: ClassVar[bool] = False
    changes_schemas_alone: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, config: ConnectorConfig) -> None:
        """Checks the options (InvalidArgument names a wrong one and lists the valid ones); does no slow I/O."""

    @abstractmethod
    def list_namespaces(self) -> list[str]:
        """Namespaces, empty ones of a catalog too; raises NotFound or UpstreamError if the URI cannot be read."""

    @abstractmethod
    def list_tables(self, namespace: str) -> list[str]:
        """Tables of a namespace, sorted."""

    @abstractmethod
    def describe(self, namespace: str, name: str) -> TableDescriptor:
        """Describes a table; raises NotFound if it does not exist, UpstreamError if it cannot be read."""

    def enumerate_snapshots(
        self,
        namespace: str,
        name: str,
        *,
        full_rescan: bool = False,
        known_snapshot_ids: frozenset[int] = frozenset(),
        target_snapshot_ids: frozenset[int] | None = None,
    ) -> SnapshotListing:
        """Lists the target snapshots; without targets all on a full rescan, else those not in `known_snapshot_ids`."""
        return self._snapshots(namespace, name, SnapshotSelection(full_rescan, known_snapshot_ids, target_snapshot_ids))

    @abstractmethod
    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing: ...

    @abstractmethod
    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        """Native statistics of a snapshot, for columns with these names or keys (None: all columns)."""

    @abstractmethod
    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        """Yields one task per live data file, with columns in the schema of the snapshot."""

    def format_of(self, namespace: str, name: str) -> str:  # noqa: ARG002  all of most lakes have one
        """The format of a table."""
        return self.format

    def metadata_document(self, namespace: str, name: str, location: str) -> dict[str, Any]:  # noqa: ARG002  few formats have one
        """The JSON of a table's metadata file at a location; Unimplemented for formats without such files."""
        raise Unimplemented(f"tables of format {self.format} have no metadata file")

    def row_deletes(self, namespace: str, name: str, snapshot_id: int) -> dict[str, Any]:  # noqa: ARG002  as above
        """Row-level deletes, see `iceberg.snapshot_view`; Unimplemented for other formats."""
        raise Unimplemented(f"row-level deletes of format {self.format} are not Iceberg's")

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:  # noqa: ARG002  few can tell
        """A text about a table as it is now, made by one request: while it is the same, so is the table.

        Args:
            before: The text of an earlier call, which may say where to look.

        Returns:
            The text; None if the connector cannot tell, so that the table must be described again.

        Raises:
            NotFound: The table does not exist.
            UpstreamError: The lake cannot be read.
        """
        return None

    def lake_mark(self, before: str | None = None) -> str | None:  # noqa: ARG002  as above
        """A text about the lake's directories: while it is the same, so are the names of its tables.

        Args:
            before: The text of an earlier call, to be made anew by a request for each directory around tables; without
                one, that of the last `list_namespaces` is returned, without a request.

        Returns:
            The text; None if the connector cannot tell.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Releases connections and caches; the connector must not be used afterwards."""

    @property
    def tables_at_once(self) -> int:
        """Number of tables to describe concurrently, in threads; above 1 if describing mostly waits for I/O."""
        return 1
