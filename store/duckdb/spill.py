"""A spill buffer for the rows of a put: in memory while small, then in a memory-mapped file beside the database.

The file has no name: it disappears with the last table that refers to it, or with the process, however that ends.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from store.model.errors import ResourceExhausted

SPILL_BYTES = 256 << 20  # size in memory above which rows go to the file


class SpillBuffer:
    """Collects tables of one schema; spills to a file in `directory`, never if that is None."""

    def __init__(self, schema: pa.Schema, directory: Path | None, spill_bytes: int = SPILL_BYTES):
        self._schema, self._directory, self._spill_bytes = schema, directory, spill_bytes
        self._parts: list[pa.Table] = []
        self._first: pa.Table | None = None
        self._memory_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, rows: pa.Table) -> None:
        """Adds rows.

        Raises:
            ResourceExhausted: The file cannot be written.
        """
        if self._first is None and rows.num_rows:
            self._first = rows.slice(0, 1)
        self._parts.append(rows)
        self._memory_bytes += rows.get_total_buffer_size()
        if self._memory_bytes > self._spill_bytes and self._directory is not None:
            self._spill()

    @property
    def first(self) -> pa.Table:
        """Its first row, if it has one."""
        return self._schema.empty_table() if self._first is None else self._first

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  open as long as its rows are used
                self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), self._schema)
            for part in self._parts:
                self._writer.write_table(part)
            self._file.flush()
        except OSError as error:
            raise ResourceExhausted(f"the rows cannot be written to the spill file: {error.strerror}") from None
        self._parts, self._memory_bytes = [], 0

    def table(self) -> pa.Table:
        """All rows; the buffer cannot be used afterwards."""
        if self._file is None:
            parts, self._parts = self._parts, []
            return parts[0] if len(parts) == 1 else pa.concat_tables([self._schema.empty_table(), *parts])
        self._spill()
        self._writer.close()
        self._file.flush()
        # the table keeps the buffer alive, the buffer the map, and the map the file
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).read_all()
        self._file.close()
        self._file = None
        return table
