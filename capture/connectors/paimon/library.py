"""Adapters for pypaimon: our file systems, and suppressed warnings."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pypaimon.common.options import Options
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO
from pypaimon.schema.schema_manager import SchemaManager
from pypaimon.table.file_store_table import FileStoreTable

from capture.connectors.storage.places import Place, Unreadable

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


def snapshot_ids(table: Any) -> list[int]:
    """Ids of the existing snapshots, from their file names."""
    manager = table.snapshot_manager()
    if not table.file_io.exists(manager.snapshot_dir):
        return []
    names = (str(file.path).rpartition("/")[2] for file in table.file_io.list_status(manager.snapshot_dir) or ())
    return [int(match[1]) for name in names if (match := re.fullmatch(r"snapshot-(\d{1,18})", name))]
