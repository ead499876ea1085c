"""Prewarming: materialized slices exist, and are cached, before the first request."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from flight_server.app import App
from flight_server.reads import prewarm as readiness
from flight_server.reads import scanner
from flight_server.reads.scope import ReadScope
from flight_server.wire import tickets
from flight_server.wire.scan_request import ScanRequest
from store.database import Connection, Database
from store.schemas import FLIGHTS
from tests.flight_server.live_server import eventually
from tests.flight_server.serving import app_in, command, put, read, rows

TABLES = ("a", "b", "c", "d", "e", "f")
CURRENT = {"snapshot": "current"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of six tables with two snapshots each, not open."""
    directory = tmp_path_factory.mktemp("lake")
    with app_in(directory) as app:
        for name in TABLES:
            put(app, rows(name, 1, range(1, 4)))
            put(app, rows(name, 2, range(1, 6)))
    return directory


@pytest.fixture
def filled(lake: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(lake, tmp_path / "filled"))


def read_before(directory: Path, *names: str) -> None:
    """Reads tables, one after the other, and closes the store."""
    with app_in(directory) as app:
        for name in names:
            ask(app, name)
            app.usage.flush(0)  # the times of two reads differ


def ask(app: App, name: str) -> int:
    data = command(name, **CURRENT)
    app.note_read(tickets.of_ticket(data))
    return read(app, data).num_rows


def ready(app: App) -> set[str]:
    """Tables whose columns are in the cache."""
    found = (app.catalog.find(("lake", "s", name)) for name in TABLES)
    keys = {t.table_name: ("stats.columns", t.table_key, t.current_snapshot_id, False) for t in found if t}
    return {name for name, key in keys.items() if app.slices._slices.get(key) is not None}


def test_nobody_waits_for_duckdb_after_a_start(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled, cache_bytes=0) as app:
        asked_of_duckdb = {name: read(app, command(name, **CURRENT)) for name in TABLES}
    with app_in(filled) as app:
        app.prewarmer.warm()
        assert ready(app) == set(TABLES)

        def refuse(_: Database) -> None:
            raise AssertionError("DuckDB was asked")

        with monkeypatch.context() as patched:
            patched.setattr(Database, "read", refuse)
            for name in TABLES:
                assert read(app, command(name, **CURRENT)).equals(asked_of_duckdb[name])
            with pytest.raises(AssertionError, match="DuckDB was asked"):
                read(app, command("a", snapshot=1))
        put(app, rows("a", 2, range(1, 10)))
        assert ask(app, "a") == 9


@pytest.mark.parametrize("chunk_rows", [1, 20, 20_000])
def test_many_tables_at_once_are_each_as_read_alone(filled: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int):
    with app_in(filled) as app:
        put(app, rows("b", 3, [2]))  # the columns it lacks are of other snapshots, or of none
        put(app, rows("e", 2, range(1, 400)))
    monkeypatch.setattr(readiness, "CHUNK_ROWS", chunk_rows)
    with app_in(filled) as app:
        app.prewarmer.warm()
        assert ready(app) == set(TABLES)
        for name in TABLES:
            table = app.catalog.get(f"lake.s.{name}")
            key = ("stats.columns", table.table_key, table.current_snapshot_id, False)
            made = app.slices._slices.get(key)
            alone = app.scanner._load(FLIGHTS["stats.columns"], table, table.current_snapshot_id, False, 1 << 30)
            assert made.batch.equals(alone)
            assert made.batch.get_total_buffer_size() < 2 * alone.nbytes + 20_000  # not the rows of others


def test_reads_of_the_last_seconds_are_written_down_at_the_end(filled: Path):
    with app_in(filled) as app:
        ask(app, "c")
    with app_in(filled) as app:
        assert app.usage.latest() == [app.catalog.get("lake.s.c").table_key]


def test_tables_that_are_gone_are_passed_over(filled: Path):
    read_before(filled, "a", "b")
    with app_in(filled) as app:
        app.database.write(lambda c: c.execute("UPDATE tables SET dropped = true WHERE table_name = 'a'"))
        app.database.write(lambda c: c.execute("DELETE FROM tables WHERE table_name = 'b'"))
    with app_in(filled) as app:
        app.prewarmer.warm()
        assert ready(app) == {"c", "d", "e", "f"}


def test_half_of_the_cache_is_left_to_what_is_asked_now(filled: Path, monkeypatch: pytest.MonkeyPatch):
    read_before(filled, "e", "c")
    monkeypatch.setattr(readiness, "CHUNK_ROWS", 1)
    with app_in(filled) as app:
        assert app.usage.latest() == [app.catalog.get(f"lake.s.{name}").table_key for name in ("c", "e")]
        app.prewarmer.warm()
        assert ready(app) == set(TABLES)
        used = app.slices.used
    with app_in(filled, cache_bytes=used) as app:
        app.prewarmer.warm()
        assert ready(app) == {"c", "e", "a", "b"}  # those read last first; the last of them passes the half


def test_without_a_cache_nothing_is_read(filled: Path):
    read_before(filled, "a")
    with app_in(filled, cache_bytes=0) as app:
        app.prewarmer.warm()
        assert app.slices.used == 0


