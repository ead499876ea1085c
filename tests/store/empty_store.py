"""Cached file of an empty store: opening a copy takes half the time of creating the tables of a new store."""

from __future__ import annotations

import atexit
import itertools
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from store.duckdb.database import Database


def empty_store(path: Path) -> Path:
    """Writes the file of an empty store of the newest layout, unless the file exists, and returns its path."""
    if not path.exists():
        path.write_bytes(_file())
    return path


def empty_database() -> Database:
    """Opens an empty store in a file of its own, which is removed when the tests end."""
    return Database(empty_store(_directory() / f"{next(_numbers)}.duckdb"))


_numbers = itertools.count()


@cache
def _directory() -> Path:
    directory = Path(mkdtemp(prefix="stores-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@cache
def _file() -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "empty.duckdb"
        Database(path).close()
        return path.read_bytes()
