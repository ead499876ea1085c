"""The connector interface: namespaces, tables, snapshots, native statistics and scan tasks of one lake.

A connector reads metadata; it never needs a JVM. It tolerates being made many times, holds no state that outlives
`close()`, and raises `store.errors.UpstreamError` (retryable or not) or `NotFound` for upstream trouble, with a message
that names the table and the reason.

Names: a table is `(namespace, name)`; a namespace is dotted when nested. A column is written as its dotted path and
identified by its key (`Column.key`). Where a format has no field ids a `Column.field_id` is None; the store then gives
the key an id for the table's life, and the connector gets that mapping as `ColumnIds` when it captures.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from store.names import column_key
from store.schemas import DELETES, INT, SCALAR, TEXT

ColumnIds = Mapping[str, int]
"""Column key (`Column.key`) → column id, over every column a table ever had; a dotted name is a key too where no other
column is written alike."""

CONTAINERS = frozenset({"ARRAY", "MAP", "STRUCT", "VARIANT"})

FILE_SCHEMA = pa.schema({
    "file_path": TEXT, "file_format": TEXT, "file_content": TEXT, "row_count": INT, "size_bytes": INT,
    "partition_data_json": TEXT, "partition_spec_id": pa.int32(), "sequence_number": INT,
} | DELETES)  # fmt: skip
"""`stats.files` without key and provenance, one row for a path.

`row_count` is the rows of a data file that are live, and the rows that a delete file has. `delete_files` of a data file
are those that apply to it, an empty list where none does, null where that is not known.
"""


def file_table(columns: Mapping[str, Any]) -> pa.Table:
    """Rows of FILE_SCHEMA from its columns by name; one that is not given is null."""
    rows = len(columns["file_path"])
    return pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in FILE_SCHEMA], FILE_SCHEMA)


FILE_COLUMN_SCHEMA = pa.schema({"file_path": TEXT, "column_id": INT, "column_name": TEXT} | SCALAR)
"""`stats.file_columns` without key and provenance."""

COLUMN_SCHEMA = pa.schema({"column_id": INT, "column_name": TEXT} | SCALAR)
"""`stats.columns` without key and provenance."""


def no_delete_files(rows: int) -> pa.Array:
    """The `delete_files` of data files to which no deletes apply."""
    kind = FILE_SCHEMA.field("delete_files").type
    offsets = pa.repeat(pa.scalar(0, pa.int32()), rows + 1)
    return pa.ListArray.from_arrays(offsets, pa.nulls(0, kind.value_type)).cast(kind)


def delete_file(
    path: str, content: str = "DELETION_VECTOR", offset_bytes: int | None = None, size_bytes: int | None = None
) -> dict[str, Any]:
    """An item of `delete_files`; offset and size where it is a part of its file. `content` is in DELETE_CONTENTS."""
    return {"file_path": path, "file_content": content, "content_offset": offset_bytes, "content_size": size_bytes}


@dataclass(frozen=True, slots=True)
class Column:
    """A column or struct leaf of a table's schema. `logical_type` is canonical (`store.logical_types`)."""

    name: str
    logical_type: str
    nullable: bool = True
    field_id: int | None = None
    path: tuple[str, ...] = ()  # the parts of the name; empty: a name without dots, or parts that are not known

    @property
    def is_leaf(self) -> bool:
        """True when the column has values of its own; structs, lists and maps have none."""
        return self.logical_type not in CONTAINERS

    @property
    def key(self) -> str:
        """The text that identifies the column within its table, see `store.names.column_key`."""
        return column_key(self.path) if self.path else self.name

    def is_among(self, names: Container[str]) -> bool:
        """True where names or keys include the column; a name includes all columns that are written so."""
        return self.key in names or self.name in names

    def id_in(self, ids: ColumnIds) -> int | None:
        """The column's id, None where it has none."""
        return ids.get(self.key, ids.get(self.name))


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of one snapshot in order, a struct before its leaves, lists and maps not opened."""

    columns: tuple[Column, ...]

    @property
    def hash(self) -> str:
        """SHA-256, hex, over the ordered (name, type, nullable) triples."""
        digest = hashlib.sha256()
        for column in self.columns:
            digest.update(f"{column.name}\0{column.logical_type}\0{int(column.nullable)}\0".encode())
        return digest.hexdigest()

    def leaves(self, names: frozenset[str] | None) -> list[Column]:
        """The columns that have values of their own, of those with these keys or names (None: of all)."""
        return [column for column in self.columns if column.is_leaf and (names is None or column.is_among(names))]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A declared constraint: `kind` is PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK (NOT NULL is a CHECK)."""

    kind: str
    name: str
    columns: tuple[str, ...]
    clause: str | None = None


