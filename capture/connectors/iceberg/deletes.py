"""Row-level deletes of an Iceberg snapshot: finds those that apply to a data file, and the rows they delete.

Position deletes and deletion vectors apply to data files with `data.seq <= delete.seq`, equality deletes to those with
`data.seq < delete.seq`, both only within the same partition and spec, except that equality deletes of an unpartitioned
spec apply everywhere. A deletion vector replaces the position deletes of its file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from capture.connectors.iceberg.io import LakeIO
from capture.connectors.iceberg.manifests import PATH_ID, POSITION_ID, Entry
from capture.connectors.iceberg.schema import FileLayout
from capture.connectors.rows.roaring import Rows, positions, unframed
from capture.connectors.storage.places import Unreadable
from store.duckdb.lru import LruCache

_PATH = NestedField(PATH_ID, "file_path", StringType(), required=True)
_POSITION = NestedField(POSITION_ID, "pos", LongType(), required=True)
CACHED_POSITIONS = 4_000_000  # cached positions of delete files that apply to many data files, 32 MB


class DeleteIndex:
    """Index of the live delete files of a snapshot by data file."""

    def __init__(self, io: LakeIO, metadata: TableMetadata, deletes: Iterable[Entry]):
        self._io, self._metadata = io, metadata
        self._vectors: dict[str, list[Entry]] = defaultdict(list)
        self._by_path: dict[str, list[Entry]] = defaultdict(list)
        self._by_scope: dict[tuple[int, str], list[Entry]] = defaultdict(list)
        self._equality: dict[tuple[int, str], list[Entry]] = defaultdict(list)
        self._everywhere: list[Entry] = []
        self._unpartitioned = {spec.spec_id for spec in metadata.partition_specs if _is_unpartitioned(spec)}
        self._positions: LruCache[str, dict[str, Rows]] = LruCache(CACHED_POSITIONS)
        self._layouts: dict[str, FileLayout] = {}
        for entry in deletes:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        if entry.content == "EQUALITY_DELETES":
            if entry.spec_id in self._unpartitioned:
                self._everywhere.append(entry)
            else:
                self._equality[entry.scope].append(entry)
        elif entry.format == "PUFFIN":
            if not entry.referenced_data_file:
                raise Unreadable("a deletion vector that names no data file")
            self._vectors[self._io.resolve(entry.referenced_data_file)].append(entry)
        elif path := entry.referenced_data_file or _only_path(entry):
            self._by_path[self._io.resolve(path)].append(entry)
        else:
            self._by_scope[entry.scope].append(entry)

    def positional(self, data: Entry) -> list[Entry]:
        """The position delete files or the deletion vector that may apply to a data file."""
        vectors = [v for v in self._vectors.get(data.location, ()) if v.sequence >= data.sequence]
        if vectors:
            return [max(vectors, key=lambda vector: vector.sequence)]
        deletes = [d for d in self._by_path.get(data.location, ()) if d.sequence >= data.sequence]
        scoped = self._by_scope.get(data.scope, ())
        return deletes + [d for d in scoped if d.sequence >= data.sequence and _may_contain(d, data.path)]

    def equality(self, data: Entry) -> list[Entry]:
        """The equality delete files that apply to a data file."""
        candidates = [*self._everywhere, *self._equality.get(data.scope, ())]
        return [d for d in candidates if d.sequence > data.sequence]

    def deleted_rows(self, data: Entry) -> pa.Array | None:
        """Ascending positions of rows deleted by position deletes or a deletion vector; None if there are none."""
        parts = [self._positions_for(delete, data) for delete in self.positional(data)]
        parts = [part for part in parts if len(part)]
        if not parts:
            return None
        rows = np.unique(np.concatenate(parts))
        rows = rows[(rows >= 0) & (rows < data.rows)]
        return pa.array(rows, pa.int64()) if len(rows) else None

    def _positions_for(self, delete: Entry, data: Entry) -> Rows:
        if delete.format == "PUFFIN":
            return _vector(self._io, delete)
        by_path = self._positions.get(delete.location)
        if by_path is None:
            by_path = self._read_positions(delete)
            size = min(sum(map(len, by_path.values())), CACHED_POSITIONS)  # always cache the last one
            self._positions.put(delete.location, by_path, size)
        return by_path.get(data.location, np.empty(0, np.int64))

    def _read_positions(self, delete: Entry) -> dict[str, Rows]:
        """Data file → positions, from one position delete file."""
        table = self._path_and_position(delete)
        encoded = table[0].combine_chunks().cast(pa.string()).dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        rows = table[1].to_numpy().astype(np.int64)[order]
        edges = np.searchsorted(codes[order], np.arange(1, len(encoded.dictionary)))
        split = np.split(rows, edges)
        return {self._io.resolve(path): part for path, part in zip(encoded.dictionary.to_pylist(), split, strict=False)}

    def _path_and_position(self, delete: Entry) -> pa.Table:
        """The two columns of a position delete file, which has the format that the table's files had when it was
        written."""
        names = [_PATH.name, _POSITION.name]
        if delete.format == "AVRO":
            with AvroFile[Record](self._io.new_input(delete.path), Schema(_PATH, _POSITION)) as records:
                rows = [(each[0], each[1]) for each in records]
            types = pa.string(), pa.int64()
            return pa.table([pa.array([row[i] for row in rows], type) for i, type in enumerate(types)], names)
        if delete.format == "ORC":
            from pyarrow import orc  # some builds of pyarrow lack it

            with self._io.new_input(delete.path).open() as stream:
                return pa.table(orc.ORCFile(stream).read(names)).select(names)
        with open_parquet(self._io, delete) as file:
            ids = FileLayout.of(file.schema_arrow, self._metadata).paths
            names = [ids.get(PATH_ID, names[0]), ids.get(POSITION_ID, names[1])]
            return file.read(columns=names).select(names)

    def layout(self, delete: Entry) -> FileLayout:
        """Paths of the columns in an equality delete file."""
        if delete.location not in self._layouts:
            with open_parquet(self._io, delete) as file:
                self._layouts[delete.location] = FileLayout.of(file.schema_arrow, self._metadata)
        return self._layouts[delete.location]


def open_parquet(io: LakeIO, entry: Entry) -> pq.ParquetFile:
    """Opens a data or delete file; errors as of `open_file`."""
    return pq.ParquetFile(open_file(io, entry), pre_buffer=False)


def open_file(io: LakeIO, entry: Entry) -> pa.NativeFile:
    """Opens a data or delete file for reads at any position.

    Raises:
        Unreadable: The file is not a Parquet file.
    """
    if entry.format != "PARQUET":
        raise Unreadable(f"{entry.format} files cannot be read, only Parquet")
    file = io.new_input(entry.path).open()
    return file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, "r")  # of a FileIO of others


def _is_unpartitioned(spec: PartitionSpec) -> bool:
    """True without fields, and if all were dropped: v1 keeps them as void."""
    return all(isinstance(part.transform, VoidTransform) for part in spec.fields)


def _only_path(delete: Entry) -> str | None:
    """The data file of a position delete file, if its bounds show that it is only one; else None."""
    lower, upper = delete.path_bounds
    return lower.decode() if lower and lower == upper else None


def _may_contain(delete: Entry, path: str) -> bool:
    lower, upper = delete.path_bounds
    name = path.encode()
    return (lower is None or lower <= name) and (upper is None or upper >= name)


def _vector(io: LakeIO, delete: Entry) -> Rows:
    if delete.blob is None:
        raise Unreadable("a deletion vector without its offset and size")
    offset, size = delete.blob
    with io.new_input(delete.path).open() as stream:
        stream.seek(offset)
        blob = stream.read(size)
    try:
        rows = positions(unframed(blob))
    except ValueError as error:
        raise Unreadable(str(error)) from error
    if len(rows) != delete.rows:
        raise Unreadable(f"a deletion vector of {len(rows)} rows where the manifest says {delete.rows}")
    return rows
