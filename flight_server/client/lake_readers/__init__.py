"""Readers of a scan's files by libraries of the table's format, which apply row-level deletes and find renamed columns.

`reader_of` opens the one for a format. A library is loaded when it is needed; the client requires none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs


class CannotRead(ValueError):
    """No library reads these files; the message says why."""


@dataclass(frozen=True)
class KeptFiles:
    """The files that a scan kept, and what is known of their table.

    Attributes:
        columns: `path` and `id` of the columns that are read.
        paths: Path → live rows of the file, None where not known.
        deleted_from: Paths of the files to which row-level deletes apply.
        place: `location` of the table and its `metadata_location`, or None.
        filesystem: File system of the paths; None for the one that their scheme names.
        as_parquet: Reads the files by the names of their columns, without regard to deletes: a dataset whose fragments
            are in the order of `paths`.
    """

    snapshot_id: int
    columns: Sequence[Mapping[str, Any]]
    paths: Mapping[str, int | None]
    deleted_from: frozenset[str]
    place: Mapping[str, str | None]
    filesystem: fs.FileSystem | None
    as_parquet: Callable[[], ds.FileSystemDataset]

    @property
    def names(self) -> list[str]:
        """Names of the top-level columns."""
        return list(dict.fromkeys(column["path"][0] for column in self.columns))


class LakeReader(Protocol):
    """Reads the live rows of a scan's files."""

    schema: pa.Schema

    def batches(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Reads columns of all live rows.

        Args:
            filter: A condition whose columns are among `columns`; rows that do not satisfy it may be left out.

        Raises:
            CannotRead: The files have other rows than the server knows, or the library fails.
        """
        ...


_READERS: Final = {
    "delta": ("deltalake", "flight_server.client.lake_readers.delta"),
    "iceberg": ("pyiceberg", "flight_server.client.lake_readers.iceberg"),
}
"""Name of a format → the library that reads it, and the module with its `reader`."""


def has_reader(format: str) -> bool:
    """True if there may be a library that reads the format."""
    return format in _READERS


def reader_of(format: str, kept: KeptFiles) -> LakeReader:
    """Opens the reader of a format.

    Raises:
        CannotRead: There is none, its library is not installed, or it does not read such a table.
    """
    if format not in _READERS:
        raise CannotRead(f"no library of Python reads format {format} here")
    library, module = _READERS[format]
    if find_spec(library) is None:
        raise CannotRead(f"{library} reads them, and is not installed: pip install {library}")
    reader: LakeReader = import_module(module).reader(kept)
    return reader


def plain(path: str) -> str:
    """A path or URL of a file without its scheme, by which two texts for one file are compared."""
    bare = re.sub(r"^(file:(//)?|[a-z0-9+]+://)", "", path)
    is_local = bare == path or path.startswith("file:")
    return unquote(bare) if is_local and "%" in bare and not Path(bare).exists() else bare


def checked(batches: Iterable[pa.RecordBatch], rows: int | None, files: str) -> Iterator[pa.RecordBatch]:
    """Passes batches on, and counts their rows.

    Args:
        rows: The number of rows that there must be; None if it is not known.
        files: Names the files, for the message.

    Raises:
        CannotRead: There are others.
    """
    found = 0
    for batch in batches:
        found += batch.num_rows
        yield batch
    if rows is not None and found != rows:
        raise CannotRead(f"{files}: {found} rows were read, and {rows} are known to be left by row-level deletes")
