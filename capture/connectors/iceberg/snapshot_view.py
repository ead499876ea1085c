"""An Iceberg table at one snapshot: native statistics and scan tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import ManifestFile

from capture.connectors.footers.kept import footers_of
from capture.connectors.footers.metadata import schema_in
from capture.connectors.footers.statistics import FooterCache
from capture.connectors.iceberg.deletes import DeleteIndex, open_file, open_parquet
from capture.connectors.iceberg.manifests import Entry, Files, Manifests
from capture.connectors.iceberg.schema import (
    FileLayout,
    IcebergLeaf,
    identity_values,
    leaf_of,
    leaves,
    partition_json,
    schema_of,
)
from capture.connectors.iceberg.sketches import source_statistics
from capture.connectors.iceberg.statistics import ColumnStatistics, rows_left
from capture.connectors.iceberg.tables import LoadedTable
from capture.connectors.rows import column_values
from capture.connectors.rows.column_values import DeletedKeys
from capture.connectors.spi import (
    FILE_SCHEMA,
    EqualityDelete,
    FilePart,
    NativeStats,
    ScanColumn,
    ScanTask,
    container,
    delete_file,
    file_table,
    no_delete_files,
)
from capture.connectors.storage.immutable_cache import FILES
from capture.connectors.storage.places import Unreadable, local_path, unknown_snapshot
from store.model.columns import FILE_NAMES
from store.model.errors import Unimplemented
from store.model.names import dotted_name

_CONTENTS: Final = {"POSITION_DELETES": "position-deletes", "EQUALITY_DELETES": "equality-deletes"}


def _digest(*about: Any) -> str:
    return hashlib.sha256("\0".join(map(repr, about)).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Touched:
    """Files of a block with deletes: index in the block → live rows (if less than all), and → delete files."""

    live: Mapping[int, int] = field(default_factory=dict)
    deletes: Mapping[int, Sequence[Entry]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of live rows and deletes, part of a `FilePart.key`."""
        about = [(at, [(d.location, d.blob, d.size) for d in some]) for at, some in self.deletes.items()]
        return _digest(sorted(self.live.items()), about)

    def delete_files(self, files: int) -> pa.Array:
        """`delete_files` for each of the block's `files` files."""
        if not self.deletes:
            return no_delete_files(files)
        rows = [[_delete_file(delete) for delete in self.deletes.get(at, ())] for at in range(files)]
        return pa.array(rows, FILE_SCHEMA.field("delete_files").type)


def _delete_file(delete: Entry) -> dict[str, Any]:
    content = "DELETION_VECTOR" if delete.format == "PUFFIN" else delete.content
    return delete_file(delete.location, content, *(delete.blob or ()))


