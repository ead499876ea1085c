"""The log of one version of a Delta table: its metadata, and its live files in slices.

Reading in slices limits the memory of large logs. Commits and checkpoints are immutable. Their file listings are
cached, so a new version of a table costs only its own commit. A cached checkpoint is preferred to a newer one as long
as all commits since exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from capture.connectors.delta.lake_table import LakeTable, Outline
from capture.connectors.delta.log import LogFiles, parse_schema
from capture.connectors.delta.log_files import SLICE, VECTOR, LogFile, adds_of, heads, one_array, sidecars
from capture.connectors.delta.log_statistics import partition_values, row_counts, statistics
from capture.connectors.metadata.known_writers import DELTA, ENGINE_INFO, WriterName, bound_type, doubt
from capture.connectors.storage.immutable_cache import FILES
from capture.connectors.storage.places import Unreadable, read_each
from store.model.logical_types import Kind

MAX_COMMITS: Final = 500  # commits replayed on a cached checkpoint in place of a newer one
_LISTED_BYTES: Final = 8 << 20  # of adds that are not parsed again for their statistics
MAX_READER: Final = 3  # newest version of the reader protocol
_FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantType",
    }
)

_FILES: Final = {
    "path": pa.string(),
    "size_bytes": pa.int64(),
    "modification_time": pa.int64(),
    "num_records": pa.int64(),
    "partition": pa.null(),
    "vectors": VECTOR,
    "engine": pa.string(),
}


@dataclass(frozen=True, slots=True)
class _Read:
    """File listing of a source: its adds in slices of `LogSlice.files` without `engine`, all paths that a commit adds
    or removes, and its `engineInfo`."""

    slices: tuple[pa.Table, ...]
    paths: pa.Array
    engine: str | None


_Place: TypeAlias = tuple[LogFile, int, pa.Array | None]
"""The source of adds, the index of their slice in it, and a mask of live ones (None: all)."""


@dataclass(frozen=True)
class LogSlice:
    """Some live files of a log: of a checkpoint, or of consecutive commits.

    Attributes:
        key: Digest; slices with equal keys have equal files and statistics.
        files: `path`, `size_bytes`, `modification_time` (milliseconds since 1970), `num_records`, `partition`,
            `vectors`, the descriptors of deletion vectors, and `engine`, the `engineInfo` of the commit; that of a
            checkpoint's files is null, or an unknown one that wrote since.
    """

    key: str
    files: pa.Table
    _log: TableLog = field(repr=False)
    _places: tuple[_Place, ...]

    @property
    def vectors(self) -> pa.Array:
        """The descriptors of deletion vectors, one per file; null for files without one."""
        return one_array(self.files["vectors"])

    @property
    def is_of_commits(self) -> bool:
        """True if the files were added by commits, not listed by a checkpoint."""
        return self._places[0][0].is_commit

    def statistics(self) -> pa.Table:
        """`files` with the statistics of all columns and the column TIGHT."""
        if not self._places:
            return self.files
        parts = [
            adds if live is None else adds.filter(live)
            for adds, live in ((self._log.adds(source, number), live) for source, number, live in self._places)
        ]
        adds = pa.concat_tables(parts, promote_options="default").combine_chunks()
        if not adds["path"].equals(self.files["path"]):
            raise ValueError("its log changed while it was being read")
        files, outline = self.files, self._log.outline
        columns = statistics(adds, outline.schema, outline.partitions)
        for name in columns.column_names:
            files = files.append_column(name, columns[name])
        return files


class TableLog:
    """The log of one version of a table; `sources` are its commits and checkpoint files, newest first."""

    def __init__(self, table: LakeTable, sources: Sequence[LogFile]):
        self._table, self._sources = table, sources
        self._reading: tuple[LogFile, int, Iterator[pa.Table]] | None = None
        self._listed: dict[LogFile, pa.Table] = {}  # adds of small sources, until their statistics are asked for
        self._room = _LISTED_BYTES

    @classmethod
    def of(cls, table: LakeTable, files: LogFiles, version: int, scope: str) -> TableLog:
        """The log of a version.

        Args:
            version: The version, which must be live.
            scope: Prefix of cache keys, see `immutable_cache.scope`.

        Raises:
            ValueError: Commits are missing.
        """
        log = table.place.below("_delta_log")

        def source(info: pafs.FileInfo, is_commit: bool = False) -> LogFile:
            return LogFile(log.below(info.base_name), info.size, info.mtime_ns, is_commit, scope)

        whole = [n for n in files.checkpoints if n <= version]
        choices = whole[-1:] or [-1]
        choices += [n for n in reversed(whole[:-1]) if version - n <= MAX_COMMITS]
        choices = [base for base in choices if all(n in files.commits for n in range(base + 1, version + 1))]
        if not choices:
            raise ValueError(f"commits before version {version} of its log are missing")
        parts = {base: [source(info) for info in files.checkpoints.get(base, ())] for base in choices}
        cached = (base for base in choices if parts[base] and all(FILES.get(part.key) for part in parts[base]))
        base = next(cached, choices[0])
        sources = [source(files.commits[n], is_commit=True) for n in range(version, base, -1)]
        for part in parts[base]:
            sources += [part, *sidecars(part, log)]
        return cls(table, sources)

    @cached_property
    def outline(self) -> Outline:
        """Metadata and schema.

        Raises:
            ValueError: The log has no protocol or no metadata, or no schema.
            Unreadable: It needs a feature or version of the protocol that is not supported.
        """
        protocol, metadata = self._heads
        self._check_readable(protocol)
        configuration = {str(k): str(v) for k, v in (metadata.get("configuration") or {}).items()}
        schema = parse_schema(metadata.get("schemaString"), configuration)
        partitions = tuple(metadata.get("partitionColumns") or ())
        text = metadata.get("description") or None
        return Outline(str(metadata["id"]), schema, partitions, configuration, description=text)

    def _check_readable(self, protocol: Mapping[str, Any]) -> None:
        """Refuses a version or feature of the protocol that is not known."""
        table = f'table "{self._table.namespace}.{self._table.name}"'
        if (version := protocol.get("minReaderVersion") or 0) > MAX_READER:
            raise Unreadable(
                f"{table} needs version {version} of Delta's reader protocol; {MAX_READER} is the newest known"
            )
        needed = [str(feature) for feature in protocol.get("readerFeatures") or ()]
        if unknown := [name for name in needed if name.removesuffix("-preview") not in _FEATURES]:
            raise Unreadable(
                f"{table} has the Delta feature {unknown[0]}, which cannot be read yet",
                hint=f"drop it with ALTER TABLE … DROP FEATURE {unknown[0]}",
            )

    def slices(self) -> Iterator[LogSlice]:
        """Yields the live files in slices, at least one. Commits share slices, since each slice has a fixed cost."""
        groups: list[list[LogSlice]] = []
        count = 0
        for part in reversed(list(self._parts())):  # oldest first: a new commit changes only the newest slice
            count += len(part.files)
            if not groups or not (part.is_of_commits and groups[-1][0].is_of_commits) or count > SLICE:
                groups.append([])
                count = len(part.files)
            groups[-1].insert(0, part)
        nothing = LogSlice("", pa.schema(_FILES).empty_table(), self, ())
        return map(_joined, reversed(groups or [[nothing]]))

    def _parts(self) -> Iterator[LogSlice]:
        """The live adds of each slice of each source."""
        seen: list[pa.Array] = []
        unknown: str | None = None  # a writer of the table that is not known
        for source, read in zip(self._sources, self._all_read(), strict=True):
            if unknown is None and doubt_about(read.engine, Kind.INT):
                unknown = read.engine
            engine = read.engine if source.is_commit else unknown
            superseded = pa.concat_arrays(seen) if seen else None
            for number, files in enumerate(read.slices):
                live = None
                if superseded is not None and len(superseded):
                    live = pc.invert(pc.is_in(one_array(files["path"]), superseded))
                    live = None if pc.all(live).as_py() else live
                mask = b"" if live is None else np.packbits(live.to_numpy(zero_copy_only=False)).tobytes()
                about = f"{self._key(source)}\0{number}\0{engine or ''}\0"
                key = hashlib.sha256(about.encode("utf-8", "surrogatepass") + mask)
                of_slice = files if live is None else files.filter(live)
                engines = pa.repeat(pa.scalar(engine, pa.string()), len(of_slice))
                of_slice = of_slice.append_column("engine", engines)
                if len(of_slice):
                    _check_partitions(of_slice)
                    yield LogSlice(key.hexdigest(), of_slice, self, ((source, number, live),))
            if source.is_commit:  # overrides older sources
                seen.append(read.paths)

    def adds(self, source: LogFile, number: int) -> pa.Table:
        """The adds of one slice of a source; slices in sequence are read in one pass."""
        if (listed := self._listed.pop(source, None)) is not None:
            return listed
        at = self._reading
        if at is None or at[0] != source or at[1] > number:
            at = source, 0, adds_of(source, [], [])
        _, position, slices = at
        for adds in slices:
            position += 1
            if position > number:
                self._reading = source, position, slices
                return adds
        raise ValueError("its log changed while it was being read")

    def _key(self, source: LogFile) -> tuple[Any, ...]:
        return (*source.key, self._head_digest)

    def _all_read(self) -> Iterator[_Read]:
        """The listings of all sources; those of commits in an object store are read concurrently."""
        commits = [source for source in self._sources if source.is_commit and FILES.get(self._key(source)) is None]
        if commits and not commits[0].place.is_local:
            list(read_each(self._read, commits))
        return map(self._read, self._sources)

    def _read(self, source: LogFile) -> _Read:
        cached: _Read | None = FILES.get(self._key(source))
        if cached is not None:
            return cached
        paths: list[pa.Array] = []
        engines: list[str] = []
        slices: tuple[pa.Table, ...] = ()
        for adds in adds_of(source, paths, engines):
            slices += (self._files(adds),)
        if len(slices) == 1 and (size := adds.get_total_buffer_size()) <= self._room:
            self._listed[source], self._room = adds, self._room - size
        listed = pa.concat_arrays(paths) if paths and source.is_commit else pa.array([], pa.string())
        read = _Read(slices, listed, engines[0] if engines and source.is_commit else None)
        FILES.put(self._key(source), read, listed.nbytes + sum(files.nbytes for files in slices))
        FILES.put(source.key, True, 0)
        return read

    def _files(self, adds: pa.Table) -> pa.Table:
        return pa.table(
            {
                "path": adds["path"],
                "size_bytes": adds["size"],
                "modification_time": adds["modificationTime"],
                "num_records": row_counts(adds),
                "partition": partition_values(adds, self.outline.schema, self.outline.partitions),
                "vectors": adds["deletionVector"],
            }
        )

    @cached_property
    def _heads(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The newest protocol and the newest metadata."""
        found: dict[str, Mapping[str, Any]] = {}
        for source in self._sources:
            for action in heads(source):
                found = {name: action[name] for name in ("protocol", "metaData") if action.get(name)} | found
            if len(found) == 2:
                return found["protocol"], found["metaData"]
        raise ValueError("its log has no protocol or no metadata")

    @cached_property
    def _head_digest(self) -> str:
        return hashlib.sha256(json.dumps(self._heads, sort_keys=True, default=str).encode()).hexdigest()


def doubt_about(engine: str | None, kind: Kind) -> str:
    """The reason why logged bounds of a kind may be wrong by the `engineInfo` of their commit; empty if there is
    none."""
    return "" if engine is None else doubt(DELTA, WriterName.of(engine, ENGINE_INFO), bound_type(kind))


def _check_partitions(files: pa.Table) -> None:
    """Raises ValueError if a live file has a partition value that is not of its column's type."""
    values = files["partition"]
    if pa.types.is_struct(values.type) and values.null_count:
        path = files["path"][pc.index(pc.is_null(values), True).as_py()]
        raise ValueError(f'a partition value of the file "{path}" is not of its column\'s type')


def _joined(parts: Sequence[LogSlice]) -> LogSlice:
    """One slice of the files of several."""
    first, *more = parts
    if not more:
        return first
    key = hashlib.sha256("\0".join(part.key for part in parts).encode()).hexdigest()
    files = pa.concat_tables([part.files for part in parts]).combine_chunks()
    return LogSlice(key, files, first._log, tuple(place for part in parts for place in part._places))
