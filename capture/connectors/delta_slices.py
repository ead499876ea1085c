"""A large Delta log, a slice at a time: deltalake itself would hold all of it, ten kilobytes for every file.

The log is replayed here as far as names go: which adds are live. What an add says is then read by deltalake, from a log
of a few thousand adds that is written to a temporary directory. So values are the same, and memory is bounded.

Commits and checkpoints never change. What they say of files as wholes is kept, so the next version of a table costs
its own commit; a checkpoint that is known is preferred to a newer one, as long as the commits since are there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from capture.connectors.cache import FILES
from capture.connectors.delta_version import one_array
from capture.connectors.footers import batched
from capture.connectors.layout import Place, plain_path

LARGE: Final = 16 << 20
"""From so many bytes of log on it is read in slices."""

SLICE: Final = 10_000  # adds
SLICE_BYTES: Final = 96 << 20  # of their statistics
MAX_COMMITS: Final = 500  # read upon a known checkpoint, instead of a newer one
_ROWS: Final = 2_000  # of a checkpoint read at once
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_NAMED = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")
_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct([
    ("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()), ("sizeInBytes", pa.int32()),
    ("cardinality", pa.int64()),
])  # fmt: skip
_FIELDS: Final = {
    "path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "modificationTime": pa.int64(),
    "dataChange": pa.bool_(), "stats": pa.string(), "deletionVector": _VECTOR,
}  # fmt: skip
_ADD = pa.struct(list(_FIELDS.items()))
_STATISTICS: Final = ("null_count", "min", "max")
_NUMBER = r'"numRecords"\s*:\s*(?P<rows>\d+)'
_OWN_FEATURES: Final = ("deletionVectors", "v2Checkpoint", "v2Checkpoint-preview")  # seen to here
_PROTOCOL = pa.struct([
    ("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()), ("readerFeatures", pa.list_(pa.string())),
    ("writerFeatures", pa.list_(pa.string())),
])  # fmt: skip
_METADATA = pa.struct([
    ("id", pa.string()), ("name", pa.string()), ("description", pa.string()),
    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])), ("schemaString", pa.string()),
    ("partitionColumns", pa.list_(pa.string())), ("configuration", _TEXTS), ("createdTime", pa.int64()),
])  # fmt: skip


class NotSliced(Exception):
    """The log holds what only deltalake can replay."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A commit, or one file of a checkpoint."""

    place: Place
    size: int
    is_commit: bool

    @property
    def is_lines(self) -> bool:
        return self.place.path.endswith(".json")


@dataclass(frozen=True, slots=True)
class _Brief:
    """Adds of one source as wholes: `files` as deltalake has them without statistics, and their vectors."""

    files: pa.Table
    vectors: pa.Array

    @property
    def size_bytes(self) -> int:
        return int(self.files.nbytes) + int(self.vectors.nbytes)


@dataclass(frozen=True, slots=True)
class _Read:
    """A source that was read: its adds in slices, and all the paths it speaks of."""

    briefs: tuple[_Brief, ...]
    paths: pa.Array


@dataclass(frozen=True)
class Slice:
    """Some live files. `files` is what `get_add_actions(flatten=False)` tells, without statistics but row counts.

    `vectors` are the descriptors of their deletion vectors; equal keys mean equal rows and statistics.
    """

    key: str
    files: pa.Table
    vectors: pa.Array
    _log: LargeLog = field(repr=False)
    _position: int

    def statistics(self) -> pa.Table:
        """As `files`, with the statistics of all columns."""
        try:
            found = self._log.statistics(self._position)
        except NotSliced as trouble:
            raise ValueError(f"its log changed while it was read: {trouble}") from None
        if found["path"].to_pylist() != self.files["path"].to_pylist():
            raise ValueError("its log changed while it was read")
        return found


_Where: TypeAlias = tuple[_Source, int, pa.Array | None]
"""A slice: a source, the number of its slice, and which adds of that are live (None: all)."""


