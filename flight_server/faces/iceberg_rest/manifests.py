"""Manifests of tables whose metadata is made up, for readers that plan by themselves: Trino, DuckDB, older Spark.

They have the files that plans have, with their partitions, counts and sizes, and of each column what a plan would skip
by: rows that are PRUNING at the snapshot. A list and its manifests lie in a folder that is named by what is in it, so
that each server that has the same rows names the same one; the list is written last, and nothing is changed. Manifests
cannot say which rows Delta's vectors delete; tables with such are served by no metadata at all.

Once an engine knows a table's files, its procedures take others for orphans: Trino's `remove_orphan_files` lists `data`
and `metadata` below the table's location, and deletes what no manifest names, without asking the catalog. So the
location is nowhere, where nothing can be listed or written.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from pyiceberg import types
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Record

from flight_server.faces.iceberg_rest import made_up
from flight_server.faces.iceberg_rest.column_bounds import bounds_of
from flight_server.faces.iceberg_rest.manifest_place import check_outside
from flight_server.faces.iceberg_rest.partitions import single_value
from flight_server.faces.iceberg_rest.tables import url, values_of
from flight_server.planning.listings import Listing, data_files
from flight_server.planning.scan_plan import ScanPlanner
from flight_server.planning.slices import Slice
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database
from store.history.file_spans import listed_rows
from store.model.catalog_entries import TableEntry
from store.model.errors import StatflightError, Unimplemented, UpstreamError
from store.model.freshness import prunes_sql
from store.places import Place

log = logging.getLogger("statflight.server")

WITHOUT: Final = "statflight.without-manifests"
"""Property of metadata without manifests: the reason."""

MOST_COLUMNS: Final = 100
"""Columns with counts and bounds, the first of the schema, as Iceberg's writers have it."""

CELLS: Final = 1_000_000
"""Counts of columns in files that are read at once."""

GRACE_SECONDS: Final = 86_400.0
"""How long a list stays that metadata does not name any more: longer than readers plan by one."""

LOOK_SECONDS: Final = 3600.0
"""For how long a list that was there is taken to be there."""

PAUSE_SECONDS: Final = 30.0
"""How long nothing is written to a place that was out of reach."""

_FORMAT: Final = 1  # of what is written; part of each name
_VERSION: Final = 2  # of Iceberg's format
_MANIFEST_CELLS, _MOST_FILES, _FEWEST_FILES = 200_000, 5_000, 100  # of a manifest
_TRIES: Final = 3  # to read all slices between two commits to the table
_ROOT: Final = "tables"
_LIST: Final = "snap.avro"
_READ_FILES: Final = 1_000  # that are Python objects at once
_CODEC: Final = "deflate"
_KEPT_FROM_READERS: Final = {
    "gc.enabled": "false",  # else Iceberg's procedures take files that no manifest names for orphans
    "write.metadata.metrics.default": "counts",  # bounds may be wider than the values: no MIN or MAX is one of them
}


