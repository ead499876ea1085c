"""Reads the actions of commit and checkpoint files of a Delta log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.connectors.storage.immutable_cache import FILES
from capture.connectors.storage.places import Place, batched, plain_path

SLICE: Final = 10_000  # adds per slice
SLICE_BYTES: Final = 24 << 20  # bytes of statistics per slice, of which several copies are in memory at once
_ROWS: Final = 2_000  # actions read at once
_KEPT_BYTES: Final = 1 << 20  # size of files of lines that are cached as they are
_HEADS: Final = ("protocol", "metaData")
VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
ADD: Final = pa.schema(
    [
        pa.field("path", pa.string(), False),
        ("partitionValues", pa.map_(pa.string(), pa.string())),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("deletionVector", VECTOR),
        ("stats", pa.string()),
    ]
)
PARSED: Final = "stats_parsed"
"""Statistics as a struct of the columns' types; only in checkpoints whose `stats` are null."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commit, or one file of a checkpoint; `scope` is the prefix of cache keys, see `immutable_cache.scope`."""

    place: Place
    size: int
    mtime_ns: int | None
    is_commit: bool
    scope: str

    @property
    def is_lines(self) -> bool:
        """True for JSON files with one action per line."""
        return self.place.path.endswith(".json")

    @property
    def key(self) -> tuple[Any, ...]:
        """Cache key of the file's content."""
        return "delta", self.scope, self.place.path, self.size, self.mtime_ns


def adds_of(source: LogFile, paths: list[pa.Array], engines: list[str]) -> Iterator[pa.Table]:
    """Yields the adds of a source in slices of ADD, or with PARSED in place of null `stats`.

    Args:
        paths: Receives all paths that lines add or remove.
        engines: Receives the `engineInfo` of a commit.
    """
    parts: list[pa.Table] = []
    count = size = 0
    for adds in _line_adds(source, paths, engines) if source.is_lines else _checkpoint_adds(source):
        parts.append(adds)
        count, size = count + len(adds), size + adds.column(ADD.names.index("stats")).nbytes
        if count >= SLICE or size >= SLICE_BYTES:
            yield pa.concat_tables(parts).combine_chunks()
            parts, count, size = [], 0, 0
    if parts:
        yield pa.concat_tables(parts).combine_chunks()


def heads(source: LogFile) -> Iterator[Mapping[str, Any]]:
    """The `protocol` and `metaData` actions of a file, in order."""
    if source.is_lines:
        for line in _lines(source):
            if b'"protocol"' in line[:64] or b'"metaData"' in line[:64]:
                yield json.loads(line)
        return
    yield from _checkpoint_heads(source)


def _checkpoint_heads(source: LogFile) -> Iterator[Mapping[str, Any]]:
    with source.place.open() as file, pq.ParquetFile(file) as parquet:
        names = [name for name in _HEADS if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(65_536, columns=names, use_threads=False) if names else ():
            for name in names:
                for action in batch.column(name).filter(pc.is_valid(batch.column(name))).to_pylist():
                    maps = {"configuration": dict(action.get("configuration") or ())} if name == "metaData" else {}
                    yield {name: action | maps}


def sidecars(source: LogFile, log: Place) -> list[LogFile]:
    """The sidecar files of a V2 checkpoint, which contain its adds."""
    if source.is_lines:
        entries = [action["sidecar"] for action in map(json.loads, _lines(source)) if action.get("sidecar")]
    else:
        with source.place.open() as file, pq.ParquetFile(file) as parquet:
            if "sidecar" not in parquet.schema_arrow.names:
                return []
            column = parquet.read(columns=["sidecar"], use_threads=False)["sidecar"]
            entries = [sidecar for sidecar in column.to_pylist() if sidecar]
    names = [(plain_path(str(sidecar["path"])).rpartition("/")[2], sidecar) for sidecar in entries]
    return [
        LogFile(log.below(f"_sidecars/{name}"), int(sidecar["sizeInBytes"]), None, False, source.scope)
        for name, sidecar in names
    ]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array; copied only if it has several chunks."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # combine_chunks always copies


def _lines(source: LogFile) -> Iterator[bytes]:
    """The lines of a file that are not blank; small files are read once."""
    key = (*source.key, "lines")
    cached: bytes | None = FILES.get(key)
    if cached is not None:
        yield from filter(bytes.strip, cached.split(b"\n"))
        return
    with source.place.file_system.open_input_stream(source.place.path) as stream:
        rest = b""
        while chunk := stream.read(4 << 20):
            if not rest and len(chunk) == source.size <= _KEPT_BYTES:
                FILES.put(key, bytes(chunk), len(chunk))
            *whole, rest = (rest + chunk).split(b"\n")
            yield from filter(bytes.strip, whole)
        if rest.strip():
            yield rest


def _row_of(add: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ADD."""
    partition = list((add.get("partitionValues") or {}).items())
    return {name: add.get(name) for name in ADD.names} | {"partitionValues": partition}


def _line_adds(source: LogFile, paths: list[pa.Array], engines: list[str]) -> Iterator[pa.Table]:
    for lines in batched(_lines(source), _ROWS):
        adds, named = [], []
        for action in map(json.loads, lines):
            add, remove = action.get("add"), action.get("remove")
            if add:
                adds.append(_row_of(add))
            if engine := (action.get("commitInfo") or {}).get("engineInfo"):
                engines.append(str(engine))
            if add or remove:
                named.append((add or remove)["path"])
        paths.append(pa.array(named, pa.string()))
        if adds:
            yield pa.Table.from_pylist(adds, ADD)


def _checkpoint_adds(source: LogFile) -> Iterator[pa.Table]:
    with source.place.open() as file, pq.ParquetFile(file) as parquet:
        schema = parquet.schema_arrow
        if "add" not in schema.names:
            return
        add = schema.field("add").type
        have = {add.field(i).name for i in range(add.num_fields)}
        if lacks := {"path", "size", "modificationTime"} - have:
            raise ValueError(f"the adds of a checkpoint have no {', '.join(sorted(lacks))}")
        paths = [f"add.{name}" for name in (*ADD.names, PARSED) if name in have]
        for batch in parquet.iter_batches(_ROWS, columns=paths, use_threads=False):
            adds = batch.column("add")
            if adds.null_count:  # avoids a copy
                adds = adds.filter(pc.is_valid(adds))
            if not len(adds):
                continue
            columns = [_field(adds, field) if field.name in have else pa.nulls(len(adds), field.type) for field in ADD]
            table = pa.table(columns, ADD)
            if PARSED in have and ("stats" not in have or adds.field("stats").null_count == len(adds)):
                table = table.append_column(PARSED, adds.field(PARSED))
            yield table


def _field(adds: pa.StructArray, field: pa.Field) -> pa.Array:
    column = adds.field(field.name)
    if field.name != "deletionVector":
        return column.cast(field.type)
    names = {column.type.field(i).name for i in range(column.type.num_fields)}
    columns = [
        column.field(part.name).cast(part.type) if part.name in names else pa.nulls(len(column), part.type)
        for part in VECTOR
    ]
    return pa.StructArray.from_arrays(columns, fields=list(VECTOR), mask=pc.is_null(column))
