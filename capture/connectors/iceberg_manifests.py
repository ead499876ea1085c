"""Manifests, streamed: the live files of a snapshot and the bounds that Iceberg keeps of their columns.

pyiceberg's own planning refuses equality deletes and hides where a deletion vector lies, so the entries are read here
with its Avro reader and the v3 schema.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro.file import AvroFile
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from capture.connectors.iceberg_io import LakeIO
from capture.connectors.iceberg_schema import Leaf
from store.logical_types import to_arrow

TRUNCATED = 16
"""Iceberg's default `truncate(16)`: code points of a string, bytes of a binary."""

# Positions in a v3 data file record, of fields that pyiceberg has no accessor for.
_REFERENCED, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
_DAY_US = 86_400_000_000
# Types whose bounds are numbers as they stand; floats are not, for NaN is no bound.
_STORED: Mapping[type, np.dtype[Any]] = {
    IntegerType: np.dtype("<i4"), DateType: np.dtype("<i4"), LongType: np.dtype("<i8"),
    TimestampType: np.dtype("<i8"), TimestamptzType: np.dtype("<i8"),
}  # fmt: skip
_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Entry:
    """A live data or delete file. `path` is as the metadata has it, `location` where the file is now."""

    content: str
    path: str
    location: str
    sequence: int
    spec_id: int
    partition: tuple[Any, ...]
    file: DataFile
    known_ids: frozenset[int]

    @property
    def scope(self) -> tuple[int, tuple[Any, ...]]:
        return self.spec_id, self.partition

    @property
    def format(self) -> str:
        return str(self.file.file_format.value)

    @property
    def rows(self) -> int:
        return int(self.file.record_count)

    @property
    def size(self) -> int:
        return int(self.file.file_size_in_bytes)

    @property
    def referenced_data_file(self) -> str | None:
        path: str | None = _late(self.file, _REFERENCED)
        return path

    @property
    def blob(self) -> tuple[int, int] | None:
        """Offset and size of a deletion vector within its file."""
        offset, size = _late(self.file, _CONTENT_OFFSET), _late(self.file, _CONTENT_SIZE)
        return None if offset is None or size is None else (offset, size)


def _late(file: DataFile, position: int) -> Any:
    return file._data[position] if len(file._data) > position else None


def manifests(io: LakeIO, snapshot: Snapshot | None) -> list[ManifestFile]:
    """The manifests of a snapshot. Not through pyiceberg's process-wide cache, whose key is a path: the same path may
    be another table where tables were moved."""
    return list(read_manifest_list(io.new_input(snapshot.manifest_list))) if snapshot else []


def entries(io: LakeIO, manifest_files: Sequence[ManifestFile], content: ManifestContent) -> Iterator[Entry]:
    """The live entries of the data or of the delete manifests."""
    for manifest in manifest_files:
        if manifest.content == content:
            yield from _entries(io, manifest)


def _entries(io: LakeIO, manifest: ManifestFile) -> Iterator[Entry]:
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        known_ids = _field_ids(reader.header.meta.get("schema", ""))
        for entry in reader:
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            file, sequence = entry.data_file, entry.sequence_number
            if sequence is None:  # inherited; v1 has none
                sequence = manifest.sequence_number or 0
            partition = file.partition
            yield Entry(
                DataFileContent(file.content or 0).name,
                file.file_path,
                io.resolve(file.file_path),
                sequence,
                manifest.partition_spec_id,
                tuple(partition[i] for i in range(len(partition))),
                file,
                known_ids,
            )


@lru_cache(maxsize=64)
def _field_ids(schema: str) -> frozenset[int]:
    """Every field id of the schema a manifest was written under: a file of it cannot hold any other."""
    found: set[int] = set()

    def note(item: dict[str, Any]) -> dict[str, Any]:
        found.update(item[key] for key in ("id", "element-id", "key-id", "value-id") if isinstance(item.get(key), int))
        return item

    try:
        json.loads(schema, object_hook=note)
    except ValueError:
        return frozenset()
    return frozenset(found)


