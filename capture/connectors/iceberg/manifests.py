"""Reads manifests: the live files of a snapshot and the metrics of their columns.

pyiceberg's planning rejects equality deletes and hides the position of deletion vectors, so entries are read here with
its Avro reader and the v3 schema. Manifests are immutable, and most are shared by many snapshots, so decoded manifests
are cached, as arrays, which take a twentieth of the memory of pyiceberg's objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFileContent,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.lazydict import LazyDict

from capture.connectors.iceberg.avro import OpenedManifest, manifest_list, manifest_of
from capture.connectors.iceberg.io import LakeIO, listed_manifests
from capture.connectors.storage.immutable_cache import COLUMNS, FILES

BLOCK: Final = 5_000  # files per block
_MANIFEST_BYTES: Final = 1000  # estimated memory of an entry of a manifest list
PATH_ID, POSITION_ID = 2147483546, 2147483545  # columns of a position delete file

_ENTRY: Final = MANIFEST_ENTRY_SCHEMAS[3].as_struct().fields
_FILE: Final = next(item.field_type for item in _ENTRY if item.field_id == 2).fields
_AT: Final = {item.field_id: position for position, item in enumerate(_ENTRY)}
_FILE_AT: Final = {item.field_id: position for position, item in enumerate(_FILE)}
_STATUS, _SNAPSHOT, _SEQUENCE, _DATA_FILE = _AT[0], _AT[1], _AT[3], _AT[2]
_CONTENT, _PATH, _FORMAT, _PARTITION = (_FILE_AT[i] for i in (134, 100, 101, 102))
_ROWS, _SIZE, _EQUALITY_IDS = (_FILE_AT[i] for i in (103, 104, 135))
_REFERENCED, _CONTENT_OFFSET, _CONTENT_SIZE = (_FILE_AT[i] for i in (143, 144, 145))
_VALUES, _NULLS, _NANS, _LOWER, _UPPER, _SIZES = (_FILE_AT[i] for i in (109, 110, 137, 125, 128, 108))
_TIGHT: Final = len(_FILE)
"""Position after those of pyiceberg: field id → whether both bounds are values of the file, from `content_stats`."""

_METRICS: Final = (_NULLS, _NANS, _LOWER, _UPPER, _VALUES, _TIGHT)
_MAPS: Final = (*_METRICS, _SIZES)

_DELETED: Final = int(ManifestEntryStatus.DELETED)
_CONTENTS: Final = {int(content): content.name for content in DataFileContent}


@dataclass(frozen=True, slots=True)
class Entry:
    """A live data or delete file. `path` is the path in the metadata, `location` the current location.

    `blob` is offset and size of a deletion vector within its file; `path_bounds` are the bounds of the data file paths
    in a position delete file.
    """

    content: str
    path: str
    location: str
    sequence: int
    spec_id: int
    partition: tuple[Any, ...]
    format: str
    rows: int
    size: int
    equality_ids: tuple[int, ...] = ()
    referenced_data_file: str | None = None
    blob: tuple[int, int] | None = None
    path_bounds: tuple[bytes | None, bytes | None] = (None, None)

    @property
    def scope(self) -> tuple[int, str]:
        """Spec id and partition values, which a partition-scoped delete must match. As text NaN equals itself, and -0.0
        is not 0.0, as for Iceberg's Java library."""
        return self.spec_id, repr(self.partition)


