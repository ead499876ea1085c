"""A database whose log is shipped, and what replicas of it contain."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import duckdb

from store.duckdb.commit import Commit
from store.duckdb.database import Database
from store.places import Directory
from store.replication.join import Plan, start_writer
from store.replication.log import Log
from store.replication.restore import NEWEST, At, restore
from store.replication.writer import Writer
from tests.store.empty_store import empty_store


@contextlib.contextmanager
def writing(path: Path, place: Path, **plan: object) -> Iterator[tuple[Database, Writer]]:
    """A database and its writer, closed at the end. By default each write is shipped before it is acknowledged."""
    database = Database(empty_store(path))
    writer = start_writer(Plan(str(place), **{"durable": True} | plan), database)
    database.phases = Commit(guard=writer, ship=writer)
    try:
        yield database, writer
    finally:
        writer.close()
        database.close()


def note(database: Database, text: str) -> None:
    """Writes a row."""
    database.write(lambda connection: connection.execute("INSERT INTO settings VALUES ('note', ?)", [text]))


def notes(database: Database | Path) -> set[str]:
    """The rows that `note` has written."""
    sql = "SELECT value FROM settings WHERE name = 'note'"
    if isinstance(database, Database):
        return {text for (text,) in database.rows(sql)}
    reader = _reader()
    reader.execute(f"ATTACH '{database}' AS given (READ_ONLY)")
    try:
        return {text for (text,) in reader.execute(sql.replace("settings", "given.settings")).fetchall()}
    finally:
        reader.execute("DETACH given")


@cache
def _reader() -> duckdb.DuckDBPyConnection:
    """A connection for all files: to open DuckDB for one takes 20 ms, and as long to close it."""
    connection = duckdb.connect()
    atexit.register(connection.close)
    return connection


def log_at(place: Path) -> Log:
    return Log(Directory(str(place), place))


def restored(place: Path, at: At = NEWEST) -> set[str]:
    """The notes of a restored database."""
    path = place.with_name("restored.duckdb")
    path.unlink(missing_ok=True)
    restore(log_at(place), path, at)
    return notes(path)