# Bounds.


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a manifest says of the columns of one file, by field id."""

    values: Mapping[int, int]
    nulls: Mapping[int, int]
    nans: Mapping[int, int]
    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]

    @classmethod
    def of(cls, entry: Entry) -> Metrics:
        file = entry.file
        kinds = (file.value_counts, file.null_value_counts, file.nan_value_counts, file.lower_bounds, file.upper_bounds)
        return cls(*(kind or {} for kind in kinds))

    def know(self, field_id: int) -> bool:
        """Whether there is any metric of a column."""
        return field_id in self.nulls or any(field_id in kind for kind in (self.values, self.lower, self.upper))


Decoder = Callable[[bytes | None], tuple[Any, bool]]


def decoder(leaf: Leaf, cut: int, *, upper: bool) -> Decoder:
    """What turns the bounds of a column into values as pyiceberg holds them, and tells whether each is exact.

    Args:
        leaf: The column. A bound is of its type or of the one it was promoted from.
        cut: From this length on a string or binary bound may have been cut.
        upper: Whether these are upper bounds.
    """
    whole = {IntegerType: _INT, DateType: _INT, LongType: _LONG}.get(type(leaf.type))

    def decoded(raw: bytes | None) -> tuple[Any, bool]:
        if raw is None:
            return None, False
        if whole is not None and len(raw) == whole.size:
            return whole.unpack(raw)[0], True
        return _decoded(bytes(raw), leaf, cut, upper)

    return decoded


def _decoded(raw: bytes, leaf: Leaf, cut: int, upper: bool) -> tuple[Any, bool]:
    type = leaf.type
    try:
        if isinstance(type, StringType):
            text = raw.decode()
            return text, len(text) < cut
        if isinstance(type, BinaryType | FixedType):
            # A cut upper bound loses its trailing 0xFF when it is incremented, so its length tells nothing.
            whole = len(raw) == len(type) <= cut if isinstance(type, FixedType) else False
            return raw, whole or (len(raw) < cut and not upper)
        if (
            isinstance(type, TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType)
            and len(raw) == 4
        ):
            return from_bytes(DateType(), raw) * _DAY_US, True
        value = from_bytes(type, raw)
        if isinstance(type, TimestampNanoType | TimestamptzNanoType):
            micros, rest = divmod(value, 1000)
            return micros + (1 if upper and rest else 0), not rest
        if isinstance(type, FloatType | DoubleType) and value != value:
            return None, False  # NaN is no bound: old writers let it in
        return value, True
    except (ValueError, TypeError, ArithmeticError, struct.error):
        return None, False


def decode_all(raw: Sequence[bytes | None], leaf: Leaf, cut: int) -> tuple[pa.Array, pa.Array] | None:
    """Bounds of one column in many files, and which are exact; None for types and values that need a closer look."""
    if isinstance(leaf.type, StringType):
        try:
            texts = pa.array(raw, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return None
        return texts, pc.fill_null(pc.less(pc.utf8_length(texts), cut), False)
    stored = _STORED.get(type(leaf.type))
    if stored is None or any(value is not None and len(value) != stored.itemsize for value in raw):
        return None
    blank = bytes(stored.itemsize)
    numbers = np.frombuffer(b"".join([blank if value is None else value for value in raw]), stored)
    missing = np.array([value is None for value in raw], np.bool_)
    values = pa.array(numbers, mask=missing)
    if isinstance(leaf.type, DateType | TimestampType | TimestamptzType):
        values = values.cast(to_arrow(leaf.logical))
    return values, pa.repeat(True, len(raw))


def cut_length(properties: dict[str, str], name: str) -> int:
    """From which length on a bound of the column may be a cut one: the least any known setting says."""
    modes = (properties.get(f"write.metadata.metrics.column.{name}"), properties.get("write.metadata.metrics.default"))
    lengths = [int(mode[9:-1]) for mode in modes if mode and mode.startswith("truncate(") and mode[9:-1].isdigit()]
    return min([TRUNCATED, *lengths])