@dataclass(frozen=True, slots=True)
class Files:
    """A block of live data files of one manifest, as arrays. `partition_of` has indexes into `partitions`; `names`
    are those of the fields in the manifest's schema, by id; empty if it has none; `added_by` has the snapshots that
    added the files, null if unknown."""

    paths: pa.Array
    locations: pa.Array
    rows: pa.Array
    sizes: pa.Array
    sequences: pa.Array
    formats: pa.Array
    spec_id: int
    partitions: tuple[tuple[Any, ...], ...]
    partition_of: pa.Array
    names: Mapping[int, str]
    added_by: pa.Array

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def size_bytes(self) -> int:
        """Estimated memory, for the cache's budget."""
        arrays = (self.paths, self.locations, self.rows, self.sizes, self.sequences, self.formats, self.partition_of)
        return sum(array.nbytes for array in (*arrays, self.added_by)) + 200 * len(self.partitions)

    def entries(self) -> Iterator[Entry]:
        """Yields the files in the order of the manifest."""
        columns = (self.paths, self.locations, self.sequences, self.partition_of, self.formats, self.rows, self.sizes)
        for path, location, sequence, at, format, rows, size in zip(*(c.to_pylist() for c in columns), strict=True):
            yield Entry("DATA", path, location, sequence, self.spec_id, self.partitions[at], format, rows, size)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one column in a block of files.

    Attributes:
        known: True for files that have any.
        tight: True if both bounds are values of the file, null if that follows from the column's type.
        sizes: Compressed bytes.
        left_out: Rows that the counts leave out; None if no file has some. Iceberg's Java library counts floats in
            Parquet, and all columns in Avro, as it writes them, and writes nothing within a null struct.
    """

    known: pa.Array
    nulls: pa.Array
    nans: pa.Array
    lower: pa.Array
    upper: pa.Array
    tight: pa.Array
    sizes: pa.Array
    left_out: pa.Array | None = None

    @classmethod
    def unknown(cls, files: int) -> Metrics:
        """Metrics of files without any: counts and bounds are null."""
        counts, bounds = pa.nulls(files, pa.int64()), pa.nulls(files, pa.binary())
        return cls(pa.repeat(False, files), counts, counts, bounds, bounds, pa.nulls(files, pa.bool_()), counts)

    @property
    def size_bytes(self) -> int:
        """Estimated memory, for the cache's budget."""
        arrays = (self.known, self.nulls, self.nans, self.lower, self.upper, self.tight, self.sizes)
        return sum(array.nbytes for array in arrays)


Columns = Mapping[int, Metrics]
"""Field id → metrics. A field without an entry has no metrics in any of the files."""


ManifestKey = tuple[str, str, int, int, int]
"""Identity of a manifest: scope, current location, length, number that new entries inherit, partition spec id."""


class Manifests:
    """The manifests of one snapshot, decoded on demand.

    In addition to the caches of the process it holds up to `HELD_BYTES` of decoded metrics, so that a capture larger
    than these caches also decodes each manifest only once.
    """

    HELD_BYTES: Final = 512 << 20

    def __init__(self, io: LakeIO, snapshot: Snapshot, scope: str):
        self._io = io
        # without pyiceberg's cache, which is keyed by path only, and tables may have been moved
        paths = listed_manifests(snapshot.manifest_list)
        location = io.resolve(snapshot.manifest_list) if paths is None else snapshot.manifest_list
        key = scope, location, snapshot.snapshot_id, snapshot.timestamp_ms
        listed: tuple[ManifestFile, ...] | None = FILES.get(key)
        if listed is None:
            if paths is None:
                listed = tuple(manifest_list(io.new_input(snapshot.manifest_list)))
            else:
                listed = tuple(manifest_of(io.new_input(path), path) for path in paths)
            FILES.put(key, listed, _MANIFEST_BYTES * len(listed))
        self.data = [manifest for manifest in listed if manifest.content == ManifestContent.DATA]
        self._deletes = [manifest for manifest in listed if manifest.content == ManifestContent.DELETES]
        self._scope = scope
        self._columns: dict[ManifestKey, tuple[Columns, ...]] = {}
        self._held_bytes = 0

    def key(self, manifest: ManifestFile) -> ManifestKey:
        """The key of a manifest; includes its length, because a path may be overwritten."""
        location, sequence = self._io.resolve(manifest.manifest_path), manifest.sequence_number or 0
        return self._scope, location, manifest.manifest_length, sequence, manifest.partition_spec_id

    def files(self, manifest: ManifestFile) -> tuple[Files, ...]:
        """The live data files of a data manifest, in blocks."""
        files: tuple[Files, ...] | None = FILES.get(self.key(manifest))
        return self._decode(manifest)[0] if files is None else files

    def columns(self, manifest: ManifestFile) -> tuple[Columns, ...]:
        """Metrics of the columns of a data manifest, for each block of `files`."""
        key = self.key(manifest)
        columns: tuple[Columns, ...] | None = self._columns.get(key) or COLUMNS.get(key)
        return self._decode(manifest)[1] if columns is None else columns

    def deletes(self) -> list[Entry]:
        """The live delete files."""
        deletes: list[Entry] = []
        for manifest in self._deletes:
            key = self.key(manifest)
            cached: tuple[Entry, ...] | None = FILES.get(key)
            if cached is None:
                cached = tuple(_delete_entries(self._io, manifest))
                FILES.put(key, cached, 1000 * len(cached))
            deletes += cached
        return deletes

    def _decode(self, manifest: ManifestFile) -> tuple[tuple[Files, ...], tuple[Columns, ...]]:
        key = self.key(manifest)
        blocks = list(_blocks(self._io, manifest))
        files, columns = tuple(block[0] for block in blocks), tuple(block[1] for block in blocks)
        FILES.put(key, files, sum(block.size_bytes for block in files))
        size = sum(metrics.size_bytes for block in columns for metrics in block.values())
        COLUMNS.put(key, columns, size)
        if self._held_bytes + size <= self.HELD_BYTES:
            self._columns[key] = columns
            self._held_bytes += size
        return files, columns


