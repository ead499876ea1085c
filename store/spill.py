"""Rows on their way into the store: in memory while few, in a memory-mapped file beside the database once many.

The file has no name: it is gone with the last table that points into it, or with the process, however that ends.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from store.errors import ResourceExhausted

SPILL_BYTES = 256 << 20


class SpillBuffer:
    """A table that grows by parts of one schema."""

    def __init__(self, schema: pa.Schema, directory: Path | None, spill_bytes: int = SPILL_BYTES):
        self._schema, self._directory, self._spill_bytes = schema, directory, spill_bytes
        self._parts: list[pa.Table] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, rows: pa.Table) -> None:
        """Takes rows; ResourceExhausted where there is no room for them."""
        self._parts.append(rows)
        self._held += rows.nbytes
        if self._held > self._spill_bytes and self._directory is not None:
            self._spill()

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  it lives as long as its rows
                self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), self._schema)
            for part in self._parts:
                self._writer.write_table(part)
            self._file.flush()
        except OSError as trouble:
            raise ResourceExhausted(f"the rows cannot be held until they are stored: {trouble.strerror}") from None
        self._parts, self._held = [], 0

    def table(self) -> pa.Table:
        """All rows; the buffer is spent after it."""
        if self._file is None:
            table, self._parts = pa.concat_tables([self._schema.empty_table(), *self._parts]), []
            return table
        self._spill()
        self._writer.close()
        self._file.flush()
        # the map keeps the file, the buffer the map, and the table the buffer
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).read_all()
        self._file.close()
        self._file = None
        return table
