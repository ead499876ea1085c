"""Reader of Parquet files: live rows only, one block of columns at a time, dictionaries kept if worthwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.connectors.footers import writers
from capture.connectors.footers.leaf_types import writer_of
from capture.connectors.footers.metadata import ENCRYPTED, read_metadata
from capture.connectors.rows.column_values import DeletedKeys, Mask, leaf, plain
from capture.connectors.spi import COUNTED, ScanColumn, ScanTask
from capture.connectors.storage.places import open_place
from capture.connectors.task_readers import (
    BLOCK_BYTES,
    READ_ERRORS,
    ColumnValues,
    TaskReader,
    constant,
    error_text,
)
from store.model import logical_types
from store.model.logical_types import Kind, LogicalType
from store.model.names import dotted_name

_LOCAL_BLOCK_BYTES: Final = 4 << 20  # for local files: reads have no latency, and small blocks stay in the CPU cache
_DICTIONARY_BYTES: Final = 4  # encoded bytes per value up to which a string column is read as a dictionary
_TEXTS: Final = (LogicalType(Kind.STRING), LogicalType(Kind.BINARY))
_BATCH_ROWS: Final = 1 << 17  # rows decoded into one array
_FEW_ROWS: Final = 1000  # rows of a file below which reading it in another form does not pay
_NANOSECONDS_US: Final = (1 << 63) // 1000 - 1  # microseconds around 1970 that 64 bits of nanoseconds can hold


class ParquetReader(TaskReader):
    """A Parquet file, read with pyarrow in this thread."""

    def __init__(self, task: ScanTask):
        self._task = task
        self._opened: list[Any] = []
        self._place = open_place(task.location, task.storage)
        # a local file is not mapped: its pages would count as this process's memory, and one cut short would end it
        self._bytes = self._place.open()
        self._opened.append(self._bytes)
        found = read_metadata(self._bytes)
        if found.metadata.num_rows >= _FEW_ROWS:
            found = found.without_views
        self._metadata, self._encrypted, self._leaves = found.metadata, found.encrypted, found.leaves
        self._writer = writer_of(self._metadata)
        groups = range(self._metadata.num_row_groups)
        self._groups: list[int] | None = None
        if "row_groups" in task.arguments:
            self._groups = [group for group in task.arguments["row_groups"] if group in groups]
        self.row_groups = 0 if self._groups is None else len(self._groups)
        coded = self._coded(found.arrow_schema, {c.path for c in task.columns if c.path is not None})
        self._file = self._open(read_dictionary=coded)
        self._keep = self._live_mask()
        self.rows = self._physical_rows() if self._keep is None else int(np.count_nonzero(self._keep))

    def columns(self, wanted: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        inside: list[tuple[ScanColumn, int]] = []
        for column in wanted:
            if column.within is not None:
                yield self._constant_within(column, column.within)
            elif column.constant is not None or column.path is None:
                yield constant(column, self.rows)
            elif self._leaves.get(column.path) in self._encrypted:
                yield ColumnValues(column, None, error=ENCRYPTED)
            elif column.path in self._leaves:
                inside.append((column, self._size(column.path, compressed=False)))
            else:
                yield ColumnValues(column, None, error=f'the file has no column "{column.path}"')
        inside.sort(key=lambda pair: self._leaves[pair[0].path or ""])
        most = min(BLOCK_BYTES, _LOCAL_BLOCK_BYTES) if self._place.is_local else BLOCK_BYTES
        block: list[ScanColumn] = []
        size = 0
        for column, column_size in inside:
            if block and size + column_size > most:
                yield from self._block(block)
                block, size = [], 0
            block.append(column)
            size += column_size
        if block:
            yield from self._block(block)

    def _constant_within(self, column: ScanColumn, struct: str) -> ColumnValues:
        """A constant that is null where a struct, list or map of the file is null, as its smallest leaf tells."""
        inside = self._smallest_leaf(struct)
        try:
            if inside is None and column.logical_type in COUNTED:  # added after the file was written
                return constant(replace(column, constant=None), self.rows)
            if inside is None:
                raise KeyError(f'the file has no column "{dotted_name(struct)}"')
            valid = leaf(self._table([inside]), struct).is_valid()
            if self._keep is not None:
                valid = valid.filter(pa.array(self._keep))
            default = constant(column, 1).values
            assert default is not None
            return ColumnValues(column, pc.if_else(valid, default[0], pa.scalar(None, default.type)))
        except READ_ERRORS as error:
            return ColumnValues(column, None, error=error_text(error, self._task))

    def close(self) -> None:
        for opened in self._opened:
            opened.close()

    def _open(self, **options: Any) -> pq.ParquetFile:
        given = {
            "metadata": self._metadata,
            "pre_buffer": not self._place.is_local,
            "coerce_int96_timestamp_unit": "us",
        }
        file = pq.ParquetFile(self._bytes, **{**given, **options})
        self._opened.append(file)
        return file

    def _physical_rows(self) -> int:
        if self._groups is None:
            return int(self._metadata.num_rows)
        return sum(self._metadata.row_group(group).num_rows for group in self._groups)

    def _smallest_leaf(self, struct: str) -> str | None:
        """The smallest readable leaf of a struct, list or map; None if the file has none."""
        names = {struct, dotted_name(struct)}  # leaves of lists have no key
        below = tuple(f"{name}." for name in names)
        leaves = [
            path
            for path, at in self._leaves.items()
            if at not in self._encrypted and (path in names or path.startswith(below))
        ]
        return min(leaves, key=lambda path: self._size(path, compressed=False), default=None)

    def _coded(self, schema: pa.Schema, wanted: set[str]) -> list[str]:
        """Top-level string columns to read as dictionaries, because the file's encoding is small enough."""
        if self._metadata.num_rows < _FEW_ROWS:
            return []
        coded = []
        for path in wanted & self._leaves.keys():
            if self._leaves[path] in self._encrypted or self._physical_type(path) != "BYTE_ARRAY":
                continue
            place = schema.get_field_index(path)
            if "." in path or place < 0 or logical_types.from_arrow(schema.field(place).type) not in _TEXTS:
                continue
            if not all("DICTIONARY" in " ".join(chunk.encodings) for chunk in self._chunks(path)):
                continue  # pyarrow cannot read some other encodings as dictionaries
            if self._size(path, compressed=False) <= _DICTIONARY_BYTES * self._physical_rows():
                coded.append(path)
        return coded

    def _size(self, path: str, *, compressed: bool = True) -> int:
        chunks = self._chunks(path)
        return sum(chunk.total_compressed_size if compressed else chunk.total_uncompressed_size for chunk in chunks)

    def _chunks(self, path: str) -> list[Any]:
        groups = range(self._metadata.num_row_groups) if self._groups is None else self._groups
        return [self._metadata.row_group(group).column(self._leaves[path]) for group in groups]

    def _block(self, block: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        try:
            table = self._table([column.path or "" for column in block])
        except READ_ERRORS as error:
            if len(block) == 1:
                yield ColumnValues(block[0], None, error=error_text(error, self._task))
                return
            for column in block:  # retry one by one, because only one may be damaged
                yield from self._block([column])
            return
        for column in block:
            assert column.path is not None
            try:
                values = plain(leaf(table, column.path))
                if len(values) != self._physical_rows():  # pyarrow does not report missing pages
                    raise ValueError(f"the file is damaged: {len(values)} values for {self._physical_rows()} rows")
                values = self._in_calendar(column.path, self._precise(column.path, values))
                if self._keep is not None:
                    values = values.filter(pa.array(self._keep))
            except READ_ERRORS as error:
                yield ColumnValues(column, None, error=error_text(error, self._task))
                continue
            yield ColumnValues(column, values, 1, self._size(column.path))

    def _precise(self, path: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Adds the nanoseconds to INT96 timestamps, which are read as microseconds: nanoseconds overflow after 2262.

        Raises:
            ValueError: A timestamp has nanoseconds, and another is beyond their range.
        """
        if not pa.types.is_timestamp(values.type) or self._writer.is_spark or self._physical_type(path) != "INT96":
            return values
        nanos = leaf(self._table([path], self._open(coerce_int96_timestamp_unit="ns")), path)
        ticks = values.cast(pa.int64())
        # both wrap around in the same way, so that the difference is right even where the nanoseconds are not
        below = pc.subtract(nanos.cast(pa.int64()), pc.multiply(ticks, 1000))
        if not pc.any(pc.not_equal(below, 0), min_count=0).as_py():
            return values
        if pc.any(pc.greater(pc.abs(ticks), _NANOSECONDS_US), min_count=0).as_py():
            raise ValueError("it has INT96 timestamps with nanoseconds, and others that 64 bits of them cannot hold")
        return nanos

    def _in_calendar(self, path: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Rebases dates and timestamps of Spark's legacy calendar to the one that its readers use."""
        is_date = pa.types.is_date(values.type)
        if not (self._writer.legacy or self._writer.legacy_int96) or not (
            is_date or pa.types.is_timestamp(values.type)
        ):
            return values
        is_int96 = self._physical_type(path) == "INT96"
        if not (self._writer.legacy_int96 if is_int96 else self._writer.legacy):
            return values
        if not (is_date or is_int96 or values.type.tz):  # Spark's TIMESTAMP_NTZ has no legacy calendar
            return values
        stored = pa.date32() if is_date else pa.timestamp("us", values.type.tz)
        kept = values.cast(stored)
        ticks = kept.cast(pa.int32() if is_date else pa.int64()).cast(pa.int64())
        whole = ticks.fill_null(0).to_numpy()
        rebased = writers.rebased_days(whole) if is_date else writers.rebased_micros(whole, self._writer.zone)
        if rebased is whole:
            return values
        back = pa.array(rebased, mask=ticks.is_null().to_numpy())
        return pa.chunked_array([back.cast(pa.int32()).cast(stored) if is_date else back.cast(stored)])

    def _physical_type(self, path: str) -> str:
        return str(self._metadata.schema.column(self._leaves[path]).physical_type)

    def _table(self, paths: list[str], file: pq.ParquetFile | None = None) -> pa.Table:
        paths, file = list(map(dotted_name, paths)), file or self._file
        if self._physical_rows() > _BATCH_ROWS:  # one large array would double while it grows, and be given back after
            return pa.Table.from_batches(list(file.iter_batches(_BATCH_ROWS, self._groups, paths, use_threads=False)))
        if self._groups is None:
            return file.read(paths, use_threads=False)
        return file.read_row_groups(self._groups, paths, use_threads=False)

    def _live_mask(self) -> Mask | None:
        """Mask of the live rows; None if all are live."""
        task = self._task
        if task.deleted_rows is None and not task.equality_deletes:
            return None
        keep = np.ones(self._metadata.num_rows, np.bool_)
        if task.deleted_rows is not None:
            deleted = task.deleted_rows.to_numpy(zero_copy_only=False).astype(np.int64)
            keep[deleted[deleted < len(keep)]] = False
        if self._groups is not None:
            sizes = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
            starts = np.concatenate([[0], np.cumsum(sizes)])
            keep = np.concatenate([keep[starts[group] : starts[group + 1]] for group in self._groups] or [keep[:0]])
        if task.equality_deletes:
            keys = DeletedKeys(lambda path: open_place(path, task.storage).open())
            keep &= ~keys.mask(task.equality_deletes, len(keep), lambda path: leaf(self._table([path]), path))
        return keep
