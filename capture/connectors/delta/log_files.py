"""Reads commit and checkpoint files of a large Delta log in slices of add actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.connectors.footers.reader import batched
from capture.connectors.storage.places import Place, plain_path

SLICE: Final = 10_000  # adds per slice
SLICE_BYTES: Final = 96 << 20  # bytes of statistics per slice
_ROWS: Final = 2_000  # actions read at once
TEXTS = pa.map_(pa.string(), pa.string())
VECTOR = pa.struct([
    ("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()), ("sizeInBytes", pa.int32()),
    ("cardinality", pa.int64()),
])  # fmt: skip
FIELDS: Final = {
    "path": pa.string(), "partitionValues": TEXTS, "size": pa.int64(), "modificationTime": pa.int64(),
    "dataChange": pa.bool_(), "stats": pa.string(), "deletionVector": VECTOR,
}  # fmt: skip
ADD = pa.struct(list(FIELDS.items()))
TIGHT: Final = "tight_bounds"
"""Name of the column with `tightBounds`: False if bounds may be wide and null counts wrong."""
_WIDE_TEXT: Final = re.compile(rb'tightBounds\\*"\s*:\s*false')  # in an action, with escaped quotes
_NUMBER = r'"numRecords"\s*:\s*(?P<rows>-?\d+)'


class NotReplayable(Exception):
    """Only deltalake can replay the log."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commit, or one file of a checkpoint."""

    place: Place
    size: int
    is_commit: bool

    @property
    def is_lines(self) -> bool:
        """True for JSON files with one action per line."""
        return self.place.path.endswith(".json")


def with_field(adds: pa.StructArray, field: str, values: pa.Array) -> pa.StructArray:
    """The adds with one field replaced."""
    columns = [values if name == field else adds.field(name) for name in FIELDS]
    return pa.StructArray.from_arrays(columns, fields=list(ADD))


def adds_of(source: LogFile, paths: list[pa.Array], *, brief: bool = False) -> Iterator[pa.StructArray]:
    """Yields the adds of a source in slices; appends all paths that a commit adds or removes to `paths`.

    With `brief`, statistics contain only the row count.
    """
    parts: list[pa.StructArray] = []
    count = size = 0
    for adds in _line_adds(source, paths) if source.is_lines else _checkpoint_adds(source):
        parts.append(_with_row_counts_only(adds) if brief else adds)
        count, size = count + len(adds), size + adds.field("stats").nbytes
        if count >= SLICE or size >= SLICE_BYTES:
            yield pa.concat_arrays(parts)
            parts, count, size = [], 0, 0
    if parts:
        yield pa.concat_arrays(parts)


def _with_row_counts_only(adds: pa.StructArray) -> pa.StructArray:
    rows = pc.struct_field(pc.extract_regex(adds.field("stats"), _NUMBER), [0])
    return with_field(adds, "stats", pc.binary_join_element_wise('{"numRecords":', rows, "}", ""))


def _line_adds(source: LogFile, paths: list[pa.Array]) -> Iterator[pa.StructArray]:
    for lines in batched(_lines(source), _ROWS):
        adds, named = [], []
        for action in map(json.loads, lines):
            add, remove = action.get("add"), action.get("remove")
            if add:
                partition = list((add.get("partitionValues") or {}).items())
                adds.append({name: add.get(name) for name in FIELDS} | {"partitionValues": partition})
            if add or remove:
                named.append((add or remove)["path"])
        paths.append(pa.array(named, pa.string()))
        if adds:
            yield pa.array(adds, ADD)


def _lines(source: LogFile) -> Iterator[bytes]:
    with source.place.file_system.open_input_stream(source.place.path) as stream:
        rest = b""
        while chunk := stream.read(4 << 20):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from filter(None, whole)
        if rest.strip():
            yield rest


def line_heads(source: LogFile) -> Iterator[Mapping[str, Any]]:
    """The `protocol` and `metaData` actions of a commit file, in order."""
    for line in _lines(source):
        if b'"protocol"' in line[:64] or b'"metaData"' in line[:64]:
            yield json.loads(line)


