"""Fixtures: a database in memory; for the command line a fake server, and a function that runs a command against it."""

from __future__ import annotations

import sys

import pytest

from flight_server import cli
from store.duckdb.database import Database
from store.duckdb.opening import MEMORY
from tests.flight_server.command_line import KEY, column_row, serve_tables
from tests.flight_server.fake_server import FakeServer


@pytest.fixture
def database():
    """A database in memory."""
    opened = Database(MEMORY)
    yield opened
    opened.close()


@pytest.fixture
def server():
    with FakeServer() as server:
        server.rows("information_schema.tables", KEY | {"table_type": "BASE TABLE"})
        server.rows("sys.tables", KEY)
        server.rows("information_schema.columns", KEY | {"column_name": "id", "column_id": 1, "data_type": "INT"})
        yield server


@pytest.fixture
def run(server, monkeypatch, capsys):
    """Function that runs a command and returns its exit status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        monkeypatch.setenv("STATFLIGHT_KEEP", "pandas")  # imported by other tests of this process
        monkeypatch.setattr(sys, "argv", ["statflight", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        return exited.value.code or 0, out, err

    return run


@pytest.fixture
def tables(server):
    serve_tables(server, "a", "b")
    server.rows("stats.columns", *(column_row(table_name=name, max=f"max of {name}") for name in "ab"))
    server.rows(
        "information_schema.columns",
        *(KEY | {"table_name": name, "column_name": "id", "column_id": 1, "data_type": "INT"} for name in "ab"),
    )
