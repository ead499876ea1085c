"""Replays a large Delta log in slices, because deltalake would hold all of it in memory, ten kilobytes per file.

Logs with deletion vectors or wide bounds are also read this way, because deltalake exposes neither the descriptors of
vectors nor whether bounds are tight.

This module determines which add actions are live. Their content is then parsed by deltalake, from temporary logs of
some thousand adds each. So values are the same as deltalake's, and memory is limited.

Commits and checkpoints are immutable. Their file listings are cached, so a new version of a table costs only its own
commit. A cached checkpoint is preferred to a newer one as long as all commits since exist.
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

from capture.connectors.delta.log_files import (
    ADD,
    TEXTS,
    TIGHT,
    VECTOR,
    LogFile,
    NotReplayable,
    adds_of,
    checkpoint_heads,
    line_heads,
    may_have_wide_bounds,
    sidecars,
    with_field,
)
from capture.connectors.delta.table_version import one_array
from capture.connectors.storage.immutable_cache import FILES
from capture.connectors.storage.places import Place

LARGE: Final = 16 << 20
"""Size of a log in bytes from which it is read in slices."""

MAX_COMMITS: Final = 500  # commits replayed on a cached checkpoint in place of a newer one
_READ_AT_ONCE: Final = 8  # log files read concurrently
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_NAMED = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")
_STATISTICS: Final = ("null_count", "min", "max", TIGHT)
_WIDE: Final = r'(^|[^\\])"tightBounds"\s*:\s*false'
_OWN_FEATURES: Final = ("deletionVectors", "v2Checkpoint", "v2Checkpoint-preview")  # handled here
_PROTOCOL = pa.struct([
    ("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()), ("readerFeatures", pa.list_(pa.string())),
    ("writerFeatures", pa.list_(pa.string())),
])  # fmt: skip
_METADATA = pa.struct([
    ("id", pa.string()), ("name", pa.string()), ("description", pa.string()),
    ("format", pa.struct([("provider", pa.string()), ("options", TEXTS)])), ("schemaString", pa.string()),
    ("partitionColumns", pa.list_(pa.string())), ("configuration", TEXTS), ("createdTime", pa.int64()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Brief:
    """File listing of a slice of one source: `files` without column statistics, and deletion vectors."""

    files: pa.Table
    vectors: pa.Array

    @property
    def size_bytes(self) -> int:
        return int(self.files.nbytes) + int(self.vectors.nbytes)


@dataclass(frozen=True, slots=True)
class _Read:
    """File listing of a source: its adds in slices, and all paths that it adds or removes."""

    briefs: tuple[_Brief, ...]
    paths: pa.Array


@dataclass(frozen=True)
class LogSlice:
    """Some live files of a log.

    Attributes:
        key: Digest; slices with equal keys have equal files and statistics.
        files: Output of `get_add_actions(flatten=False)` without statistics, except row counts.
        vectors: Descriptors of the deletion vectors, one per file.
    """

    key: str
    files: pa.Table
    vectors: pa.Array
    _log: LargeLog = field(repr=False)
    _position: int

    def statistics(self) -> pa.Table:
        """`files` with the statistics of all columns and the column TIGHT."""
        try:
            statistics = self._log.statistics(self._position)
        except NotReplayable as error:
            raise ValueError(f"its log changed while it was being read: {error}") from None
        if statistics["path"].to_pylist() != self.files["path"].to_pylist():
            raise ValueError("its log changed while it was being read")
        return statistics


_Where: TypeAlias = tuple[LogFile, int, pa.Array | None]
"""Position of a slice: the source, the index of the slice in it, and a mask of live adds (None: all)."""


class LargeLog:
    """The log of one version of a table; `sources` are its commits and checkpoint files, newest first."""

    def __init__(self, sources: Sequence[LogFile], scope: str):
        self._sources, self._scope = sources, scope
        self._reading: tuple[LogFile, int, Iterator[pa.StructArray]] | None = None
        self._order: list[_Where] = []  # positions of the slices
        self._last_read = -2  # index of the slice whose statistics were read last
        self._ahead: tuple[int, Future[pa.Table]] | None = None  # index and statistics of a prefetched slice
        self._reader = ThreadPoolExecutor(1, "delta-log")

    @property
    def is_large(self) -> bool:
        """True if the log has at least `LARGE` bytes."""
        return sum(source.size for source in self._sources) >= LARGE

    @property
    def has_wide_bounds(self) -> bool:
        """True if statistics may have `tightBounds: false`, which writers set independent of the protocol."""
        unknown = [source for source in self._sources if FILES.get(self._wide_key(source)) is None]
        if unknown:
            with ThreadPoolExecutor(min(_READ_AT_ONCE, len(unknown)), "delta-log") as pool:
                for source, is_wide in zip(unknown, pool.map(may_have_wide_bounds, unknown), strict=True):
                    FILES.put(self._wide_key(source), is_wide, 0)
        return any(FILES.get(self._wide_key(source)) is not False for source in self._sources)

    def _wide_key(self, source: LogFile) -> tuple[Any, ...]:
        return (*_source_key(source, self._scope), "wide")

    @classmethod
    def of(cls, table: Place, entries: Sequence[pafs.FileInfo], version: int, scope: str) -> LargeLog | None:
        """The log of a version; None if files are missing.

        Args:
            table: Directory of the table.
            entries: Output of `log_entries`.
            version: The version.
            scope: Prefix of cache keys, see `immutable_cache.scope`.

        Raises:
            NotReplayable: Only deltalake can replay the log.
        """
        log = table.below("_delta_log")
        commits: dict[int, LogFile] = {}
        parts: dict[tuple[int, int], list[LogFile]] = {}
        for info in entries:
            file = log.below(info.base_name)
            if match := _COMMIT.fullmatch(info.base_name):
                commits[int(match[1])] = LogFile(file, info.size, True)
            elif match := _CHECKPOINT.fullmatch(info.base_name):
                parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(LogFile(file, info.size, False))
            elif match := _NAMED.fullmatch(info.base_name):
                parts[int(match[1]), 1] = [LogFile(file, info.size, False)]
        whole = sorted(key for key, files in parts.items() if len(files) == key[1] and key[0] <= version)
        choices = [whole[-1]] if whole else [(-1, 0)]
        choices += [key for key in reversed(whole[:-1]) if version - key[0] <= MAX_COMMITS]
        choices = [key for key in choices if all(n in commits for n in range(key[0] + 1, version + 1))]
        if not choices:
            return None
        cached = (key for key in choices if key in parts and all(_known(source, scope) for source in parts[key]))
        base = next(cached, choices[0])
        sources = [commits[n] for n in range(version, base[0], -1)]
        for source in parts.get(base, []):
            sources += [source, *sidecars(source, log)]
        return cls(sources, scope)

    def outline(self) -> DeltaTable:
        """The table with metadata, schema and protocol, but without files.

        Raises:
            NotReplayable: The log has no protocol or no metadata.
        """
        with TemporaryDirectory(prefix="statflight-") as folder:
            return self._table(folder, None)

    def slices(self) -> Iterator[LogSlice]:
        """Yields the live files in slices.

        Raises:
            NotReplayable: Only deltalake can replay the log.
        """
        self._order = []
        seen: list[pa.Array] = []
        for source in self._sources:
            read = self._read(source)
            superseded = pa.concat_arrays(seen) if seen else None
            for number, brief in enumerate(read.briefs):
                live = None
                if superseded is not None and len(superseded):
                    live = pc.invert(pc.is_in(one_array(brief.files["path"]), superseded))
                    live = None if pc.all(live).as_py() else live
                mask = b"" if live is None else np.packbits(live.to_numpy(zero_copy_only=False)).tobytes()
                key = hashlib.sha256(f"{self._key(source)}\0{number}\0".encode("utf-8", "surrogatepass") + mask)
                files = brief.files if live is None else brief.files.filter(live)
                vectors = brief.vectors if live is None else brief.vectors.filter(live)
                if len(files):
                    self._order.append((source, number, live))
                    yield LogSlice(key.hexdigest(), files, vectors, self, len(self._order) - 1)
            if source.is_commit:  # overrides older sources
                seen.append(read.paths)

    # Reading.

    def _key(self, source: LogFile) -> tuple[Any, ...]:
        return (*_source_key(source, self._scope), self._head_digest)

    def _read(self, source: LogFile) -> _Read:
        cached: _Read | None = FILES.get(self._key(source))
        if cached is not None:
            return cached
        paths: list[pa.Array] = []
        briefs = []
        for adds in adds_of(source, paths, brief=True):
            statistics = self.statistics_of(adds)
            # drop statistics, because even all-null columns take memory
            statistics = statistics.select([name for name in statistics.column_names if name not in _STATISTICS])
            briefs.append(_Brief(statistics, adds.field("deletionVector")))
        listed = pa.concat_arrays(paths) if paths else pa.array([], pa.string())
        read = _Read(tuple(briefs), listed if source.is_commit else pa.array([], pa.string()))
        size = read.paths.nbytes + sum(brief.size_bytes for brief in briefs)
        FILES.put(self._key(source), read, size)
        FILES.put(_source_key(source, self._scope), True, 0)
        return read

    def statistics(self, position: int) -> pa.Table:
        """The statistics of one slice. If slices are read in sequence, the next one is prefetched."""
        ahead, self._ahead = self._ahead, None
        statistics = None
        if ahead is not None:  # never read two slices concurrently
            wait([ahead[1]])
            statistics = ahead[1].result() if ahead[0] == position else None
        if statistics is None:
            statistics = self._statistics(position)
        if self._last_read == position - 1 and position + 1 < len(self._order):
            self._ahead = position + 1, self._reader.submit(self._statistics, position + 1)
        self._last_read = position
        return statistics

    def _statistics(self, position: int) -> pa.Table:
        source, number, live = self._order[position]
        adds = self._adds(source, number)
        return self.statistics_of(adds if live is None else adds.filter(live))

    def _adds(self, source: LogFile, number: int) -> pa.StructArray:
        """The adds of one slice of a source; slices in sequence are read in one pass."""
        at = self._reading
        if at is None or at[0] != source or at[1] > number:
            at = source, 0, adds_of(source, [])
        _, position, slices = at
        for adds in slices:
            position += 1
            if position > number:
                self._reading = source, position, slices
                return adds
        raise ValueError("its log changed while it was being read")

    def statistics_of(self, adds: pa.StructArray) -> pa.Table:
        """Parses adds with deltalake; keeps their order."""
        # numbers as paths, because deltalake may reorder files and rewrite paths
        numbers = pa.array(np.arange(len(adds))).cast(pa.string())
        with TemporaryDirectory(prefix="statflight-") as folder:
            statistics = pa.table(self._table(folder, with_field(adds, "path", numbers)).get_add_actions(flatten=False))
        statistics = statistics.combine_chunks()
        order = pc.index_in(numbers, value_set=one_array(statistics["path"]))
        if len(statistics) != len(adds) or order.null_count:
            raise NotReplayable("deltalake lists other files")
        if not one_array(statistics["path"]).equals(numbers):
            statistics = statistics.take(order)
        statistics = statistics.set_column(statistics.schema.get_field_index("path"), "path", adds.field("path"))
        return statistics.append_column(TIGHT, _tight(adds.field("stats")))

    def _table(self, folder: str, adds: pa.StructArray | None) -> DeltaTable:
        """A temporary table whose log is a checkpoint with these adds, which is read faster than a commit."""
        protocol, metadata, _ = self._heads
        log = Path(folder) / "_delta_log"
        log.mkdir()
        count = 0 if adds is None else len(adds)
        columns = {
            "protocol": pa.concat_arrays([_of(protocol, _PROTOCOL), pa.nulls(1, _PROTOCOL)]),
            "metaData": pa.concat_arrays([pa.nulls(1, _METADATA), _of(metadata, _METADATA)]),
            "add": pa.nulls(2, ADD),
        }
        head = f"{json.dumps({'protocol': protocol})}\n{json.dumps({'metaData': metadata})}\n"
        (log / f"{0:020}.json").write_text(head, encoding="utf-8")
        first = pa.table(columns)
        checkpoint = log / f"{0:020}.checkpoint.parquet"
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(checkpoint, first.schema, **plain) as out:
            out.write_table(first)
            if adds is not None:
                table = with_field(adds, "deletionVector", pa.nulls(count, VECTOR))
                out.write_table(pa.table([pa.nulls(count, _PROTOCOL), pa.nulls(count, _METADATA), table], first.schema))
        (log / "_last_checkpoint").write_text(json.dumps({"version": 0, "size": count + 2}))
        return DeltaTable(folder)

    @cached_property
    def _heads(self) -> tuple[Mapping[str, Any], Mapping[str, Any], list[str]]:
        """The newest protocol without the features handled here, the newest metadata, and all reader features."""
        heads: dict[str, Mapping[str, Any]] = {}
        for source in self._sources:
            for action in line_heads(source) if source.is_lines else checkpoint_heads(source):
                for name in ("protocol", "metaData"):
                    if action.get(name) and name not in heads:
                        heads[name] = action[name]
            if len(heads) == 2:
                break
        else:
            raise NotReplayable("the log has no protocol or no metadata")
        if '"numRecords"' in str(heads["metaData"].get("schemaString")):
            raise NotReplayable("a column has the name of the row count")
        protocol = dict(heads["protocol"])
        for name in ("readerFeatures", "writerFeatures"):
            if protocol.get(name):
                protocol[name] = [feature for feature in protocol[name] if feature not in _OWN_FEATURES]
        return protocol, heads["metaData"], list(heads["protocol"].get("readerFeatures") or ())

    @cached_property
    def _head_digest(self) -> str:
        return hashlib.sha256(json.dumps(self._heads, sort_keys=True, default=str).encode()).hexdigest()


def _tight(statistics: pa.Array) -> pa.Array:
    """True for statistics without `tightBounds: false`; null if there are none."""
    mentioned = pc.match_substring(statistics, "tightBounds")  # much faster than the regular expression
    if not pc.any(mentioned).as_py():
        return pc.invert(mentioned)
    return pc.invert(pc.match_substring_regex(statistics, _WIDE))


def _source_key(source: LogFile, scope: str) -> tuple[Any, ...]:
    return "delta", scope, source.place.path, source.size


def _known(source: LogFile, scope: str) -> bool:
    return FILES.get(_source_key(source, scope)) is not None


def _of(action: Mapping[str, Any], type: pa.StructType) -> pa.Array:
    """Converts an action of a commit to its form in a checkpoint."""
    fields = {type.field(i).name: action.get(type.field(i).name) for i in range(type.num_fields)}
    if "configuration" in fields:
        fields["configuration"] = list((fields["configuration"] or {}).items())
        format = fields["format"] or {}
        fields["format"] = {
            "provider": format.get("provider") or "parquet", "options": list((format.get("options") or {}).items()),
        }  # fmt: skip
    return pa.array([fields], type)
