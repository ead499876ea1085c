"""Reads files of an Iceberg table by `pyiceberg`, which applies position deletes and vectors, and finds columns by ids.

Where the table has equality deletes, which it does not apply, DuckDB's extension reads the files, if it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, StaticTable

from flight_server.client.lake_readers import CannotRead, KeptFiles, LakeReader, by_duckdb, checked, plain

_AT_ONCE: Final = 16  # files that are read into memory together


def reader(kept: KeptFiles) -> LakeReader:
    """Opens the table's metadata and plans the snapshot.

    Raises:
        CannotRead: Neither library reads the files.
    """
    location = kept.place["metadata_location"]
    if location is None:
        raise CannotRead("the server does not know the metadata of the table")
    try:
        table = _opened(location, kept)
        schemas = [table.schema(), _schema_at(table, kept.snapshot_id)]
        named = [schema for schema in schemas if _has(schema, kept)]
        if not named:
            raise CannotRead(f"{location} has other columns than the server knows")
        try:
            return PyicebergReader(table, named[0], kept, _tasks(table, kept))
        except (ValueError, NotImplementedError) as refused:
            if isinstance(refused, CannotRead) or "equality" not in str(refused):
                raise
            if len(named) < len(schemas):
                raise CannotRead("pyiceberg does not apply equality deletes, and columns were renamed since") from None
            return by_duckdb.reader(location, kept)
    except (OSError, ValueError, NotImplementedError) as error:
        raise error if isinstance(error, CannotRead) else CannotRead(f"pyiceberg: {error}") from error


class PyicebergReader:
    """Reads files as pyiceberg does, some at once."""

    def __init__(self, table: StaticTable, schema: Schema, kept: KeptFiles, tasks: Sequence[FileScanTask]):
        self._table, self._columns, self._tasks, self._kept = table, schema, tasks, kept
        self._rows = {plain(path): rows for path, rows in kept.paths.items()}
        self.schema: pa.Schema = _arrow(self._projected(kept.names))

    def batches(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Reads columns of all live rows; see `LakeReader`.

        pyiceberg gets no condition: of columns that a file lacks it takes other values for it than for the rows.
        """
        projected = self._projected(columns)
        schema = _arrow(projected)
        scan = ArrowScan(self._table.metadata, self._table.io, projected, AlwaysTrue())
        for start in range(0, len(self._tasks), _AT_ONCE):
            tasks = self._tasks[start : start + _AT_ONCE]
            paths = [task.file.file_path for task in tasks]
            counts = [self._rows[plain(path)] for path in paths]
            rows = None if None in counts else sum(count for count in counts if count is not None)
            for batch in checked(_read(scan, tasks), rows, " and ".join(paths)):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def _projected(self, names: Sequence[str]) -> Schema:
        """The fields of columns, in the order of their names."""
        fields = {field.name: field for field in self._columns.fields}
        return Schema(*(fields[name] for name in names))


def _read(scan: ArrowScan, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
    try:
        yield from scan.to_record_batches(tasks)
    except (ValueError, NotImplementedError) as error:
        raise CannotRead(f"pyiceberg: {error}") from error


class _GivenFileIO(PyArrowFileIO):
    """Files of any URL on one file system."""

    def __init__(self, kept: KeptFiles):
        super().__init__()
        self.fs_by_scheme = lambda _scheme, _netloc: kept.filesystem


def _opened(location: str, kept: KeptFiles) -> StaticTable:
    table = StaticTable.from_metadata(location)
    if kept.filesystem is not None:
        table.io = _GivenFileIO(kept)
    return table


def _schema_at(table: StaticTable, snapshot_id: int) -> Schema:
    """The schema of a snapshot.

    Raises:
        CannotRead: The metadata has no such snapshot.
    """
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise CannotRead(f"{table.metadata_location} has no snapshot {snapshot_id} any more")
    return table.schema() if snapshot.schema_id is None else table.schemas()[snapshot.schema_id]


def _has(schema: Schema, kept: KeptFiles) -> bool:
    """True if a schema has the columns that are read, by their names and ids."""
    ids = {field.name: field.field_id for field in schema.fields}
    own = (column for column in kept.columns if len(column["path"]) == 1)
    return ids.keys() >= set(kept.names) and all(ids[column["path"][0]] == column["id"] for column in own)


def _tasks(table: StaticTable, kept: KeptFiles) -> list[FileScanTask]:
    """The tasks of the files that are kept, by path."""
    wanted = {plain(path) for path in kept.paths}
    planned = {plain(task.file.file_path): task for task in table.scan(snapshot_id=kept.snapshot_id).plan_files()}
    if missing := sorted(wanted - planned.keys()):
        raise CannotRead(f"{missing[0]} is not among the files of the table's metadata, as of a table that was moved")
    return [planned[path] for path in sorted(wanted)]


def _arrow(schema: Schema) -> pa.Schema:
    found: pa.Schema = schema_to_pyarrow(schema, include_field_ids=False)
    return found