def test_a_server_that_ends_while_it_warms_up_waits_for_no_table(filled: Path):
    read_before(filled, *TABLES)
    with app_in(filled) as app:
        app.prewarmer.start()
    assert eventually(lambda: not app.prewarmer._thread.is_alive())


# MaterializedSlices beside the rows.


def no_rows_are_read(patched: pytest.MonkeyPatch, app: App, *flights: str) -> None:
    """Refuses to read rows, of all flights or of these."""
    query = app.scanner.queries._query

    def refuse(cursor: Connection, request: ScanRequest, scope: ReadScope) -> object:
        if not flights or request.flight.name in flights:
            raise AssertionError("rows were read")
        return query(cursor, request, scope)

    patched.setattr(app.scanner.queries, "_query", refuse)


def test_a_table_is_found_without_the_cache_and_without_its_rows(filled: Path, monkeypatch: pytest.MonkeyPatch):
    asked = [CURRENT, {"snapshot": 2}, CURRENT | {"columns": ["ndv", "freshness"]}, CURRENT | {"limit": 2}]
    with app_in(filled, cache_bytes=0) as app:
        of_rows = [read(app, command(name, **more)) for name in TABLES for more in asked]
        app.prewarmer.warm()
        assert app.slices.used == 0
        with monkeypatch.context() as patched:
            no_rows_are_read(patched, app)
            assert [read(app, command(name, **more)) for name in TABLES for more in asked] == of_rows
            with pytest.raises(AssertionError, match="rows were read"):
                read(app, command("a", snapshot=1))
    with app_in(filled, cache_bytes=0) as app:  # nothing is made ready yet
        no_rows_are_read(monkeypatch, app)
        assert [read(app, command(name, **more)) for name in TABLES for more in asked] == of_rows


def test_a_second_start_reads_no_rows(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled) as app:
        app.prewarmer.warm()
        first = {name: read(app, command(name, **CURRENT)) for name in TABLES}
    with app_in(filled) as app:
        with monkeypatch.context() as patched:
            no_rows_are_read(patched, app, "stats.columns")
            app.prewarmer.warm()
        assert ready(app) == set(TABLES)
        assert {name: read(app, command(name, **CURRENT)) for name in TABLES} == first


def test_what_is_published_is_made_ready_again(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled) as app:
        app.prewarmer.warm()
        app.scanner.materialized.take_changed()
        put(app, rows("a", 2, range(1, 10)))
        put(app, rows("b", 3, [1, 2]))
        assert ask(app, "a") == 9  # at once
        lost = app.scanner.materialized.take_changed()
        assert lost == {app.catalog.get(f"lake.s.{name}").table_key for name in "ab"}
        app.prewarmer.warm(lost)
        no_rows_are_read(monkeypatch, app)
        assert ask(app, "a") == 9
        assert ask(app, "b") == 2


def test_the_thread_makes_ready_what_is_published(filled: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readiness, "LOOK_SECONDS", 0.05)
    with app_in(filled, cache_bytes=0) as app:
        app.prewarmer.start()
        put(app, rows("new", 1, range(1, 4)))
        key = app.catalog.get("lake.s.new").table_key
        assert eventually(lambda: app.scanner.materialized.find("stats.columns", key, 1) is not None)
        assert ask(app, "new") == 3


def test_values_of_another_version_are_made_anew(filled: Path, monkeypatch: pytest.MonkeyPatch):
    marks = dict.fromkeys(scanner._MARKS, b"another!")
    with app_in(filled, cache_bytes=0) as app, monkeypatch.context() as patched:
        patched.setattr(scanner, "_MARKS", marks)
        app.prewarmer.warm()
        assert ask(app, "a") == 5
    with app_in(filled, cache_bytes=0) as app:
        assert ask(app, "a") == 5
        key = app.catalog.get("lake.s.a").table_key
        assert app.scanner.materialized.find("stats.columns", key, 2)[:8] == b"another!"
        app.prewarmer.warm()
        assert app.scanner.materialized.find("stats.columns", key, 2)[:8] != b"another!"
        assert ask(app, "a") == 5


@pytest.mark.parametrize("puts", [12, pytest.param(300, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_nobody_sees_what_was_before_a_put_that_was_acknowledged(tmp_path: Path, cache_bytes: int, puts: int):
    """One puts and reads what it put, while the tables are made ready over and over."""
    stop = threading.Event()
    with app_in(tmp_path, cache_bytes=cache_bytes) as app:

        def look() -> None:
            while not stop.is_set():
                app.prewarmer.warm(app.scanner.materialized.take_changed())

        looking = [threading.Thread(target=look) for _ in range(2)]
        for thread in looking:
            thread.start()
        try:
            for count in range(1, puts):
                name = TABLES[count % 2]
                put(app, [row | {"row_count": 100 + count} for row in rows(name, 1, range(1, 4))])
                for _ in range(3):
                    found = read(app, command(name, snapshot=1, columns=["row_count"]))
                    assert found["row_count"].to_pylist() == [100 + count] * 3
        finally:
            stop.set()
            for thread in looking:
                thread.join()