class SnapshotView:
    """One snapshot of a table.

    Args:
        column_names: Names or keys of columns; None for all.
        scope: Prefix of cache keys, see `immutable_cache.scope`.
    """

    def __init__(self, table: LoadedTable, snapshot_id: int, column_names: frozenset[str] | None, scope: str):
        self._io, self._metadata, self._scope = table.io, table.metadata, scope
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise unknown_snapshot(table.namespace, table.name, snapshot_id)
        self._snapshot = snapshot
        self._schema = schema_of(table.metadata, snapshot)
        self._leaves, self._whole = leaves(self._schema, column_names), column_names is None
        self._scanned = leaves(self._schema, column_names, containers=True)
        self._specs = table.metadata.specs()
        self._manifests = Manifests(self._io, snapshot, scope)
        self._deletes = self._manifests.deletes()
        self._index = DeleteIndex(self._io, table.metadata, self._deletes)
        self._deleted_keys = DeletedKeys(lambda path: self._io.new_input_here(path).open())
        self._layouts: dict[bytes, FileLayout] = {}
        self._statistics = ColumnStatistics(table.metadata, self._leaves, FooterCache(scope), self._io.place)

    def _key(self, field_id: int) -> IcebergLeaf:
        leaf = leaf_of(self._metadata, self._schema, field_id)
        if leaf is None:
            raise Unreadable(f"an equality delete names field {field_id}, which no schema of the table has")
        return leaf

    # Statistics.

    def native_stats(self, reading: Callable[[], Any]) -> NativeStats:
        """Statistics from manifests and table metadata; file columns are read lazily.

        Args:
            reading: Creates a context that translates errors.
        """
        self._refuse_repeated()
        parts = [self._part(manifest, reading) for manifest in self._manifests.data]
        data = pa.concat_tables([part.files for part in parts] or [FILE_SCHEMA.empty_table()])
        if self._deletes:
            parts.append(self._part_of_deletes())
        blocks = [block for manifest in self._manifests.data for block in self._manifests.files(manifest)]
        before = sum(pc.sum(block.rows).as_py() for block in blocks)
        rows = pc.sum(data["row_count"]).as_py() or 0

        source = source_statistics(self._io, self._metadata, self._snapshot.snapshot_id, self._leaves, rows)

        return NativeStats(
            rows,
            data.num_rows,
            pc.sum(data["size_bytes"]).as_py() or 0,
            pa.concat_tables([data, *(part.files for part in parts[len(self._manifests.data) :])]),
            lambda: chain.from_iterable(part.file_columns() for part in parts),
            row_deletes=rows != before,
            sketches=source.sketches,
            columns=source.columns,
            parts=parts if self._whole else (),
            remarks=source.remarks,
            sources=source.files,
        )

    def _refuse_repeated(self) -> None:
        """Refuses a snapshot that lists a data file more than once: readers read its rows as often, which neither the
        record of a file nor a plan can say.

        Raises:
            Unreadable: Names the file.
        """
        blocks = [block for manifest in self._manifests.data for block in self._manifests.files(manifest)]
        locations = pa.chunked_array([block.locations for block in blocks], pa.string())
        if pc.count_distinct(locations).as_py() == len(locations):
            return
        counts = locations.value_counts()
        at = pc.index(pc.greater(counts.field("counts"), 1), True).as_py()
        location, count = counts[at].as_py().values()
        raise Unreadable(
            f"snapshot {self._snapshot.snapshot_id} lists the data file {location} more than once, so that readers read"
            f" its rows {count} times",
            hint="commit a snapshot that has it once, as by deleting its rows and adding the file again, or by"
            " rewriting the table's files",
        )

    def _part(self, manifest: ManifestFile, reading: Callable[[], Any]) -> FilePart:
        blocks = self._manifests.files(manifest)
        touched = [self._touched(block) for block in blocks]

        def file_columns() -> Iterator[pa.Table]:
            with reading():
                columns = self._manifests.columns(manifest) if self._leaves else ()
                for block, metrics, some in zip(blocks, columns, touched, strict=False):
                    yield from self._statistics.rows(block, metrics, some.live)

        tables = [self._files_of(block, some) for block, some in zip(blocks, touched, strict=True)]
        return FilePart(
            _digest(self._manifests.key(manifest), self._table_digest, [some.digest for some in touched]),
            pa.concat_tables(tables or [FILE_SCHEMA.empty_table()]),
            file_columns,
        )

    @cached_property
    def _table_digest(self) -> str:
        """Digest of schema, partition specs, metrics settings and name mapping; part of the key of each `FilePart`."""
        properties = {k: v for k, v in self._metadata.properties.items() if k.startswith("write.metadata.metrics.")}
        specs = [spec.model_dump_json() for _, spec in sorted(self._specs.items())]
        return _digest(self._schema.model_dump_json(), specs, sorted(properties.items()), self._file_names)

    @property
    def _file_names(self) -> str | None:
        """The name mapping, by which files without field ids are read."""
        return self._metadata.properties.get(FILE_NAMES)

    def _part_of_deletes(self) -> FilePart:
        """The delete files as a part, one row per file, even if it has several deletion vectors."""
        by_path: dict[str, list[Entry]] = {}
        for delete in self._deletes:
            by_path.setdefault(delete.location, []).append(delete)
        rows = [self._row_of_delete_file(path, entries) for path, entries in sorted(by_path.items())]
        files = pa.Table.from_pylist(rows, FILE_SCHEMA)
        return FilePart(_digest(self._scope, self._table_digest, rows), files, lambda: iter(()))

    def _row_of_delete_file(self, path: str, entries: Sequence[Entry]) -> dict[str, Any]:
        first = entries[0]
        return {
            "file_path": path,
            "file_format": first.format,
            "file_content": first.content,
            "row_count": sum({entry.blob: entry.rows for entry in entries}.values()),
            "size_bytes": first.size,
            "partition_data_json": self._partition_json(first.spec_id, first.partition)
            if len({entry.scope for entry in entries}) == 1
            else None,
            "partition_spec_id": first.spec_id,
            "sequence_number": max(entry.sequence for entry in entries),
            "equality_field_ids": list(first.equality_ids) or None,
        }

    def _files_of(self, block: Files, touched: Touched) -> pa.Table:
        partitions = [self._partition_json(block.spec_id, values) for values in block.partitions]
        return file_table(
            {
                "file_path": block.locations,
                "file_format": block.formats,
                "file_content": pa.repeat("DATA", len(block)),
                "row_count": rows_left(block, touched.live),
                "size_bytes": block.sizes,
                "partition_data_json": pa.array(partitions, pa.string()).take(block.partition_of),
                "partition_spec_id": pa.repeat(pa.scalar(block.spec_id, pa.int32()), len(block)),
                "sequence_number": block.sequences,
                "delete_files": touched.delete_files(len(block)),
            }
        )

    def _partition_json(self, spec_id: int, partition: tuple[Any, ...]) -> str | None:
        return partition_json(self._specs[spec_id], self._schema, partition)

    def _touched(self, block: Files) -> Touched:
        """Finds the files of a block with deletes."""
        if not self._deletes:
            return Touched()
        deletes, live = {}, {}
        for position, entry in enumerate(block.entries()):
            if applying := self._index.positional(entry) + self._index.equality(entry):
                deletes[position] = applying
                if (rows := self._rows_of(entry, applying)) != entry.rows:
                    live[position] = rows
        return Touched(live, deletes)

    def _rows_of(self, entry: Entry, deletes: Sequence[Entry]) -> int:
        """Live rows of a file with deletes, cached."""
        about = tuple(sorted((delete.location, delete.size, delete.blob or ()) for delete in deletes))
        key = ("live", self._scope, entry.location, entry.size, about)
        cached: int | None = FILES.get(key)
        if cached is None:
            cached = self._count_live(entry)
            FILES.put(key, cached, 100 + 100 * len(about))
        return cached

    def _count_live(self, entry: Entry) -> int:
        deleted = self._index.deleted_rows(entry)
        if not self._index.equality(entry):
            return entry.rows - (0 if deleted is None else len(deleted))
        equality = self._equality_deletes(entry, self._layout(entry))
        with open_parquet(self._io, entry) as file:

            def values(path: str) -> pa.ChunkedArray:
                return column_values.leaf(file.read([dotted_name(path)]), path)

            gone = self._deleted_keys.mask(equality, entry.rows, values)
        if deleted is not None:
            gone[deleted.to_numpy()] = True
        return entry.rows - int(gone.sum())

    # Row-level deletes.

    def row_deletes(self) -> dict[str, Any]:
        """The delete files as content files of Iceberg's REST protocol, for readers of planned scans.

        Returns:
            `delete_files`: content files, with locations that can be opened; `data_files`: location of a data file
            with deletes → its path, its number of rows with the deleted ones, and indexes into `delete_files`. The path
            is the one in the metadata if its rows are deleted by position, because readers compare it as text with the
            one in the delete file or beside the vector; else None.

        Raises:
            Unimplemented: Rows of a file at another location than its path (`path_rewrite`) are deleted by position.
        """
        numbers = {id(delete): number for number, delete in enumerate(self._deletes)}
        touched: dict[str, tuple[str | None, int, list[int]]] = {}
        for entry in self._data() if self._deletes else ():
            if applying := self._index.positional(entry) + self._index.equality(entry):
                named = any(delete.content != "EQUALITY_DELETES" for delete in applying)
                if named and entry.location != local_path(entry.path):
                    raise Unimplemented(
                        f"rows of {entry.location} are deleted by the path it had before the table was moved, which"
                        " readers of a plan cannot open, and no other matches",
                        hint="move its metadata too, as by Spark's procedure rewrite_table_path",
                    )
                path = entry.path if named else None
                touched[entry.location] = path, entry.rows, [numbers[id(delete)] for delete in applying]
        return {"delete_files": list(map(_content_file, self._deletes)), "data_files": touched}

    # Scan tasks.

    def _blocks(self) -> Iterator[Files]:
        """The live data files, in blocks."""
        return chain.from_iterable(map(self._manifests.files, self._manifests.data))

    def _data(self) -> Iterator[Entry]:
        return chain.from_iterable(block.entries() for block in self._blocks())

    def tasks(self) -> Iterator[ScanTask]:
        """Yields one scan task per live data file, with the deletes that apply to it."""
        self._refuse_repeated()
        for block in self._blocks():
            entries = list(block.entries())
            self._read_schemas(entries)
            yield from map(self._task, entries)

    def _task(self, entry: Entry) -> ScanTask:
        layout = self._layout(entry)
        deleted = self._index.deleted_rows(entry)
        return ScanTask(
            "parquet",
            entry.location,
            entry.location,
            entry.rows - (0 if deleted is None else len(deleted)),
            entry.size,
            self._scan_columns(entry, layout, self._scanned),
            _fingerprint(entry, deleted, self._index.equality(entry), self._widened, self._file_names),
            self._io.storage(entry.location),
            deleted,
            self._equality_deletes(entry, layout),
        )

    @cached_property
    def _widened(self) -> list[int]:
        """Ids of the integers that were narrower in an earlier schema."""
        schemas = (self._schema, *self._metadata.schemas)
        wide, *others = ({(leaf.field_id, leaf.width_bytes) for leaf in leaves(schema)} for schema in schemas)
        return sorted(field_id for field_id, width in wide if width == 8 and any((field_id, 4) in of for of in others))

    def _equality_deletes(self, entry: Entry, layout: FileLayout) -> tuple[EqualityDelete, ...]:
        deletes = []
        for delete in sorted(self._index.equality(entry), key=lambda delete: delete.location):
            keys = [self._key(field_id) for field_id in delete.equality_ids]
            paths = self._index.layout(delete).paths
            missing = [key.name for key in keys if key.field_id not in paths]
            if missing or not keys:
                raise Unreadable(f"an equality delete file without its key column {', '.join(missing) or 'ids'}")
            columns = zip(self._scan_columns(entry, layout, keys), keys, strict=True)
            deletes.append(EqualityDelete(delete.location, tuple((c, paths[k.field_id]) for c, k in columns)))
        return tuple(deletes)

    def _layout(self, entry: Entry) -> FileLayout:
        """Paths of the columns in a data file."""
        name, schema = self._schema_of(entry) or self._read_schemas([entry])[entry.location]
        if name not in self._layouts:
            if len(self._layouts) >= 64:
                self._layouts.clear()
            self._layouts[name] = FileLayout.of(schema, self._metadata)
        return self._layouts[name]

    def _schema_of(self, entry: Entry) -> tuple[bytes, pa.Schema] | None:
        """The digest and schema of a data file, if they are cached; equal schemas are, once."""
        name: bytes | None = FILES.get(("schema", self._scope, entry.location, entry.size))
        schema: pa.Schema | None = None if name is None else FILES.get(("schema", name))
        return None if name is None or schema is None else (name, schema)

    def _read_schemas(self, entries: Sequence[Entry]) -> Mapping[str, tuple[bytes, pa.Schema]]:
        """Reads and caches the schemas of the data files whose schema is not; returns them by location."""
        missing = {(entry.location, entry.size, 0): entry for entry in entries if self._schema_of(entry) is None}
        opened = {key: partial(open_file, self._io, entry) for key, entry in missing.items()}
        found: dict[str, tuple[bytes, pa.Schema]] = {}
        for (location, size, _), footer in footers_of(opened):
            schema = schema_in(footer).remove_metadata()
            name = hashlib.sha256(schema.serialize()).digest()
            FILES.put(("schema", self._scope, location, size), name, 200)
            FILES.put(("schema", name), schema, 1000 * (1 + len(schema)))
            found[location] = name, schema
        return found

    def _scan_columns(self, entry: Entry, layout: FileLayout, leaves: Sequence[IcebergLeaf]) -> tuple[ScanColumn, ...]:
        """Sources of columns: a path in the file, else the partition value, else the default, else null."""
        identity = identity_values(self._specs[entry.spec_id], entry.partition)
        columns = []
        for leaf in leaves:
            path, value, within = layout.paths.get(leaf.field_id), None, None
            if not leaf.column.is_leaf:
                columns.append(container(leaf.field_id, leaf.column, path))
                continue
            if path is None:
                value, within = leaf.value_where_missing(layout.paths)
                if leaf.field_id in identity:
                    value, within = identity[leaf.field_id], None
            columns.append(
                ScanColumn(
                    leaf.field_id,
                    leaf.name,
                    leaf.logical.text,
                    path,
                    leaf.constant(value) if path is None else None,
                    leaf.width_bytes,
                    None if within is None else layout.paths[within],
                )
            )
        return tuple(columns)


