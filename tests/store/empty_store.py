"""Empty stores for tests, and stores that are filled once.

DuckDB takes 20 ms to open a file, and as long to close it, but none while it has the file open already. So a connection
keeps each file open, and the next test gets it once the one before has closed it, emptied. DuckDB works in one thread:
a second one has nothing to do for so few rows, but is woken for each statement.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import duckdb

from store.duckdb.database import Database

Fill = Callable[[Database], None]


def empty_store(path: Path) -> Path:
    """Writes the file of an empty store of the newest layout, unless the file exists, and returns its path."""
    if not path.exists():
        path.write_bytes(_file())
    return path


def empty_database(fill: Fill | None = None) -> Database:
    """Opens a store in a file of its own. It is empty, or has what `fill` wrote into the first one."""
    return Database(place_for_database(fill))


def place_for_database(fill: Fill | None = None) -> Path:
    """The file of `empty_database`, which is to be opened before the next call."""
    place = next((place for place in _places[fill] if not place.is_used), None)
    if place is None:
        _places[fill].append(place := _Place(fill))
    else:
        place.empty()
    return place.path


class _Place:
    def __init__(self, fill: Fill | None):
        self.path = Path(mkdtemp(dir=_directory())) / "stats.duckdb"
        self.path.write_bytes(_file(fill))
        self._keeper = duckdb.connect(self.path)
        self._run("SET threads = 1")
        self._filled = self._with_rows()  # what is kept of the first content
        for table in self._filled:
            self._run(f"CREATE TEMP TABLE first_{table} AS FROM {table}")

    def close(self) -> None:
        self._keeper.close()

    @property
    def is_used(self) -> bool:
        return self.path.with_name(self.path.name + ".lock").exists()

    def empty(self) -> None:
        """Makes the content that of the first time again."""
        for beside in self.path.parent.iterdir():
            if not beside.name.startswith(self.path.name) or beside.suffix not in (".duckdb", ".wal"):
                shutil.rmtree(beside) if beside.is_dir() else beside.unlink()
        self._run("BEGIN")
        for table in self._with_rows():
            self._run(f"DELETE FROM {table}")
        for table in self._filled:
            self._run(f"INSERT INTO {table} FROM first_{table}")
        self._run("COMMIT")

    def _with_rows(self) -> list[str]:
        return [
            name
            for (name,) in self._run(
                "SELECT table_name FROM duckdb_tables() WHERE estimated_size > 0 AND NOT temporary"
            )
        ]

    def _run(self, statement: str) -> list[tuple[str]]:
        return self._keeper.execute(statement).fetchall()


_places: dict[Fill | None, list[_Place]] = defaultdict(list)


@cache
def _directory() -> Path:
    directory = Path(mkdtemp(prefix="stores-"))

    def end() -> None:
        for place in itertools.chain(*_places.values()):
            place.close()
        _places.clear()  # DuckDB would print what is left of it
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
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
