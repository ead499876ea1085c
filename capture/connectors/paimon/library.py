"""The library for Paimon, brought to read tables through our file systems and to keep quiet."""

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
    """Names an object as our file system does; of Azure's containers the library knows nothing."""

    def to_filesystem_path(self, path: str) -> str:
        if self.filesystem.type_name != "abfs" or "://" not in path:
            return str(super().to_filesystem_path(path))
        host, _, rest = path.partition("://")[2].partition("/")
        return f"{host.partition('@')[0]}/{rest}"


def open_table(place: Place) -> Any:
    """The library's table on our file system, which has our time-outs and every option's spelling."""
    if place.is_local:
        return FileStoreTable.from_path(place.path)
    # Made for an S3 that is never asked: only then does it open nothing before ours takes its place.
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
    """The library uses what newer pyarrow and polars warn about; nobody here can mend that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def snapshot_ids(table: Any) -> list[int]:
    """Ids of the existing snapshots, by the names of their files."""
    manager = table.snapshot_manager()
    if not table.file_io.exists(manager.snapshot_dir):
        return []
    names = (str(file.path).rpartition("/")[2] for file in table.file_io.list_status(manager.snapshot_dir) or ())
    return [int(match[1]) for name in names if (match := re.fullmatch(r"snapshot-(\d{1,18})", name))]