def _content_file(delete: Entry) -> dict[str, Any]:
    file: dict[str, Any] = {
        "spec-id": delete.spec_id,
        "content": _CONTENTS[delete.content],
        "file-path": delete.location,
        "file-format": delete.format.lower(),
        "file-size-in-bytes": delete.size,
        "record-count": delete.rows,
    }
    if delete.equality_ids:
        file["equality-ids"] = list(delete.equality_ids)
    if delete.referenced_data_file:
        file["referenced-data-file"] = delete.referenced_data_file
    if delete.blob is not None:
        file["content-offset"], file["content-size-in-bytes"] = delete.blob
    return file


def _fingerprint(
    entry: Entry, deleted: pa.Array | None, equality: Sequence[Entry], widened: Sequence[int], names: str | None
) -> str:
    digest = hashlib.sha256(f"{entry.location}\0{entry.size}\0{entry.rows}\0".encode())
    if names is not None:  # its columns may be others by another mapping
        digest.update(names.encode())
    if widened:  # results from before have another width
        digest.update(repr(widened).encode())
    if deleted is not None:
        digest.update(deleted.to_numpy().tobytes())
    for delete in sorted(equality, key=lambda delete: delete.location):
        digest.update(f"\0{delete.location}\0{delete.size}".encode())
    return digest.hexdigest()
