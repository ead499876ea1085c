"""Prewarming: materialized slices exist, and are cached, before the first request."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from flight_server.app import App
from flight_server.reads import prewarm as prewarm_module
from flight_server.reads import scanner
from flight_server.reads.scope import ReadScope
from flight_server.wire import tickets
from flight_server.wire.scan_request import ScanRequest
from store.duckdb.database import Connection, Database
from store.model.schemas import FLIGHTS
from tests.flight_server.live_server import eventually
from tests.flight_server.serving import app_in, command, put, read, rows

TABLES = ("a", "b", "c", "d", "e", "f")
CURRENT = {"snapshot": "current"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store of six tables with two snapshots each."""
    directory = tmp_path_factory.mktemp("lake")
    with app_in(directory) as app:
        for name in TABLES:
            put(app, rows(name, 1, range(1, 4)))
            put(app, rows(name, 2, range(1, 6)))
    return directory


@pytest.fixture
def filled(lake: Path, tmp_path: Path) -> Path:
    """A fresh copy of the store."""
    return Path(shutil.copytree(lake, tmp_path / "filled"))


def read_in_order(directory: Path, *names: str) -> None:
    """Reads the tables one after the other and closes the store."""
    with app_in(directory) as app:
        for name in names:
            read_current(app, name)
            app.usage.flush(0)  # gives each read its own time


def read_current(app: App, name: str) -> int:
    data = command(name, **CURRENT)
    app.usage.read(tickets.of_ticket(data))
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
            alone = app.scanner._load(FLIGHTS["stats.columns"], table, table.current_snapshot_id, False, 1 << 30)
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


# Materialized slices.


def forbid_row_reads(patched: pytest.MonkeyPatch, app: App, *flights: str) -> None:
    """Makes reads of rows fail, of all flights or of these."""
    query = app.scanner.queries._query

    def fail(cursor: Connection, request: ScanRequest, scope: ReadScope) -> object:
        if not flights or request.flight.name in flights:
            raise AssertionError("rows were read")
        return query(cursor, request, scope)

    patched.setattr(app.scanner.queries, "_query", fail)


def test_materialized_slices_serve_reads_without_cache_and_rows(filled: Path, monkeypatch: pytest.MonkeyPatch):
    variants = [CURRENT, {"snapshot": 2}, CURRENT | {"columns": ["ndv", "freshness"]}, CURRENT | {"limit": 2}]
    with app_in(filled, cache_bytes=0) as app:
        from_rows = [read(app, command(name, **more)) for name in TABLES for more in variants]
        app.prewarmer.warm()
        assert app.slices.used == 0
        with monkeypatch.context() as patched:
            forbid_row_reads(patched, app)
            assert [read(app, command(name, **more)) for name in TABLES for more in variants] == from_rows
            with pytest.raises(AssertionError, match="rows were read"):
                read(app, command("a", snapshot=1))
    with app_in(filled, cache_bytes=0) as app:  # before the first warm()
        forbid_row_reads(monkeypatch, app)
        assert [read(app, command(name, **more)) for name in TABLES for more in variants] == from_rows


def test_warm_after_a_restart_reads_no_rows(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled) as app:
        app.prewarmer.warm()
        first = {name: read(app, command(name, **CURRENT)) for name in TABLES}
    with app_in(filled) as app:
        with monkeypatch.context() as patched:
            forbid_row_reads(patched, app, "stats.columns")
            app.prewarmer.warm()
        assert cached_tables(app) == set(TABLES)
        assert {name: read(app, command(name, **CURRENT)) for name in TABLES} == first


def test_publish_refreshes_the_prewarmed_slices(filled: Path, monkeypatch: pytest.MonkeyPatch):
    with app_in(filled) as app:
        app.prewarmer.warm()
        app.scanner.materialized.take_changed()
        put(app, rows("a", 2, range(1, 10)))
        put(app, rows("b", 3, [1, 2]))
        assert read_current(app, "a") == 9  # at once
        changed = app.scanner.materialized.take_changed()
        assert changed == {app.catalog.get(f"lake.s.{name}").table_key for name in "ab"}
        app.prewarmer.warm(changed)
        forbid_row_reads(monkeypatch, app)
        assert read_current(app, "a") == 9
        assert read_current(app, "b") == 2


def test_background_thread_materializes_published_tables(filled: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prewarm_module, "LOOK_SECONDS", 0.05)
    with app_in(filled, cache_bytes=0) as app:
        app.prewarmer.start()
        put(app, rows("new", 1, range(1, 4)))
        key = app.catalog.get("lake.s.new").table_key
        assert eventually(lambda: app.scanner.materialized.find("stats.columns", key, 1) is not None)
        assert read_current(app, "new") == 3


def test_slices_of_another_format_version_are_rebuilt(filled: Path, monkeypatch: pytest.MonkeyPatch):
    marks = dict.fromkeys(scanner._MARKS, b"another!")
    with app_in(filled, cache_bytes=0) as app, monkeypatch.context() as patched:
        patched.setattr(scanner, "_MARKS", marks)
        app.prewarmer.warm()
        assert read_current(app, "a") == 5
    with app_in(filled, cache_bytes=0) as app:
        assert read_current(app, "a") == 5
        key = app.catalog.get("lake.s.a").table_key
        assert app.scanner.materialized.find("stats.columns", key, 2)[:8] == b"another!"
        app.prewarmer.warm()
        assert app.scanner.materialized.find("stats.columns", key, 2)[:8] != b"another!"
        assert read_current(app, "a") == 5


@pytest.mark.parametrize("puts", [12, pytest.param(300, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_read_after_a_put_is_current_while_slices_are_warmed(tmp_path: Path, cache_bytes: int, puts: int):
    """Puts and reads back while two threads warm the tables."""
    stop = threading.Event()
    with app_in(tmp_path, cache_bytes=cache_bytes) as app:

        def warm_repeatedly() -> None:
            while not stop.is_set():
                app.prewarmer.warm(app.scanner.materialized.take_changed())

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
