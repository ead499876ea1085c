"""Cached files of stores, empty or filled: opening a copy takes half the time of creating the tables of a new store."""

from __future__ import annotations

import atexit
import itertools
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from store.duckdb.database import Database

Fill = Callable[[Database], None]


def empty_store(path: Path) -> Path:
    """Writes the file of an empty store of the newest layout, unless the file exists, and returns its path."""
    if not path.exists():
        path.write_bytes(_file())
    return path


def empty_database(fill: Fill | None = None) -> Database:
    """Opens a store in a file of its own, which is removed when the tests end. It is empty, or has what `fill` wrote
    into the first one."""
    path = _directory() / f"{next(_numbers)}.duckdb"
    path.write_bytes(_file(fill))
    return Database(path)


_numbers = itertools.count()


@cache
def _directory() -> Path:
    directory = Path(mkdtemp(prefix="stores-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@cache
def _file(fill: Fill | None = None) -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "empty.duckdb"
        database = Database(path)
        if fill is not None:
            fill(database)
        database.close()
        return path.read_bytes()
