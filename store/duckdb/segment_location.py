"""The place of a database's segments and the name of their owner, as its file says; copies of them for a backup."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import duckdb

from store.duckdb.backup import SEGMENTS_SETTING
from store.duckdb.layout import Connection
from store.duckdb.segment_buckets import files_at
from store.duckdb.segment_files import SegmentFiles
from store.duckdb.segments import Segments

_OWNER: Final = "segments_owner"  # in the table `settings`: the name that is in the directory, too
_SUFFIX: Final = ".segments"


def of_file(connection: Connection, path: Path) -> Segments:
    """The segments of a database file that is open: where the file says, else beside it."""
    named = connection.execute("SELECT value FROM settings WHERE name = ?", [SEGMENTS_SETTING]).fetchall()
    found = Segments(files_at(named[0][0] if named else beside(path), beside(path)))
    found.load(connection)
    return found


def name_location(connection: Connection, path: Path, location: str) -> None:
    """Notes in a database file where its segments lie, inside of a write."""
    connection.execute("DELETE FROM settings WHERE name = ?", [SEGMENTS_SETTING])
    if location != str(beside(path).absolute()):
        connection.execute("INSERT INTO settings VALUES (?, ?)", [SEGMENTS_SETTING, location])


def owner(connection: Connection) -> str:
    """The name by which a database owns the directory of its segments; inside of a write, which may give it one."""
    owners = connection.execute("SELECT value FROM settings WHERE name = ?", [_OWNER]).fetchall()
    if owners:
        return str(owners[0][0])
    name = uuid.uuid4().hex
    connection.execute("INSERT INTO settings VALUES (?, ?)", [_OWNER, name])
    return name


def beside(path: Path) -> Path:
    """The directory of the segments of a database file, unless another place is named; of their copies, if that is a
    bucket."""
    return path.with_name(path.name + _SUFFIX)


def copy(source: Segments, database: Path, target: Path) -> int:
    """Copies the files of a database's segments to where those of another one lie.

    Args:
        database: A copy of the database.
        target: Path that the copy gets.

    Returns:
        Their size in bytes.

    Raises:
        OSError: They cannot be copied.
        SegmentError: One is missing or damaged.
    """
    with duckdb.connect(str(database), read_only=True) as connection:
        wanted = Segments(None).find(connection)
    files, size = SegmentFiles(beside(target)), 0
    source.files.bring({segment.name: segment.digest for segment in wanted})
    for segment in wanted:
        source.files.check(segment.name, segment.digest)
        files.prepare()
        data = source.files.data(segment.name)
        assert data is not None, "it has just been checked"
        files.store(segment.name, data)
        size += len(data)
    return size


def used(connection: Connection) -> set[str]:
    """Names of the files of all segments."""
    return {name for (name,) in connection.execute("SELECT name FROM segments").fetchall()}