class _Record(NamedTuple):
    """A live entry: its file's record, its sequence number, the snapshot that added it, and the names
    in the manifest's schema, by field id."""

    file: list[Any]
    sequence: int
    added_by: int | None
    names: Mapping[int, str]


def _records(io: LakeIO, manifest: ManifestFile) -> Iterator[_Record]:
    """Yields the live entries of a manifest."""
    with OpenedManifest(io.new_input(manifest.manifest_path)) as reader:
        names = _field_names(reader.header.meta.get("schema", ""))
        inherited = manifest.sequence_number or 0  # v1 has none
        typed = reader.typed
        for entry in reader:
            if entry[_STATUS] != _DELETED:
                sequence = entry[_SEQUENCE]
                if typed is not None:
                    file = entry[_DATA_FILE]
                    for at, metrics in zip(_METRICS, typed(file[_TIGHT]), strict=True):
                        file[at] = metrics or file[at] if at != _TIGHT else metrics
                added_by = manifest.added_snapshot_id if entry[_SNAPSHOT] is None else entry[_SNAPSHOT]
                yield _Record(entry[_DATA_FILE], inherited if sequence is None else sequence, added_by, names)


def _delete_entries(io: LakeIO, manifest: ManifestFile) -> Iterator[Entry]:
    for file, sequence, _, _ in _records(io, manifest):
        low, high = ((dict(file[at] or {})).get(PATH_ID) for at in (_LOWER, _UPPER))
        offset, size = _at(file, _CONTENT_OFFSET), _at(file, _CONTENT_SIZE)
        yield Entry(
            _CONTENTS.get(file[_CONTENT] or 0, "DATA"),
            file[_PATH],
            io.resolve(file[_PATH]),
            sequence,
            manifest.partition_spec_id,
            _values(file[_PARTITION]),
            str(file[_FORMAT]).upper(),
            int(file[_ROWS]),
            int(file[_SIZE]),
            tuple(_at(file, _EQUALITY_IDS) or ()),
            _at(file, _REFERENCED),
            None if offset is None or size is None else (offset, size),
            (None if low is None else bytes(low), None if high is None else bytes(high)),
        )


def _at(file: list[Any], position: int) -> Any:
    return file[position] if len(file) > position else None


def _values(partition: Any) -> tuple[Any, ...]:
    return tuple(partition[i] for i in range(len(partition)))


def _blocks(io: LakeIO, manifest: ManifestFile) -> Iterator[tuple[Files, Columns]]:
    block = _Block()
    for record in _records(io, manifest):
        block.add(record)
        if len(block.paths) == BLOCK:
            yield block.files(io, manifest.partition_spec_id), block.columns()
            block = _Block()
    if block.paths:
        yield block.files(io, manifest.partition_spec_id), block.columns()


