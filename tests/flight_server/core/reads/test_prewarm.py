"""Prewarming: slices are cached before the first request."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads import prewarm as prewarm_module
from flight_server.core.wire import tickets
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore
from tests.flight_server.live_server import eventually
from tests.flight_server.serving import app_in, command, put, read, rows
from tests.store.empty_store import place_for_database

TABLES = ("a", "b", "c", "d", "e", "f")
CURRENT = {"snapshot": "current"}


def fill(database: Database) -> None:
    """Stores six tables with two snapshots each."""
    app = SimpleNamespace(store=DuckDBStatsStore(database, Catalog(database)))
    for name in TABLES:
        put(app, rows(name, 1, range(1, 4)))
        put(app, rows(name, 2, range(1, 6)))


@pytest.fixture
def filled() -> Path:
    """The directory of a closed store of these tables."""
    return place_for_database(fill).parent


def read_in_order(directory: Path, *names: str) -> None:
    """Reads the tables one after the other and closes the store."""
    with app_in(directory) as app:
        for name in names:
            read_current(app, name)
            app.usage.flush(0)  # gives each read its own time


def read_current(app: App, name: str) -> int:
    data = command(name, **CURRENT)
    app.usage.read(tickets.of_ticket(data), ANONYMOUS)
    return read(app, data).num_rows


def cached_tables(app: App) -> set[str]:
    """Names of the tables whose columns are in the cache."""
    found = (app.catalog.find(("lake", "s", name)) for name in TABLES)
    keys = {t.table_name: ("stats.columns", t.table_key, t.current_snapshot_id, False) for t in found if t}
    return {name for name, key in keys.items() if app.slices._slices.get(key) is not None}


def test_warmed_tables_are_read_without_duckdb(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled, cache_bytes=0) as app:
        from_duckdb = {name: read(app, command(name, **CURRENT)) for name in TABLES}
    with app_in(filled) as app:
        app.prewarmer.warm()
        assert cached_tables(app) == set(TABLES)

        def fail(_: Database) -> None:
            raise AssertionError("DuckDB was queried")

        with monkeypatch.context() as patched:
            patched.setattr(Database, "read", fail)
            for name in TABLES:
                assert read(app, command(name, **CURRENT)).equals(from_duckdb[name])
            with pytest.raises(AssertionError, match="DuckDB was queried"):
                read(app, command("a", snapshot=1))
        put(app, rows("a", 2, range(1, 10)))
        assert read_current(app, "a") == 9


def test_tickets_of_warmed_tables_are_made_without_duckdb(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled) as app:
        flights = [FLIGHTS["stats.columns"], FLIGHTS["stats.tables"]]
        tables = [app.catalog.get(f"lake.s.{name}") for name in TABLES]
        wanted = [(flight, table, table.current_snapshot_id) for flight in flights for table in tables]
        one_by_one = [app.scanner.generations.of(*each) for each in wanted]
    with app_in(filled) as app:
        app.prewarmer.warm()
        with monkeypatch.context() as patched:
            patched.setattr(Database, "read", None)
            assert [app.scanner.generations.of(*each) for each in wanted] == one_by_one
        before = app.scanner.generations.of(*wanted[0])
        put(app, rows("a", 2, range(1, 10)))
        assert app.scanner.generations.of(*wanted[0]) != before


@pytest.mark.parametrize("chunk_rows", [1, 20, 20_000])
def test_slices_warmed_in_chunks_equal_slices_loaded_one_by_one(
    filled: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
):
    with app_in(filled) as app:
        put(app, rows("b", 3, [2]))  # its other columns come from older snapshots or are missing
        put(app, rows("e", 2, range(1, 400)))
    monkeypatch.setattr(prewarm_module, "CHUNK_ROWS", chunk_rows)
    with app_in(filled) as app:
        app.prewarmer.warm()
        assert cached_tables(app) == set(TABLES)
        for name in TABLES:
            table = app.catalog.get(f"lake.s.{name}")
            key = ("stats.columns", table.table_key, table.current_snapshot_id, False)
            warmed = app.slices._slices.get(key)
            alone = app.scanner.rows.load(FLIGHTS["stats.columns"], table, table.current_snapshot_id, False, 1 << 30)
            assert warmed.batch.equals(alone)
            assert warmed.batch.get_total_buffer_size() < 2 * alone.nbytes + 20_000  # without the rows of other tables


def test_unflushed_reads_are_stored_on_close(filled: Path):
    with app_in(filled) as app:
        read_current(app, "c")
    with app_in(filled) as app:
        assert app.usage.latest() == [app.catalog.get("lake.s.c").table_key]


def test_dropped_and_deleted_tables_are_not_warmed(filled: Path):
    read_in_order(filled, "a", "b")
    with app_in(filled) as app:
        app.database.write(lambda c: c.execute("UPDATE tables SET dropped = true WHERE table_name = 'a'"))
        app.database.write(lambda c: c.execute("DELETE FROM tables WHERE table_name = 'b'"))
    with app_in(filled) as app:
        app.prewarmer.warm()
        assert cached_tables(app) == {"c", "d", "e", "f"}


def test_warm_fills_half_of_the_cache_with_the_latest_read_tables(filled: Path, monkeypatch: pytest.MonkeyPatch):
    read_in_order(filled, "e", "c")
    monkeypatch.setattr(prewarm_module, "CHUNK_ROWS", 1)
    with app_in(filled) as app:
        assert app.usage.latest() == [app.catalog.get(f"lake.s.{name}").table_key for name in ("c", "e")]
        app.prewarmer.warm()
        assert cached_tables(app) == set(TABLES)
        used = app.slices.used
    with app_in(filled, cache_bytes=used) as app:
        app.prewarmer.warm()
        assert cached_tables(app) == {"c", "e", "a", "b"}  # latest read first; the last one crosses the half


def test_warm_without_a_cache_caches_nothing(filled: Path):
    read_in_order(filled, "a")
    with app_in(filled, cache_bytes=0) as app:
        app.prewarmer.warm()
        assert app.slices.used == 0


def test_close_stops_the_warming_thread(filled: Path):
    read_in_order(filled, *TABLES)
    with app_in(filled) as app:
        app.prewarmer.start()
    assert eventually(lambda: not app.prewarmer._thread.is_alive())


def test_changed_tables_are_those_of_commits_since_the_last_call(filled: Path):
    with app_in(filled) as app:
        app.prewarmer.warm()
        put(app, rows("a", 2, range(1, 10)))
        put(app, rows("b", 3, [1, 2]))
        assert (read_current(app, "a"), read_current(app, "b")) == (9, 2)  # at once
        changed = app.prewarmer.changed()
        assert changed == {app.catalog.get(f"lake.s.{name}").table_key for name in "ab"}
        assert not app.prewarmer.changed()
        app.prewarmer.warm(changed)
        assert cached_tables(app) == set(TABLES)
        assert (read_current(app, "a"), read_current(app, "b")) == (9, 2)


def test_background_thread_warms_committed_tables(filled: Path):
    with app_in(filled) as app:
        app.prewarmer.start()
        put(app, rows("new", 1, range(1, 4)))
        key = ("stats.columns", app.catalog.get("lake.s.new").table_key, 1, False)
        assert eventually(lambda: app.slices.has(key))
        assert read_current(app, "new") == 3


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads that never wait hand over after 0.1 ms, not 5, at which all others would spend the time waiting."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("puts", [5, pytest.param(300, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_read_after_a_put_is_current_while_slices_are_warmed(cache_bytes: int, puts: int, quick_switches: None):
    """Puts and reads back while two threads warm the tables."""
    stop = threading.Event()
    with app_in(cache_bytes=cache_bytes) as app:

        def warm_repeatedly() -> None:
            while not stop.is_set():
                app.prewarmer.warm(app.prewarmer.changed())

        warmers = [threading.Thread(target=warm_repeatedly) for _ in range(2)]
        for thread in warmers:
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
            for thread in warmers:
                thread.join()
