"""Plain Parquet: a file, a directory or a glob as one table."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from capture.connectors.storage.folder import Folder

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
SUFFIXES: Final = (".parquet", ".parq", ".pqt")
WILD: Final = re.compile(r"[*?\[]")
_LOGS: Final = frozenset({"_delta_log", ".hoodie"})  # directories of formats in whose tables not all files are live
_PARTITION: Final = re.compile(r"([^=/]+)=([^/]*)")


def holds_table(folder: Folder) -> bool:
    """True for a directory of data files, or of directories `key=value` of them."""
    if any(log in folder.folders for log in _LOGS):
        return False
    return any(map(is_data, folder.files)) or any(map(partition_of, folder.folders))


def holds_file(name: str) -> bool:
    """True for the name of a data file, hidden ones too."""
    return name.lower().endswith(SUFFIXES)


def is_data(name: str) -> bool:
    """True for names of data files; names with a leading dot or underscore are hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith((".", "_"))


def partition_of(folder: str) -> tuple[str, str | None] | None:
    """Key and value of a `key=value` directory; Hive's default value means null. None for other names."""
    match = _PARTITION.fullmatch(folder)
    if match is None or folder.startswith((".", "_")):
        return None
    value = unquote(match[2])
    return unquote(match[1]), None if value == HIVE_NULL else value