class Manifests:
    """Writes manifests to a place, and deletes those that are not needed any more.

    Args:
        place: A directory or bucket of the server's own.
    """

    def __init__(self, place: Place, database: Database, planner: ScanPlanner):
        self._place, self._database, self._planner = place, database, planner
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._away_until, self._outages = 0.0, 0
        self._unneeded: dict[str, float] = {}  # folder of a list → since when, by the monotonic clock

    def check(self) -> None:
        """Checks that the place is in no lake.

        Raises:
            InvalidArgument: It is in one.
        """
        check_outside(self._place.url, self._database)

    def period(self) -> tuple[int, int]:
        """Numbers that change when lists must be looked for again."""
        now = time.monotonic()
        if 0.0 < self._away_until <= now:
            self._away_until, self._outages = 0.0, self._outages + 1
        return int(now // LOOK_SECONDS), self._outages

    def add_to(
        self, document: dict[str, Any], table: TableEntry, snapshot_id: int, fields: Mapping[int, int]
    ) -> tuple[dict[str, Any], str | None]:
        """Made-up metadata with the list of its manifests, which is written if it is not there.

        Args:
            document: The metadata without.
            snapshot_id: Id of the snapshot in the store.
            fields: Id of a column in the store → id of its field.

        Returns:
            The metadata, and the URL of the list; as it was but for a property with the reason, and None, if there is
            none.
        """
        try:
            place = self._written(document, table, snapshot_id, fields)
        except UpstreamError as error:
            self._away_until = time.monotonic() + PAUSE_SECONDS
            log.warning('no manifests of "%s": %s', table.full_name, error)
            return _with_properties(document, {WITHOUT: "their place is out of reach"}), None
        except StatflightError as error:
            log.info('no manifests of "%s": %s', table.full_name, error)
            return _with_properties(document, {WITHOUT: str(error)}), None
        except Exception:
            log.exception('no manifests of "%s"', table.full_name)
            return _with_properties(document, {WITHOUT: "failed; the server's log says why"}), None
        (snapshot,) = document["snapshots"]
        told = {"snapshots": [snapshot | {"manifest-list": place}], "location": f"{made_up.NOWHERE}/table"}
        return _with_properties(document, _KEPT_FROM_READERS) | told, place

    def _written(
        self, document: Mapping[str, Any], table: TableEntry, snapshot_id: int, fields: Mapping[int, int]
    ) -> str:
        """The URL of a list that is there."""
        if time.monotonic() < self._away_until:
            raise Unimplemented("their place is out of reach")
        self.check()
        told = _Told.of(document, fields)
        with self._locks[table.table_key]:
            for _ in range(_TRIES):
                digest = self._digest(table, snapshot_id, document, told)
                folder = f"{_folder(table.table_id, table.location)}/{_of_snapshot(snapshot_id)}{digest}"
                name = f"{folder}/{_LIST}"
                if name in self._place.names(folder):
                    return f"{self._place.url}/{name}"
                found = [self._manifest(folder, told, *files) for files in self._files(table, snapshot_id, told)]
                if self._digest(table, snapshot_id, document, told) == digest:
                    self._place.create(name, _list_of(told, found, f"{self._place.url}/{name}"))
                    return f"{self._place.url}/{name}"
        raise Unimplemented("the table changed while they were written")

    def _digest(self, table: TableEntry, snapshot_id: int, document: Mapping[str, Any], told: _Told) -> str:
        """Digest of all that is in the manifests of a snapshot; the same wherever the same rows are stored."""

        def read(cursor: Connection, listing: Listing) -> list[str]:
            files = "hash(s.file_path, s.file_format, s.row_count, s.size_bytes, s.partition_data_json)"
            columns = (
                "hash(s.file_path, s.column_id, s.logical_type, s.min, s.max, s.null_count, s.nan_count,"
                " s.bytes_scanned)"
            )
            sums = [
                cursor.execute(f"SELECT count(*), sum({hash}::HUGEINT) {rows}").fetchall()
                for hash, rows in (
                    (files, data_files(table.table_key, listing.positions)),
                    (columns, told.rows(table, listing)),
                )
            ]
            return [str(each) for each in sums]

        sums = self._planner.listings.reading(table, snapshot_id, read)
        about = [document[name] for name in ("format-version", "schemas", "partition-specs")]
        told_of = json.dumps([_FORMAT, about, document["snapshots"][0]["snapshot-id"], sorted(told.fields), sums])
        return hashlib.blake2b(told_of.encode(), digest_size=16).hexdigest()

    def _files(self, table: TableEntry, snapshot_id: int, told: _Told) -> Iterator[tuple[int, list[DataFile]]]:
        """The partition spec and the files of each manifest, those of a partition together."""
        listed = self._planner.listed(table, snapshot_id)
        width = max(1, len(told.fields))
        most = max(_FEWEST_FILES, min(_MOST_FILES, _MANIFEST_CELLS // width))
        number = max(1, -(-listed * width // CELLS))
        for at in range(number):
            slice = Slice(at, number)

            def read(cursor: Connection, listing: Listing, slice: Slice = slice) -> Any:
                return query(cursor, told.files_sql(table, listing, slice))

            rows = self._planner.listings.reading(table, snapshot_id, read)
            gathered: defaultdict[int, list[DataFile]] = defaultdict(list)
            for start in range(0, rows.num_rows, _READ_FILES):
                for row in rows.slice(start, _READ_FILES).to_pylist():
                    spec_id, file = told.data_file(row)
                    gathered[spec_id].append(file)
                    if len(gathered[spec_id]) == most:
                        yield spec_id, gathered.pop(spec_id)
            yield from gathered.items()

    def _manifest(self, folder: str, told: _Told, spec_id: int, files: Sequence[DataFile]) -> ManifestFile:
        """Writes a manifest of some files."""
        output, status, spec = _Memory(), ManifestEntryStatus.ADDED, told.specs[spec_id]
        with write_manifest(_VERSION, spec, told.schema, output, told.snapshot_id, _CODEC) as writer:
            for file in files:
                writer.add(ManifestEntry.from_args(status=status, data_file=file))
        data = output.data
        name = f"{folder}/{hashlib.blake2b(data, digest_size=16).hexdigest()}.avro"
        self._place.create(name, data)
        output.place(f"{self._place.url}/{name}")
        return writer.to_manifest_file()

    # Deleting.

    def collect(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Deletes lists, each with its manifests, that are of no current snapshot of a table that this server knows.

        Args:
            grace_seconds: For how long no metadata named them, at least.

        Returns:
            The number of lists that were deleted.
        """
        now = time.monotonic()
        tables: dict[str, set[str]] = {}
        known = "SELECT table_id, location, if(dropped, NULL, current_snapshot_id) FROM tables"
        for table_id, location, snapshot_id in self._database.rows(known):
            needed = tables.setdefault(_folder(table_id, location), set())
            if snapshot_id is not None:
                needed.add(_of_snapshot(snapshot_id))
        there = {f"{_ROOT}/{name}" for name in self._place.folders(_ROOT)}
        left = {
            f"{folder}/{name}"
            for folder in sorted(there & tables.keys())
            for name in self._place.folders(folder)
            if not any(name.startswith(needed) for needed in tables[folder])
        }
        self._unneeded = {folder: self._unneeded.get(folder, now) for folder in left}
        doomed = [folder for folder, since in self._unneeded.items() if now - since >= grace_seconds]
        for folder in doomed:
            names = self._place.names(folder)
            for name in sorted(names, key=lambda name: not name.endswith(f"/{_LIST}")):  # the list first
                self._place.delete(name)
        return len(doomed)


class _Told(NamedTuple):
    """How a file of a snapshot is described in a manifest.

    Attributes:
        specs: Id → spec; that of a file lacks the columns of the partition which are null, see `made_up`.
        snapshot_id: Id of the snapshot in the metadata.
        partition: Name and Iceberg type of each column of the partition.
        fields: Id of a column in the store → id and type of its field; those with counts and bounds.
    """

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    snapshot_id: int
    partition: made_up.Partition
    fields: Mapping[int, tuple[int, types.IcebergType]]

    @classmethod
    def of(cls, document: Mapping[str, Any], fields: Mapping[int, int]) -> _Told:
        """The description of files that suits made-up metadata."""
        metadata = TableMetadataUtil.parse_obj(dict(document))
        schema, spec = metadata.schema(), metadata.spec()
        types_of = {field_id: schema.find_field(field_id).field_type for field_id in fields.values()}
        of_partition = {part.source_id for part in spec.fields}
        first = sorted(fields.items(), key=lambda item: (item[1] not in of_partition, item[1]))[:MOST_COLUMNS]
        partition = [(part.name, str(schema.find_field(part.source_id).field_type)) for part in spec.fields]
        (snapshot,) = metadata.snapshots
        told = {column_id: (field_id, types_of[field_id]) for column_id, field_id in first}
        return cls(schema, metadata.specs(), snapshot.snapshot_id, partition, told)

    def rows(self, table: TableEntry, listing: Listing) -> str:
        """FROM and WHERE clauses of the rows `s` of columns by which a plan may skip."""
        ids = ", ".join(str(int(id)) for id in self.fields) or "NULL"
        pos = listing.positions.get("stats.file_columns", -1)
        condition = f"s.column_id IN ({ids}) AND {prunes_sql('s')}"
        return listed_rows("stats.file_columns", table.table_key, pos, condition)

    def files_sql(self, table: TableEntry, listing: Listing, slice: Slice) -> str:
        """The query of the files in a slice, each with a list of what is known of its columns."""
        known = (
            "{'id': s.column_id, 'type': s.logical_type, 'low': s.min, 'high': s.max, 'nulls': s.null_count,"
            " 'nans': s.nan_count, 'bytes': s.bytes_scanned}"
        )
        columns = f"SELECT s.file_path, list({known}) AS columns {self.rows(table, listing)} AND {slice.condition}"
        files = f"SELECT s.* {data_files(table.table_key, listing.positions)} AND {slice.condition}"
        return (
            "SELECT f.file_path, f.file_format, f.row_count, f.size_bytes, f.partition_data_json, c.columns"
            f" FROM ({files}) f LEFT JOIN ({columns} GROUP BY s.file_path) c USING (file_path)"
            " ORDER BY f.partition_data_json, f.file_path"
        )

    def data_file(self, row: Mapping[str, Any]) -> tuple[int, DataFile]:
        """The partition spec of a file of `files_sql`, and the file.

        Raises:
            Unimplemented: Its rows or bytes are unknown, or a value of its partition cannot be told.
        """
        rows, size_bytes = row["row_count"], row["size_bytes"]
        if rows is None or size_bytes is None:
            raise Unimplemented(f"the number of rows or bytes of {row['file_path']} is not known")
        partition = self._partition(row["partition_data_json"])
        values, nulls, nans, sizes = {}, {}, {}, {}
        lower, upper = {}, {}
        for column in row["columns"] or ():
            field_id, type = self.fields[column["id"]]
            if column["bytes"] is not None:
                sizes[field_id] = column["bytes"]
            if column["nulls"] is not None and 0 <= column["nulls"] <= rows:
                values[field_id], nulls[field_id] = rows, column["nulls"]
            if column["nans"] == 0:
                nans[field_id] = 0
            elif column["nans"] is not None:
                continue  # readers disagree whether NaN is above all bounds, or a file of them has no number at all
            if column["low"] is not None and column["high"] is not None:
                found = bounds_of(type, column["type"], column["low"], column["high"])
                if found is not None:
                    lower[field_id], upper[field_id] = found
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=url(row["file_path"]),
            file_format=FileFormat[(row["file_format"] or "PARQUET").upper()],
            partition=Record(*(value for value in partition if value is not None)),
            record_count=rows,
            file_size_in_bytes=size_bytes,
            column_sizes=sizes,
            value_counts=values,
            null_value_counts=nulls,
            nan_value_counts=nans,
            lower_bounds=lower,
            upper_bounds=upper,
        )
        return made_up.spec_id([value is None for value in partition]), file

    def _partition(self, text: str | None) -> list[Any]:
        values = zip(values_of(text, self.partition), self.partition, strict=True)
        return [_partition_value(value, type) for value, (_, type) in values]


def _partition_value(value: Any, type: str) -> Any:
    """A value of `partition_data_json` as pyiceberg writes it.

    Raises:
        Unimplemented: It is none of the type.
    """
    if value is None:
        return None
    try:
        if type.startswith("decimal"):
            scale = int(type.rstrip(")").partition(",")[2])
            exact = Decimal(str(value)).quantize(Decimal(1).scaleb(-scale))
            if exact != Decimal(str(value)):
                raise ValueError("of another scale")
            return exact
        if type == "uuid":
            return UUID(str(value))
    except (ValueError, ArithmeticError):
        raise Unimplemented(f'the partition value "{value}" cannot be told as {type}') from None
    return single_value(value, type, internal=True)


def _list_of(told: _Told, manifests: Sequence[ManifestFile], url: str) -> bytes:
    """The bytes of a list of manifests."""
    output = _Memory(url)
    with write_manifest_list(_VERSION, output, told.snapshot_id, None, made_up.SEQUENCE_NUMBER, _CODEC) as writer:
        if manifests:
            writer.add_manifests(list(manifests))
    return output.data


class _Memory(OutputFile):
    """A file in memory, whose place is known once it is written."""

    def __init__(self, location: str = ""):
        super().__init__(location)
        self.data = b""

    def place(self, location: str) -> None:
        """Names the place."""
        self._location = location

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise NotImplementedError

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002
        return _Stream(self)


class _Stream(io.BytesIO):
    """The bytes that are written to a file in memory."""

    def __init__(self, file: _Memory):
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.data = self.getvalue()
        super().close()


def _with_properties(document: dict[str, Any], properties: Mapping[str, str]) -> dict[str, Any]:
    return document | {"properties": document["properties"] | properties}


def _folder(table_id: str, location: str | None) -> str:
    """The folder of a table's lists: the same in each database that has the table."""
    place = json.dumps([table_id, location])
    return f"{_ROOT}/{hashlib.blake2b(place.encode(), digest_size=16).hexdigest()}"


def _of_snapshot(snapshot_id: int) -> str:
    """How the folders of a snapshot's lists begin."""
    return f"{snapshot_id & (2**64 - 1):016x}-"
