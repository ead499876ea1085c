"""Adapters for pypaimon: our file systems, and suppressed warnings."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow.fs as pafs
from pypaimon.common.options import Options
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO
from pypaimon.schema.schema_manager import SchemaManager
from pypaimon.table.file_store_table import FileStoreTable

from capture.connectors.storage.places import Place, Unreadable, read_each

logging.getLogger("pypaimon").setLevel(logging.ERROR)


class _FileIO(PyArrowFileIO):
    """Maps addresses to paths of our file system; pypaimon does not support containers of Azure, nor `?` and `#` in the
    name of an object."""

    def to_filesystem_path(self, path: str) -> str:
        if "://" not in path:
            return path
        host, _, rest = path.partition("://")[2].partition("/")
        return f"{host.partition('@')[0]}/{re.sub('/+', '/', rest)}".rstrip("/")


def open_table(place: Place) -> Any:
    """Opens a table with pypaimon on our file system, which has our timeouts and options."""
    if place.is_local:
        return FileStoreTable.from_path(place.path)
    # created for an unused S3 endpoint, since this opens no connection before its file system is replaced
    nowhere = {"fs.s3.endpoint": "localhost", "fs.s3.region": "none", "fs.s3.accessKeyId": "-"}
    file_io = _FileIO("s3://none/", Options(nowhere | {"fs.s3.accessKeySecret": "-"}))
    file_io.filesystem = place.file_system
    schema = SchemaManager(file_io, place.name).latest()
    if schema is None:
        raise Unreadable("it has no schema")
    from pypaimon.common.identifier import Identifier

    return FileStoreTable(file_io, Identifier("default", "table"), place.name, schema)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses deprecation warnings of pyarrow and polars caused by pypaimon."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def file_names(table: Any, directory: str) -> list[str]:
    """Names of the files of a table's directory; none if that does not exist."""
    if not table.file_io.exists(directory):
        return []
    entries = table.file_io.list_status(directory) or ()
    return [str(entry.path).rpartition("/")[2] for entry in entries if entry.type == pafs.FileType.File]


def snapshot_ids(table: Any) -> list[int]:
    """Ids of the existing snapshots, from their file names."""
    names = file_names(table, table.snapshot_manager().snapshot_dir)
    return [int(match[1]) for name in names if (match := re.fullmatch(r"snapshot-(\d{1,18})", name))]


def read_snapshots(manager: Any, ids: Sequence[int]) -> dict[int, Any]:
    """Reads snapshots in threads of ours, whose requests count; the library's own would look for each file twice, and
    take one that cannot be read for expired.

    Args:
        manager: The snapshot manager of a table.
        ids: Ids of the snapshots.

    Returns:
        Id → snapshot; None for one that is missing or malformed.

    Raises:
        OSError: A snapshot cannot be read.
    """

    def read(snapshot_id: int) -> Any:
        try:
            return manager.get_snapshot_by_id(snapshot_id)
        except OSError:
            raise
        except Exception:  # the library names no errors of what it cannot parse
            return None

    return dict(zip(ids, read_each(read, ids), strict=True))
