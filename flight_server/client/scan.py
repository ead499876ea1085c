"""Planned scans: the files of a table that a condition needs, as rows, a `pyarrow.dataset` and a polars frame.

    scan = client.scan("lake.sales.orders", where="id = 5")
    scan.summary["files"]                       # {"all": 2000, "kept": 3, …}
    scan.dataset().to_table(filter=pc.field("id") == 5)

The reader applies the condition to the files that are left, as it would to all. Files are opened with the reader's own
credentials. Readers find columns by their names; where that is not enough, because of row-level deletes or renamed
columns, a library of the table's format reads the files (`lake_readers`). What none reads is refused by name.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from flight_server.client.lake_readers import CannotRead, KeptFiles, has_reader, plain, reader_of

if TYPE_CHECKING:
    import polars as pl

_SUMMARY: Final = b"statflight.scan"
_TABLE: Final = b"statflight.table"
_FIELD_ID: Final = b"PARQUET:field_id"
_UNKNOWN: Final = {"plain_parquet": False, "merges_rows": True, "deletes_rows": True, "iceberg_metadata": False}
_FOOTERS_AT_ONCE: Final = 16  # threads
_TYPES: Final = {
    "INT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "UUID": pa.binary(16),
}
_FIXED: Final = frozenset({"INT", "FLOAT", "DOUBLE", "BOOLEAN", "STRING", "DATE"})  # of one Arrow type in every file


_NEEDED: Final = ["file_path", "file_format", "row_count", "partition_data_json", "delete_files"]


class _OtherNames(ValueError):
    """Names of columns do not tell which columns of files are the table's."""


@dataclass(frozen=True)
class _ParquetFiles:
    """Files that are read by the names of their columns.

    Attributes:
        paths: Paths on the file system.
        fragments: The files.
        schema: The columns that are read.
        known: For each file, column → its value in all rows.
    """

    filesystem: fs.FileSystem
    paths: Sequence[str]
    fragments: Sequence[ds.ParquetFileFragment]
    schema: pa.Schema
    known: Sequence[Mapping[str, Any]]

    def dataset(self) -> ds.FileSystemDataset:
        """The files as a dataset."""
        file_format = ds.ParquetFileFormat()
        fragments = [
            fragment
            if not values
            else file_format.make_fragment(path, self.filesystem, _guarantee(values, self.schema))
            for fragment, path, values in zip(self.fragments, self.paths, self.known, strict=True)
        ]
        return ds.FileSystemDataset(fragments, self.schema, file_format, self.filesystem)

    def polars(self) -> pl.LazyFrame | None:
        """The files as a frame that polars reads by itself; None if it does not read them as pyarrow does."""
        from flight_server.client.polars_frame import MOST_FILES, File, frame_of

        if not isinstance(self.filesystem, fs.LocalFileSystem) or len(self.paths) > MOST_FILES:
            return None
        known = [
            {name: _scalar_or_null(value, self.schema.field(name).type) for name, value in values.items()}
            for values in self.known
        ]
        files = map(File, self.paths, _physical(self.fragments), known)
        return frame_of(list(files), self.schema)