class LargeLog:
    """The log of one version of a table."""

    def __init__(self, sources: Sequence[_Source], scope: str):
        self._sources, self._scope = sources, scope  # newest first
        self._reading: tuple[_Source, int, Iterator[pa.StructArray]] | None = None
        self._order: list[_Where] = []  # of the slices
        self._asked = -2  # the slice whose statistics were asked for last
        self._ahead: tuple[int, Future[pa.Table]] | None = None  # what is read before it is asked for
        self._reader = ThreadPoolExecutor(1, "delta-log")

    @classmethod
    def of(cls, table: Place, version: int, scope: str) -> LargeLog | None:
        """The log, None where it is small or has a gap.

        Raises:
            OSError: It cannot be listed.
        """
        log = table.below("_delta_log")
        commits: dict[int, _Source] = {}
        parts: dict[tuple[int, int], list[_Source]] = {}
        for info in log.file_system.get_file_info(pafs.FileSelector(log.path, recursive=False)):
            if info.type != pafs.FileType.File or not info.size:
                continue
            held = log.below(info.base_name)
            if found := _COMMIT.fullmatch(info.base_name):
                commits[int(found[1])] = _Source(held, info.size, True)
            elif found := _CHECKPOINT.fullmatch(info.base_name):
                parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(_Source(held, info.size, False))
            elif found := _NAMED.fullmatch(info.base_name):
                parts[int(found[1]), 1] = [_Source(held, info.size, False)]
        whole = sorted(key for key, files in parts.items() if len(files) == key[1] and key[0] <= version)
        choices = [whole[-1]] if whole else [(-1, 0)]
        choices += [key for key in reversed(whole[:-1]) if version - key[0] <= MAX_COMMITS]
        choices = [key for key in choices if all(n in commits for n in range(key[0] + 1, version + 1))]
        if not choices:
            return None
        known = (key for key in choices if key in parts and all(_known(source, scope) for source in parts[key]))
        base = next(known, choices[0])
        sources = [commits[n] for n in range(version, base[0], -1)]
        for source in parts.get(base, []):
            sources += [source, *_sidecars(source, log)]
        return cls(sources, scope) if sum(source.size for source in sources) >= LARGE else None

    def outline(self) -> DeltaTable:
        """The table without a file: its metadata, schema and protocol.

        Raises:
            NotSliced: The log does not tell them.
        """
        with TemporaryDirectory(prefix="statflight-") as folder:
            return self._table(folder, None)

    def slices(self) -> Iterator[Slice]:
        """The live files.

        Raises:
            NotSliced: The log holds what only deltalake can replay.
        """
        self._order = []
        seen: list[pa.Array] = []
        for source in self._sources:
            read = self._read(source)
            gone = pa.concat_arrays(seen) if seen else None
            for number, brief in enumerate(read.briefs):
                live = None
                if gone is not None and len(gone):
                    live = pc.invert(pc.is_in(one_array(brief.files["path"]), gone))
                    live = None if pc.all(live).as_py() else live
                told = b"" if live is None else np.packbits(live.to_numpy(zero_copy_only=False)).tobytes()
                key = hashlib.sha256(f"{self._key(source)}\0{number}\0".encode("utf-8", "surrogatepass") + told)
                files = brief.files if live is None else brief.files.filter(live)
                vectors = brief.vectors if live is None else brief.vectors.filter(live)
                if len(files):
                    self._order.append((source, number, live))
                    yield Slice(key.hexdigest(), files, vectors, self, len(self._order) - 1)
            if source.is_commit:  # newer than what follows
                seen.append(read.paths)

    # Reading.

    def _key(self, source: _Source) -> tuple[Any, ...]:
        return (*_source_key(source, self._scope), self._head_digest)

    def _read(self, source: _Source) -> _Read:
        held: _Read | None = FILES.get(self._key(source))
        if held is not None:
            return held
        paths: list[pa.Array] = []
        briefs = []
        for adds in _slices(source, paths, brief=True):
            found = self.told(adds)
            # columns of nothing but nulls are large too
            found = found.select([name for name in found.column_names if name not in _STATISTICS])
            briefs.append(_Brief(found, adds.field("deletionVector")))
        told = pa.concat_arrays(paths) if paths else pa.array([], pa.string())
        read = _Read(tuple(briefs), told if source.is_commit else pa.array([], pa.string()))
        size = read.paths.nbytes + sum(brief.size_bytes for brief in briefs)
        FILES.put(self._key(source), read, size)
        FILES.put(_source_key(source, self._scope), True, 0)
        return read

    def statistics(self, position: int) -> pa.Table:
        """The statistics of one slice. Once slices are asked for one after the other, the next is read meanwhile."""
        ahead, self._ahead = self._ahead, None
        found = None
        if ahead is not None:  # two do not read at once
            wait([ahead[1]])
            found = ahead[1].result() if ahead[0] == position else None
        if found is None:
            found = self._statistics(position)
        if self._asked == position - 1 and position + 1 < len(self._order):
            self._ahead = position + 1, self._reader.submit(self._statistics, position + 1)
        self._asked = position
        return found

    def _statistics(self, position: int) -> pa.Table:
        source, number, live = self._order[position]
        adds = self._adds(source, number)
        return self.told(adds if live is None else adds.filter(live))

    def _adds(self, source: _Source, number: int) -> pa.StructArray:
        """One slice of a source as it stands there. Slices that are asked for in order are read at one go."""
        at = self._reading
        if at is None or at[0] != source or at[1] > number:
            at = source, 0, _slices(source, [])
        _, position, slices = at
        for adds in slices:
            position += 1
            if position > number:
                self._reading = source, position, slices
                return adds
        raise ValueError("its log changed while it was read")

    def told(self, adds: pa.StructArray) -> pa.Table:
        """What deltalake tells of some adds, in their order."""
        # by number: whatever order it has them in, and however it writes paths
        numbers = pa.array(np.arange(len(adds))).cast(pa.string())
        with TemporaryDirectory(prefix="statflight-") as folder:
            found = pa.table(self._table(folder, _with(adds, "path", numbers)).get_add_actions(flatten=False))
        found = found.combine_chunks()
        order = pc.index_in(numbers, value_set=one_array(found["path"]))
        if len(found) != len(adds) or order.null_count:
            raise NotSliced("deltalake counts other files")
        if not one_array(found["path"]).equals(numbers):
            found = found.take(order)
        return found.set_column(found.schema.get_field_index("path"), "path", adds.field("path"))

    def _table(self, folder: str, adds: pa.StructArray | None) -> DeltaTable:
        """A table whose log is a checkpoint of these adds: much faster to read than a commit."""
        protocol, metadata = self._heads
        log = Path(folder) / "_delta_log"
        log.mkdir()
        count = 0 if adds is None else len(adds)
        columns = {
            "protocol": pa.concat_arrays([_of(protocol, _PROTOCOL), pa.nulls(1, _PROTOCOL)]),
            "metaData": pa.concat_arrays([pa.nulls(1, _METADATA), _of(metadata, _METADATA)]),
            "add": pa.nulls(2, _ADD),
        }
        head = f"{json.dumps({'protocol': protocol})}\n{json.dumps({'metaData': metadata})}\n"
        (log / f"{0:020}.json").write_text(head, encoding="utf-8")
        first = pa.table(columns)
        checkpoint = log / f"{0:020}.checkpoint.parquet"
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(checkpoint, first.schema, **plain) as out:
            out.write_table(first)
            if adds is not None:
                held = _with(adds, "deletionVector", pa.nulls(count, _VECTOR))
                out.write_table(pa.table([pa.nulls(count, _PROTOCOL), pa.nulls(count, _METADATA), held], first.schema))
        (log / "_last_checkpoint").write_text(json.dumps({"version": 0, "size": count + 2}))
        return DeltaTable(folder)

    @cached_property
    def _heads(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The newest protocol and metadata."""
        found: dict[str, Mapping[str, Any]] = {}
        for source in self._sources:
            for action in _line_heads(source) if source.is_lines else _checkpoint_heads(source):
                for name in ("protocol", "metaData"):
                    if action.get(name) and name not in found:
                        found[name] = action[name]
            if len(found) == 2:
                break
        else:
            raise NotSliced("the log tells no protocol or no metadata")
        if '"numRecords"' in str(found["metaData"].get("schemaString")):
            raise NotSliced("a column is called as the count of rows is")
        protocol = dict(found["protocol"])
        for name in ("readerFeatures", "writerFeatures"):
            if protocol.get(name):
                protocol[name] = [feature for feature in protocol[name] if feature not in _OWN_FEATURES]
        return protocol, found["metaData"]

    @cached_property
    def _head_digest(self) -> str:
        return hashlib.sha256(json.dumps(self._heads, sort_keys=True, default=str).encode()).hexdigest()


def _source_key(source: _Source, scope: str) -> tuple[Any, ...]:
    return "delta", scope, source.place.path, source.size


def _known(source: _Source, scope: str) -> bool:
    return FILES.get(_source_key(source, scope)) is not None


def _of(action: Mapping[str, Any], type: pa.StructType) -> pa.Array:
    """An action of a commit as a checkpoint has it."""
    held = {type.field(i).name: action.get(type.field(i).name) for i in range(type.num_fields)}
    if "configuration" in held:
        held["configuration"] = list((held["configuration"] or {}).items())
        format = held["format"] or {}
        held["format"] = {
            "provider": format.get("provider") or "parquet", "options": list((format.get("options") or {}).items()),
        }  # fmt: skip
    return pa.array([held], type)


def _with(adds: pa.StructArray, field: str, values: pa.Array) -> pa.StructArray:
    """The adds with another field."""
    columns = [values if name == field else adds.field(name) for name in _FIELDS]
    return pa.StructArray.from_arrays(columns, fields=list(_ADD))


# Sources.


def _slices(source: _Source, paths: list[pa.Array], *, brief: bool = False) -> Iterator[pa.StructArray]:
    """The adds of a source, so many at a time; `paths` takes the paths of all it adds or removes.

    `brief` leaves of the statistics but the row count.
    """
    held: list[pa.StructArray] = []
    count = size = 0
    for adds in _line_adds(source, paths) if source.is_lines else _checkpoint_adds(source):
        held.append(_briefly(adds) if brief else adds)
        count, size = count + len(adds), size + adds.field("stats").nbytes
        if count >= SLICE or size >= SLICE_BYTES:
            yield pa.concat_arrays(held)
            held, count, size = [], 0, 0
    if held:
        yield pa.concat_arrays(held)


def _briefly(adds: pa.StructArray) -> pa.StructArray:
    rows = pc.struct_field(pc.extract_regex(adds.field("stats"), _NUMBER), [0])
    return _with(adds, "stats", pc.binary_join_element_wise('{"numRecords":', rows, "}", ""))


def _line_adds(source: _Source, paths: list[pa.Array]) -> Iterator[pa.StructArray]:
    for lines in batched(_lines(source), _ROWS):
        adds, named = [], []
        for action in map(json.loads, lines):
            add, gone = action.get("add"), action.get("remove")
            if add:
                partition = list((add.get("partitionValues") or {}).items())
                adds.append({name: add.get(name) for name in _FIELDS} | {"partitionValues": partition})
            if add or gone:
                named.append((add or gone)["path"])
        paths.append(pa.array(named, pa.string()))
        if adds:
            yield pa.array(adds, _ADD)


def _lines(source: _Source) -> Iterator[bytes]:
    with source.place.file_system.open_input_stream(source.place.path) as stream:
        rest = b""
        while chunk := stream.read(4 << 20):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from filter(None, whole)
        if rest.strip():
            yield rest


def _line_heads(source: _Source) -> Iterator[Mapping[str, Any]]:
    for line in _lines(source):
        if b'"protocol"' in line[:64] or b'"metaData"' in line[:64]:
            yield json.loads(line)


def _checkpoint_heads(source: _Source) -> Iterator[Mapping[str, Any]]:
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        names = [name for name in ("protocol", "metaData") if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(65_536, columns=names, use_threads=False) if names else ():
            for name in names:
                for held in batch.column(name).filter(pc.is_valid(batch.column(name))).to_pylist():
                    yield {name: _plain(held)}


def _plain(held: Mapping[str, Any]) -> dict[str, Any]:
    """An action of a checkpoint as a commit has it: no nulls, maps as objects."""
    found: dict[str, Any] = {}
    for name, value in held.items():
        if value is None:
            continue
        if name == "configuration":
            value = dict(value)
        if name == "format":
            value = {"provider": value.get("provider"), "options": dict(value.get("options") or ())}
        found[name] = value
    return found


def _sidecars(source: _Source, log: Place) -> list[_Source]:
    """The files that a checkpoint of the second version keeps its adds in."""
    if source.is_lines:
        told = [action["sidecar"] for action in map(json.loads, _lines(source)) if action.get("sidecar")]
    else:
        with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
            if "sidecar" not in parquet.schema_arrow.names:
                return []
            column = parquet.read(columns=["sidecar"], use_threads=False)["sidecar"]
            told = [held for held in column.to_pylist() if held]
    found = []
    for held in told:
        path = plain_path(str(held["path"]))
        if "/" in path:  # none that we know of is not beside the others
            raise NotSliced("a sidecar is somewhere else")
        found.append(_Source(log.below(f"_sidecars/{path}"), int(held["sizeInBytes"]), False))
    return found


def _checkpoint_adds(source: _Source) -> Iterator[pa.StructArray]:
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        known = parquet.schema_arrow
        if "add" not in known.names:
            return
        add = known.field("add").type
        have = {add.field(i).name for i in range(add.num_fields)}
        if not set(_FIELDS) - {"dataChange", "deletionVector", "stats"} <= have:
            raise NotSliced("adds are in another form")
        if "stats" not in have and "stats_parsed" in have:
            raise NotSliced("statistics are in another form")
        asked = [f"add.{name}" for name in _FIELDS if name in have]
        for batch in parquet.iter_batches(_ROWS, columns=asked, use_threads=False):
            adds = batch.column("add")
            if adds.null_count:  # a copy of all there is
                adds = adds.filter(pc.is_valid(adds))
            if not len(adds):
                continue
            if "stats_parsed" in have and adds.field("stats").null_count == len(adds):
                raise NotSliced("statistics are in another form")
            columns = [_field(adds, name, type) if name in have else _blank(name, type, len(adds))
                       for name, type in _FIELDS.items()]  # fmt: skip
            yield pa.StructArray.from_arrays(columns, fields=list(_ADD))


def _field(adds: pa.StructArray, name: str, type: pa.DataType) -> pa.Array:
    return _vectors(adds.field(name)) if name == "deletionVector" else adds.field(name).cast(type)


def _blank(name: str, type: pa.DataType, count: int) -> pa.Array:
    """A field that a checkpoint leaves out."""
    return pa.repeat(pa.scalar(False if name == "dataChange" else None, type), count)


def _vectors(column: pa.StructArray) -> pa.Array:
    """Descriptors in the order of ours, whatever order the writer had."""
    held = {column.type.field(i).name for i in range(column.type.num_fields)}
    names = [_VECTOR.field(i).name for i in range(_VECTOR.num_fields)]
    types = [_VECTOR.field(name).type for name in names]
    columns = [
        column.field(name).cast(type) if name in held else pa.nulls(len(column), type)
        for name, type in zip(names, types, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_VECTOR), mask=pc.is_null(column))