@dataclass(frozen=True, slots=True)
class TableDescriptor:
    """A table as it is now. `table_id` is the format's own identity, None where it has none."""

    namespace: str
    name: str
    table_id: str | None
    location: str
    schema: Schema
    partition_keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot. `ordinal` grows with history: of two snapshots of a table the later has the greater."""

    snapshot_id: int
    ordinal: int
    schema: Schema
    parent_snapshot_id: int | None = None
    sequence_number: int | None = None
    committed_at: datetime | None = None
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotListing:
    """Snapshots asked for (new ones, or all on a full rescan), the ids of all live ones, and the current one."""

    snapshots: tuple[Snapshot, ...]
    live_snapshot_ids: frozenset[int]
    current_snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class ScanColumn:
    """The source of a column's values in one file.

    Exactly one of: `path` (the key of the column's path inside the file, list-free: `store.names.column_key`), or
    `constant` (partition value or default, as a one-element Arrow array of the column's Arrow type; a null one for a
    column the file lacks).
    `width_bytes` is the width of an integer of the table's type, which an older file may keep in fewer bytes; None
    leaves it to the file. `within` is the key of a struct of the file in whose null rows a `constant` does not hold:
    there the column is null.
    """

    column_id: int
    name: str
    logical_type: str
    path: str | None = None
    constant: pa.Array | None = None
    width_bytes: int | None = None
    within: str | None = None


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """An Iceberg equality delete file: rows equal in all `columns` (table name, path in the delete file) are gone."""

    path: str
    columns: tuple[tuple[ScanColumn, str], ...]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One file (or fragment) to read: picklable, and all an executor needs.

    `reader` names the reader in `capture.compute.readers` ("parquet", "lance"). `deleted_rows` has ascending positions
    (int64) of rows that are gone. `fingerprint` changes whenever the live content may: path, size and deletes.
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
    """Some files of a snapshot that the format keeps together, such as those of one manifest.

    `key` is a digest of their rows: parts of two snapshots with one key have the same rows, so a capture need not
    look at them again. `files` and `file_columns()` are as in `NativeStats`, but of all leaf columns. `marks` are
    texts, one for each file, that change with its content where its row of `files` may not.
    """

    key: str
    files: pa.Table
    file_columns: Callable[[], Iterator[pa.Table]]
    marks: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class EarlierColumns:
    """Column statistics that the source made for an earlier snapshot and still offers at the one asked for.

    They are records of `snapshot_id`, whose schema has `schema_hash`. `columns` has COLUMN_SCHEMA.
    """

    snapshot_id: int
    schema_hash: str
    columns: pa.Table


@dataclass(frozen=True, slots=True)
class NativeStats:
    """Statistics of one snapshot from metadata alone.

    `files` has FILE_SCHEMA. `file_columns()` yields tables of FILE_COLUMN_SCHEMA, bounded in size, for the leaf
    columns asked for; ndv and widths are null unless the format knows them; every bound carries its exactness.
    `columns` has COLUMN_SCHEMA for columns whose table-level statistics the format itself keeps for this very snapshot
    (Paimon statistics file, Lance properties, Puffin): None lets the engine roll the files up. Of statistics made for
    another snapshot nothing belongs there; `earlier` has those of snapshots before this one that are still live.
    `remarks` say why statistics that were looked for are not here.
    `row_count` is live rows, None when metadata cannot tell. `row_deletes` says whether row-level deletes exist.
    `sketches` are (column_id, role, sketch_type, data, params) the source keeps at table level.
    `parts`, where a connector has them, are all of `files` and `file_columns()` again, for captures of all columns.
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


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """The address and options of a lake. `options` hold resolved secrets: never log, store or echo them."""

    catalog: str
    format: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SnapshotSelection:
    """Snapshots to list: those named as targets; without targets all, or those not known yet."""

    full_rescan: bool = False
    known_snapshot_ids: frozenset[int] = frozenset()
    target_snapshot_ids: frozenset[int] | None = None

    def __contains__(self, snapshot_id: int) -> bool:
        if self.target_snapshot_ids is not None:
            return snapshot_id in self.target_snapshot_ids
        return self.full_rescan or snapshot_id not in self.known_snapshot_ids


class SnapshotLister(ABC):
    """Base of our connectors: they list snapshots given which ones are wanted."""

    @property
    def tables_at_once(self) -> int:
        """The number of tables that may be described at once, in threads: more than one where each is a wait."""
        return 1

    def enumerate_snapshots(
        self,
        namespace: str,
        name: str,
        *,
        full_rescan: bool = False,
        known_snapshot_ids: frozenset[int] = frozenset(),
        target_snapshot_ids: frozenset[int] | None = None,
    ) -> SnapshotListing:
        """Lists the snapshots named as targets; without targets all on a full rescan, else those not known yet."""
        return self._snapshots(namespace, name, SnapshotSelection(full_rescan, known_snapshot_ids, target_snapshot_ids))

    @abstractmethod
    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing: ...


class Connector(Protocol):
    """One lake, opened. `format` is the name it is registered under in the `statflight.connectors` entry points."""

    format: ClassVar[str]

    def __init__(self, config: ConnectorConfig) -> None:
        """Checks the options (InvalidArgument names a wrong one and lists the right ones) and opens nothing slow."""

    def list_namespaces(self) -> list[str]:
        """Namespaces that hold a table; raises NotFound or UpstreamError when the uri cannot be reached."""

    def list_tables(self, namespace: str) -> list[str]:
        """Tables of a namespace, sorted."""

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        """NotFound for a table that does not exist, UpstreamError for one that cannot be read."""

    def enumerate_snapshots(
        self,
        namespace: str,
        name: str,
        *,
        full_rescan: bool = False,
        known_snapshot_ids: frozenset[int] = frozenset(),
        target_snapshot_ids: frozenset[int] | None = None,
    ) -> SnapshotListing:
        """Lists the snapshots named as targets; without targets all on a full rescan, else those not known yet."""

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        """Native statistics of a snapshot; `column_names` limits the columns to these names or keys (None = all)."""

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        """One task per live data file, with the snapshot's own schema."""

    def close(self) -> None:
        """Frees connections and caches; the connector is not used afterwards."""

    @property
    def tables_at_once(self) -> int:
        """The number of tables that may be described at once, from threads of their own; 1 where that gains nothing."""
