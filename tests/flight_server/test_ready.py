"""After a start, what will be asked for is in the cache before anybody asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from flight_server import descriptors
from flight_server import ready as readiness
from flight_server.service import Service
from store.database import Database
from store.schemas import FLIGHTS
from tests.flight_server.live_server import eventually
from tests.flight_server.serving import command, put, read, rows, service_in

TABLES = ("a", "b", "c", "d", "e", "f")
CURRENT = {"snapshot": "current"}


def filled(directory: Path, *asked: str) -> None:
    with service_in(directory) as service:
        for name in TABLES:
            put(service, rows(name, 1, range(1, 4)))
            put(service, rows(name, 2, range(1, 6)))
        for name in asked:
            ask(service, name)
            service.usage.flush(0)  # the times of two reads differ


def ask(service: Service, name: str) -> int:
    data = command(name, **CURRENT)
    service.note_read(descriptors.of_ticket(data))
    return read(service, data).num_rows


def ready(service: Service) -> set[str]:
    """Tables whose columns are in the cache."""
    found = (service.catalog.find(("lake", "s", name)) for name in TABLES)
    keys = {t.table_name: ("stats.columns", t.table_key, t.current_snapshot_id, False) for t in found if t}
    return {name for name, key in keys.items() if service.slices._slices.get(key) is not None}


def test_nobody_waits_for_duckdb_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(tmp_path)
    with service_in(tmp_path, cache_bytes=0) as service:
        asked_of_duckdb = {name: read(service, command(name, **CURRENT)) for name in TABLES}
    with service_in(tmp_path) as service:
        service.ready.look()
        assert ready(service) == set(TABLES)

        def refuse(_: Database) -> None:
            raise AssertionError("DuckDB was asked")

        with monkeypatch.context() as patched:
            patched.setattr(Database, "read", refuse)
            for name in TABLES:
                assert read(service, command(name, **CURRENT)).equals(asked_of_duckdb[name])
            with pytest.raises(AssertionError, match="DuckDB was asked"):
                read(service, command("a", snapshot=1))
        put(service, rows("a", 2, range(1, 10)))
        assert ask(service, "a") == 9


@pytest.mark.parametrize("chunk_rows", [1, 20, 20_000])
def test_many_tables_at_once_are_each_as_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int):
    filled(tmp_path)
    with service_in(tmp_path) as service:
        put(service, rows("b", 3, [2]))  # the columns it lacks are of other snapshots, or of none
        put(service, rows("e", 2, range(1, 400)))
    monkeypatch.setattr(readiness, "CHUNK_ROWS", chunk_rows)
    with service_in(tmp_path) as service:
        service.ready.look()
        assert ready(service) == set(TABLES)
        for name in TABLES:
            table = service.catalog.get(f"lake.s.{name}")
            key = ("stats.columns", table.table_key, table.current_snapshot_id, False)
            made = service.slices._slices.get(key)
            alone = service.scanner._load(FLIGHTS["stats.columns"], table, table.current_snapshot_id, False, 1 << 30)
            assert made.batch.equals(alone)
            assert made.batch.get_total_buffer_size() < 2 * alone.nbytes + 20_000  # not the rows of others


def test_reads_of_the_last_seconds_are_written_down_at_the_end(tmp_path: Path):
    filled(tmp_path)
    with service_in(tmp_path) as service:
        ask(service, "c")
    with service_in(tmp_path) as service:
        assert service.usage.latest() == [service.catalog.get("lake.s.c").table_key]


def test_tables_that_are_gone_are_passed_over(tmp_path: Path):
    filled(tmp_path, "a", "b")
    with service_in(tmp_path) as service:
        service.database.write(lambda c: c.execute("UPDATE tables SET dropped = true WHERE table_name = 'a'"))
        service.database.write(lambda c: c.execute("DELETE FROM tables WHERE table_name = 'b'"))
    with service_in(tmp_path) as service:
        service.ready.look()
        assert ready(service) == {"c", "d", "e", "f"}


def test_half_of_the_cache_is_left_to_what_is_asked_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(tmp_path, "e", "c")
    monkeypatch.setattr(readiness, "CHUNK_ROWS", 1)
    with service_in(tmp_path) as service:
        assert service.usage.latest() == [service.catalog.get(f"lake.s.{name}").table_key for name in ("c", "e")]
        service.ready.look()
        assert ready(service) == set(TABLES)
        used = service.slices.used
    with service_in(tmp_path, cache_bytes=used) as service:
        service.ready.look()
        assert ready(service) == {"c", "e", "a", "b"}  # those read last first; the last of them passes the half


def test_without_a_cache_nothing_is_read(tmp_path: Path):
    filled(tmp_path, "a")
    with service_in(tmp_path, cache_bytes=0) as service:
        service.ready.look()
        assert service.slices.used == 0


def test_a_server_that_ends_while_it_warms_up_waits_for_no_table(tmp_path: Path):
    filled(tmp_path, *TABLES)
    with service_in(tmp_path) as service:
        service.ready.start()
    assert eventually(lambda: not service.ready._thread.is_alive())