def checkpoint_heads(source: LogFile) -> Iterator[Mapping[str, Any]]:
    """The `protocol` and `metaData` actions of a Parquet checkpoint."""
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        names = [name for name in ("protocol", "metaData") if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(65_536, columns=names, use_threads=False) if names else ():
            for name in names:
                for action in batch.column(name).filter(pc.is_valid(batch.column(name))).to_pylist():
                    yield {name: _plain(action)}


def _plain(action: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an action of a checkpoint to its form in a commit: without nulls, maps as objects."""
    plain: dict[str, Any] = {}
    for name, value in action.items():
        if value is None:
            continue
        if name == "configuration":
            value = dict(value)
        if name == "format":
            value = {"provider": value.get("provider"), "options": dict(value.get("options") or ())}
        plain[name] = value
    return plain


def may_have_wide_bounds(source: LogFile) -> bool:
    """True if statistics in a log file may have `tightBounds: false`; also true for a column of that name."""
    if source.is_lines:
        with source.place.file_system.open_input_stream(source.place.path) as stream:
            return _WIDE_TEXT.search(stream.read()) is not None
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        leaves = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        present = [leaf for leaf in ("add.stats", "add.stats_parsed.tightBounds") if leaf in leaves]
        for batch in parquet.iter_batches(_ROWS, columns=present, use_threads=False) if present else ():
            adds = batch.column("add").flatten()
            for values in adds:
                if pa.types.is_struct(values.type):
                    if pc.any(pc.equal(values.flatten()[0], False)).as_py():
                        return True
                elif pc.any(pc.match_substring(values, "tightBounds")).as_py():
                    return True
    return False


def sidecars(source: LogFile, log: Place) -> list[LogFile]:
    """The sidecar files of a V2 checkpoint, which contain its adds."""
    if source.is_lines:
        entries = [action["sidecar"] for action in map(json.loads, _lines(source)) if action.get("sidecar")]
    else:
        with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
            if "sidecar" not in parquet.schema_arrow.names:
                return []
            column = parquet.read(columns=["sidecar"], use_threads=False)["sidecar"]
            entries = [sidecar for sidecar in column.to_pylist() if sidecar]
    files = []
    for sidecar in entries:
        path = plain_path(str(sidecar["path"]))
        if "/" in path:  # not produced by any known writer
            raise NotReplayable("a sidecar is in another directory")
        files.append(LogFile(log.below(f"_sidecars/{path}"), int(sidecar["sizeInBytes"]), False))
    return files


def _checkpoint_adds(source: LogFile) -> Iterator[pa.StructArray]:
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        schema = parquet.schema_arrow
        if "add" not in schema.names:
            return
        add = schema.field("add").type
        have = {add.field(i).name for i in range(add.num_fields)}
        if not set(FIELDS) - {"dataChange", "deletionVector", "stats"} <= have:
            raise NotReplayable("adds have an unknown form")
        if "stats" not in have and "stats_parsed" in have:
            raise NotReplayable("statistics have an unknown form")
        paths = [f"add.{name}" for name in FIELDS if name in have]
        for batch in parquet.iter_batches(_ROWS, columns=paths, use_threads=False):
            adds = batch.column("add")
            if adds.null_count:  # avoids a copy
                adds = adds.filter(pc.is_valid(adds))
            if not len(adds):
                continue
            if "stats_parsed" in have and adds.field("stats").null_count == len(adds):
                raise NotReplayable("statistics have an unknown form")
            columns = [_field(adds, name, type) if name in have else _blank(name, type, len(adds))
                       for name, type in FIELDS.items()]  # fmt: skip
            yield pa.StructArray.from_arrays(columns, fields=list(ADD))


def _field(adds: pa.StructArray, name: str, type: pa.DataType) -> pa.Array:
    return _vectors(adds.field(name)) if name == "deletionVector" else adds.field(name).cast(type)


def _blank(name: str, type: pa.DataType, count: int) -> pa.Array:
    """Values of a field that is missing in a checkpoint."""
    return pa.repeat(pa.scalar(False if name == "dataChange" else None, type), count)


def _vectors(column: pa.StructArray) -> pa.Array:
    """Descriptors with fields in the order of VECTOR; missing fields are null."""
    fields = {column.type.field(i).name for i in range(column.type.num_fields)}
    names = [VECTOR.field(i).name for i in range(VECTOR.num_fields)]
    types = [VECTOR.field(name).type for name in names]
    columns = [
        column.field(name).cast(type) if name in fields else pa.nulls(len(column), type)
        for name, type in zip(names, types, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(VECTOR), mask=pc.is_null(column))