class Scan:
    """The files that can have a row for which a condition is true.

    Args:
        read_table: Reads the rows of a flight about a table: `StatsReader.read_table` of a client that stays open.
        table: Full name of the table.
        files: The answer of the server.
    """

    def __init__(self, read_table: Callable[..., pa.Table], table: str, files: pa.Table):
        metadata = files.schema.metadata or {}
        self._read_table, self._table = read_table, table
        self._about: dict[str, Any] = json.loads(metadata[_TABLE])
        self.files: pa.Table = files
        """A row per file: path, rows, bytes, partition, deletes, `match` (ALL, SOME) and `kept_because`."""
        self.summary: dict[str, dict[str, int]] = json.loads(metadata[_SUMMARY])
        """Counts of files, rows and bytes: all, kept, skipped_by_partition, skipped_by_bounds."""

    def __repr__(self) -> str:
        counts = self.summary["files"]
        return f"<Scan of {self._table}: {counts['kept']} of {counts['all']} files>"

    @property
    def table(self) -> str:
        """Full name of the table."""
        return self._table

    @property
    def format(self) -> str:
        """Format of the table, such as `delta`."""
        return str(self._about["format"])

    @property
    def snapshot_id(self) -> int:
        """The snapshot that the files are of."""
        return int(self._about["snapshot_id"])

    @property
    def columns(self) -> Sequence[Mapping[str, Any]]:
        """The columns that are read: `id`, `path` and logical `type` of each."""
        return list(self._about["columns"])

    def refusal(self) -> str | None:
        """Why a reader that finds columns by their names alone does not find the table's rows; None if it does.

        Other than for `dataset`, no file is opened to see what its names mean.
        """
        rows = self._rows()
        try:
            refused = self._other_format(rows) or self._with_deletes(rows)
        except ValueError as error:
            return str(error)
        if refused:
            return refused
        if self._about["by_id"]:
            return f'"{self._table}": columns of its files are found by ids, and may have had other names'
        return None

    def dataset(self, filesystem: fs.FileSystem | None = None) -> ds.FileSystemDataset:
        """The files as a dataset, for pyarrow, DuckDB and DataFusion; filter it by the condition of the scan.

        A table with row-level deletes or renamed columns is read by a library that is installed: deltalake, pyiceberg,
        or, where Iceberg has equality deletes, DuckDB with its extension.

        Args:
            filesystem: File system of the paths; None for the one that their scheme names, with its usual credentials.

        Returns:
            A dataset with the columns of the table at the snapshot, or those that the scan names.

        Raises:
            ValueError: No library reads the rows; the message says why.
        """
        opened = self._opened(filesystem)
        return opened.dataset() if isinstance(opened, _ParquetFiles) else opened

    def _opened(self, filesystem: fs.FileSystem | None) -> _ParquetFiles | ds.FileSystemDataset:
        """The files by the names of their columns, or else the rows that a library finds in them."""
        rows = self._rows()
        if refused := self._other_format(rows):
            raise ValueError(refused)
        if refused := self._with_deletes(rows):
            return self._live_rows(rows, filesystem, refused)
        try:
            return self._as_parquet(rows, filesystem)
        except _OtherNames as error:
            return self._live_rows(rows, filesystem, str(error))

    def _as_parquet(self, rows: Sequence[Mapping[str, Any]], filesystem: fs.FileSystem | None) -> _ParquetFiles:
        """The files by the names of their columns, without regard to deletes.

        Raises:
            _OtherNames: Names of columns do not tell which they are.
        """
        opened, paths = _located([row["file_path"] for row in rows], filesystem)
        file_format = ds.ParquetFileFormat()
        fragments = [file_format.make_fragment(path, opened) for path in paths]
        by_id = self._about["by_id"]
        schemas = _physical(fragments if by_id else fragments[:1])
        schema = self._schema(schemas[0] if schemas else None)
        if by_id:
            known = self._known_by_id([row["file_path"] for row in rows], schemas)
        else:
            known = [_partition(row["partition_data_json"], schema) for row in rows]
        return _ParquetFiles(opened, paths, fragments, schema, known)

    def _live_rows(
        self, rows: Sequence[Mapping[str, Any]], filesystem: fs.FileSystem | None, refused: str
    ) -> ds.FileSystemDataset:
        """The rows that a library of the table's format finds in the files.

        Args:
            refused: Why names alone do not do.

        Raises:
            ValueError: There is no such library, or it does not read them.
        """
        if not has_reader(self.format):
            raise ValueError(refused)
        from flight_server.client.live_rows import LiveRows

        (place,) = self._read_table("sys.tables", self._table, ["location", "metadata_location"]).to_pylist() or [{}]
        kept = KeptFiles(
            self.snapshot_id,
            self.columns,
            {row["file_path"]: row["row_count"] for row in rows},
            frozenset(row["file_path"] for row in rows if row["delete_files"]),
            {name: place.get(name) for name in ("location", "metadata_location")},
            filesystem,
            lambda: self._as_parquet(rows, filesystem).dataset(),
        )
        try:
            return LiveRows(self._table, reader_of(self.format, kept))
        except (CannotRead, _OtherNames) as error:
            raise ValueError(f"{refused}; {error}") from error

    def polars(self, filesystem: fs.FileSystem | None = None) -> pl.LazyFrame:
        """The files as a polars frame; filter it by the condition of the scan.

        Local files of plain Parquet are read by polars itself; others as those of `dataset`, from which polars reads
        all rows that the conditions leave that pyarrow knows.

        Args:
            filesystem: See `dataset`.

        Raises:
            ValueError: See `dataset`.
        """
        import polars as pl

        opened = self._opened(filesystem)
        if isinstance(opened, _ParquetFiles):
            frame = opened.polars()
            if frame is not None:
                return frame
            opened = opened.dataset()
        return pl.scan_pyarrow_dataset(opened)

    def _rows(self) -> list[dict[str, Any]]:
        return self.files.select(_NEEDED).to_pylist()

    def _other_format(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Why the files cannot be read as Parquet; None if they can."""
        formats = {row["file_format"] for row in rows} - {"PARQUET", None}
        facts = self._facts_of_format()
        if not formats and facts["plain_parquet"] and not facts["merges_rows"]:
            return None
        shown = ", ".join(sorted(formats)) or self._about["format"]
        return f'"{self._table}": only plain Parquet files can be read so, not {shown}'

    def _with_deletes(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Why a reader of Parquet would find deleted rows; None if it would not."""
        facts = self._facts_of_format()
        if not any(row["delete_files"] or (row["delete_files"] is None and facts["deletes_rows"]) for row in rows):
            return None
        reader = "a reader of its own format"
        if facts["iceberg_metadata"]:
            reader = "an Iceberg client, which gets the same plan from the server's HTTP port below /iceberg"
        return f'"{self._table}" has row-level deletes, which this reader would not apply; read it by {reader}'

    def _facts_of_format(self) -> Mapping[str, Any]:
        """The server's facts about the format of the table (PROTOCOL §18); of an older one what its answer implies."""
        if "facts" in self._about:
            return _UNKNOWN | self._about["facts"]
        if self._about["by_id"]:
            raise ValueError(
                f'"{self._table}": the server is older than this client and does not say whether readers merge rows of '
                f"format {self._about['format']}; update the server, or read it by a reader of its own format"
            )
        may_delete = self._about["format"] != "external"
        return _UNKNOWN | {"plain_parquet": True, "merges_rows": False, "deletes_rows": may_delete}

    def _schema(self, file: pa.Schema | None) -> pa.Schema:
        """Top-level columns; types that a logical type leaves open are those of the first file."""
        fields: dict[str, pa.Field] = {}
        for column in self._about["columns"]:
            name = column["path"][0]
            if name in fields:
                continue
            base = re.split(r"[(<]", column["type"] or "")[0]
            type = None if len(column["path"]) > 1 else _arrow_type(column["type"] or "")
            at = -1 if file is None or (type is not None and base in _FIXED) else file.get_field_index(name)
            if at >= 0 and file is not None:
                type = file.field(at).type
            fields[name] = pa.field(name, pa.null() if type is None else type)
        return pa.schema(list(fields.values()))

    # Tables whose columns have ids, by which a column is found in files that were written before it was renamed.

    def _known_by_id(self, paths: Sequence[str], schemas: Sequence[pa.Schema]) -> list[dict[str, Any]]:
        """Column → value of the columns that each file lacks; refuses files whose names mean other columns."""
        places = {column["id"]: tuple(column["path"]) for column in self._about["columns"]}
        names = {path[0]: id for id, path in places.items() if len(path) == 1}
        lacking: list[set[str]] = []
        for path, schema in zip(paths, schemas, strict=True):
            found = list(_with_ids(schema, ()))
            for id, place in found:
                if id is None:
                    raise _OtherNames(
                        f'"{self._table}": {path} has no field ids; read it by a reader of its own format'
                    )
                if places.get(id, place) != place or (id not in places and place[0] in names and len(place) == 1):
                    column = ".".join(place)
                    raise _OtherNames(
                        f'"{self._table}": column {column} of {path} has another name or meaning in the table; '
                        "read it by a reader of its own format"
                    )
            lacking.append(names.keys() - {place[0] for _, place in found})
        wanted = sorted({names[name] for each in lacking for name in each})
        facts = self._facts(wanted) if wanted else {}
        return [
            {name: self._constant(facts, path, names[name], name) for name in sorted(each)}
            for path, each in zip(paths, lacking, strict=True)
        ]

    def _facts(self, column_ids: Sequence[int]) -> dict[tuple[str, int], Mapping[str, Any]]:
        rows = self._read_table(
            "stats.file_columns",
            self._table,
            ["file_path", "column_id", "row_count", "null_count", "min", "max", "usable_for"],
            [{"column": "column_id", "op": "IN", "values": list(column_ids)}],
            self._about["snapshot_id"],
        )
        return {(row["file_path"], row["column_id"]): row for row in rows.to_pylist()}

    def _constant(self, facts: Mapping[tuple[str, int], Mapping[str, Any]], path: str, id: int, name: str) -> Any:
        """The value in all rows of a file of a column that it lacks: null, the partition's, or the column's default."""
        row = facts.get((path, id))
        if row is not None and row["usable_for"] == "PRUNING":
            if row["null_count"] == row["row_count"]:
                return None
            if row["null_count"] == 0 and row["min"] is not None and row["min"] == row["max"]:
                return row["min"]
        raise _OtherNames(
            f'"{self._table}": {path} lacks the column {name}, and its value there is not known; '
            "read it by a reader of its own format"
        )


def _physical(fragments: Sequence[ds.ParquetFileFragment]) -> list[pa.Schema]:
    """The schemas of files, from their footers, which the fragments keep for the scan."""
    if len(fragments) < 2:
        return [fragment.physical_schema for fragment in fragments]
    with ThreadPoolExecutor(min(_FOOTERS_AT_ONCE, len(fragments))) as pool:
        return list(pool.map(lambda fragment: fragment.physical_schema, fragments))


def _with_ids(fields: Any, parents: tuple[str, ...]) -> Iterator[tuple[int | None, tuple[str, ...]]]:
    """Field id and path of each column and each field of a struct."""
    for column in fields:
        id = (column.metadata or {}).get(_FIELD_ID)
        yield None if id is None else int(id), (*parents, column.name)
        if pa.types.is_struct(column.type):
            yield from _with_ids(column.type.fields, (*parents, column.name))


def _located(paths: Sequence[str], filesystem: fs.FileSystem | None) -> tuple[fs.FileSystem, list[str]]:
    """The file system of paths and URLs, and the paths within it."""
    if filesystem is None:
        if not paths or paths[0].startswith("file:") or "://" not in paths[0]:
            return fs.LocalFileSystem(), [plain(path) for path in paths]
        filesystem, _ = fs.FileSystem.from_uri(paths[0])
    return filesystem, [re.sub(r"^[a-z0-9+]+://", "", path) for path in paths]


def _arrow_type(logical: str) -> pa.DataType | None:
    if decimal := re.fullmatch(r"DECIMAL\((\d+), ?(-?\d+)\)", logical):
        precision, scale = int(decimal[1]), int(decimal[2])
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return _TYPES.get(logical.partition("(")[0])


def _partition(text: str | None, schema: pa.Schema) -> dict[str, Any]:
    """Column → value of the partition's columns."""
    values: dict[str, Any] = json.loads(text) if text else {}
    return {name: value for name, value in values.items() if name in schema.names}


def _guarantee(values: Mapping[str, Any], schema: pa.Schema) -> pc.Expression:
    """The expression that says which values columns have in all rows of a file."""
    terms = []
    for name, value in values.items():
        column = pc.field(name)
        terms.append(column.is_null() if value is None else column == _scalar(value, schema.field(name).type))
    return reduce(and_, terms)


def _scalar_or_null(value: Any, type: pa.DataType) -> pa.Scalar:
    return pa.scalar(None, type) if value is None else _scalar(value, type)


def _scalar(value: Any, type: pa.DataType) -> pa.Scalar:
    """A value of JSON, canonical text or number, as of an Arrow type."""
    text = value if isinstance(value, str) else json.dumps(value)
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return pa.scalar(base64.b64decode(text), type)
    if pa.types.is_floating(type):
        return pa.scalar(float(text), type)
    if pa.types.is_date(type):
        return pa.scalar(text).cast(pa.date32()).cast(type)
    return pa.scalar(text).cast(type)