@dataclass(slots=True)
class _Block:
    """Collects the data files of one block."""

    paths: list[str] = field(default_factory=list)
    measures: list[tuple[int, int, int, str, int]] = field(default_factory=list)
    partitions: dict[str, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)  # by text, see `Entry.scope`
    names: Mapping[int, str] = field(default_factory=dict)
    added_by: list[int | None] = field(default_factory=list)
    maps: tuple[_Maps, ...] = field(default_factory=lambda: tuple(_Maps() for _ in _MAPS))

    def add(self, record: _Record) -> None:
        file, sequence, added_by, self.names = record
        self.added_by.append(added_by)
        values = _values(file[_PARTITION])
        partition, _ = self.partitions.setdefault(repr(values), (len(self.partitions), values))
        for maps, at in zip(self.maps, _MAPS, strict=True):
            if (entries := _at(file, at)) is not None:
                maps.add(len(self.paths), entries)
        self.paths.append(file[_PATH])
        self.measures.append((file[_ROWS], file[_SIZE], sequence, file[_FORMAT], partition))

    def files(self, io: LakeIO, spec_id: int) -> Files:
        rows, sizes, sequences, formats, partition_of = zip(*self.measures, strict=True)
        paths = pa.array(self.paths, pa.string())
        resolved = [io.resolve(path) for path in self.paths]
        return Files(
            paths,
            paths if resolved == self.paths else pa.array(resolved, pa.string()),
            pa.array(rows, pa.int64()),
            pa.array(sizes, pa.int64()),
            pa.array(sequences, pa.int64()),
            pc.utf8_upper(pa.array(formats, pa.string())),
            spec_id,
            tuple(values for _, values in self.partitions.values()),
            pa.array(partition_of, pa.int32()),
            self.names,
            pa.array(self.added_by, pa.int64()),
        )

    def columns(self) -> Columns:
        count = len(self.paths)
        nulls, nans, lower, upper, values, tight, sizes = (metrics.arrays(count) for metrics in self.maps)
        records = tuple(measures[0] for measures in self.measures)
        columns = {}
        for field_id in sorted({*nulls, *nans, *lower, *upper, *values, *sizes}):
            none, no_bytes = pa.nulls(count, pa.int64()), pa.nulls(count, pa.binary())
            low, high = lower.get(field_id), upper.get(field_id)
            metrics = Metrics(
                pa.array(_any(count, [kind.get(field_id) for kind in (values, nulls, lower, upper)])),
                none if field_id not in nulls else pa.array(nulls[field_id], pa.int64()),
                none if field_id not in nans else pa.array(nans[field_id], pa.int64()),
                no_bytes if low is None else pa.array(low, pa.binary()),
                no_bytes if high is None else pa.array(high, pa.binary()),
                pa.array(tight.get(field_id) or [None] * count, pa.bool_()),
                none if field_id not in sizes else pa.array(sizes[field_id], pa.int64()),
                _left_out(values.get(field_id), records),
            )
            columns[field_id] = metrics
        return columns


def _left_out(values: Sequence[Any] | None, records: tuple[int, ...]) -> pa.Array | None:
    """The rows of files that counts of values leave out; of repeated fields there are more values than rows."""
    if values is None or tuple(values) == records:  # as of nearly all columns
        return None
    rows = pc.subtract(pa.array(records, pa.int64()), pa.array(values, pa.int64()))
    rows = pc.max_element_wise(rows, 0)  # 0 where values are not counted
    return rows if pc.any(pc.greater(rows, 0)).as_py() else None


def _any(count: int, kinds: Sequence[Sequence[Any] | None]) -> Any:
    """Mask of the rows in which at least one of the columns has a value."""
    is_known: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
    for values in kinds:
        if values is None:
            continue
        if None not in values:
            is_known[:] = True
            break
        is_known |= np.fromiter((value is not None for value in values), np.bool_, count)
    return is_known


class _Maps:
    """Collects a map of field id → value per file, and converts them to columns; optimized for maps with equal keys."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], tuple[list[int], list[Sequence[Any]]]] = {}

    def add(self, row: int, entries: Mapping[int, Any]) -> None:
        flat: Sequence[Any] = entries._contents if isinstance(entries, LazyDict) else ()
        if len(flat) == 1:  # not decoded yet: alternating keys and values
            keys, values = tuple(flat[0][::2]), flat[0][1::2]
        else:
            keys, values = tuple(entries), tuple(entries.values())
        group = self._groups.get(keys)
        if group is None:
            group = self._groups[keys] = [], []
        group[0].append(row)
        group[1].append(values)

    def arrays(self, count: int) -> dict[int, Sequence[Any]]:
        """Field id → values, one per file (`count` files), None if missing."""
        arrays: dict[int, Any] = {}
        for keys, (rows, values) in self._groups.items():
            for field_id, column in zip(keys, zip(*values, strict=True), strict=True):
                if len(rows) == count:
                    arrays[field_id] = column
                    continue
                sparse = arrays.setdefault(field_id, [None] * count)
                for row, value in zip(rows, column, strict=True):
                    sparse[row] = value
        return arrays


@lru_cache(maxsize=64)
def _field_names(schema: str) -> Mapping[int, str]:
    """Field id → its own name, for all fields of the schema of a manifest. Files with field ids have no others."""
    names: dict[int, str] = {}

    def note(item: dict[str, Any]) -> dict[str, Any]:
        for key, name in (("id", item.get("name")), *((f"{name}-id", name) for name in ("element", "key", "value"))):
            if isinstance(item.get(key), int):
                names[item[key]] = str(name)
        return item

    try:
        json.loads(schema, object_hook=note)
    except ValueError:
        return {}
    return names
