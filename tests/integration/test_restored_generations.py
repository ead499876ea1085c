"""Databases restored at random generations have the content that the store had then.

STATFLIGHT_RESTORES (15) is how many are restored; 1000 for the full proof.
"""

from __future__ import annotations

import itertools
import os
import random
import threading

import duckdb
import pyarrow as pa

from store import staged_listings, stats_store
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection, Database
from store.history import validation
from store.model.puts import Put, PutMode
from store.model.schemas import FLIGHTS
from store.places import open_place
from store.replication.join import Plan, start_writer
from store.replication.log import Log
from store.replication.restore import At, restore
from tests.benchmarks import store_data
from tests.flight_server.live_server import eventually
from tests.integration.replica_servers import row

RESTORES = int(os.environ.get("STATFLIGHT_RESTORES", "15"))


def content(connection: Connection) -> list[tuple[object, ...]]:
    """A hash of the rows of each table, but for `settings`, which tell of which replica a database is."""
    tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE table_name <> 'settings'").fetchall()
    each = " UNION ALL ".join(f"SELECT '{name}', count(*), bit_xor(hash(t)) FROM {name} t" for (name,) in tables)
    return connection.execute(f"SELECT * FROM ({each}) ORDER BY ALL").fetchall()


def test_a_restored_generation_has_the_content_that_was_there(tmp_path, monkeypatch):
    """Puts, deletes, large writes, checkpoints, and listings stored in pieces, committed or not."""
    monkeypatch.setattr(stats_store, "MANY_ROWS", 200)
    monkeypatch.setattr(staged_listings, "_PIECE_ROWS", 60)
    chance, place, expected = random.Random(27), tmp_path / "replica", {}
    database = Database(tmp_path / "a.duckdb")
    writer = start_writer(Plan(str(place), durable=True, lease_seconds=120), database)
    store = stats_store.DuckDBStatsStore(database, Catalog(database), role=writer)
    rows = store_data.file_columns(0, 15)

    def listing(snapshot: int, mode: PutMode) -> Put:
        count = rows.num_rows
        given = {"row_count": pa.repeat(snapshot * 10**6, count), "snapshot_id": pa.repeat(snapshot, count)}
        changed = rows.drop_columns([*given])
        for name, values in given.items():
            changed = changed.append_column(name, values)
        return Put("stats.file_columns", validation.prepare(FLIGHTS["stats.file_columns"], changed), mode)

    def step(number: int) -> None:
        match chance.randrange(6):
            case 0:
                store.put([listing(chance.randrange(1, 4), PutMode.UPSERT)])
            case 1:
                begun = store.stage([listing(9, PutMode.UPSERT)])
                assert begun is not None
                begun.add(listing(9, PutMode.UPSERT).rows, PutMode.UPSERT)
            case 2 if (table := store.find(("lake", "sales", "table_00000"))) is not None:
                store.delete(table)
            case 3 if number % 5 == 0:
                many = "SELECT 'x', repeat('y', 100) FROM range(130_000)"
                database.write(lambda c: c.execute(f"INSERT INTO settings {many}"))
                database.write(lambda c: c.execute("DELETE FROM settings WHERE name = 'x'"))
            case _:
                rows_of_table = validation.prepare(FLIGHTS["stats.tables"], row(number))
                store.put([Put("stats.tables", rows_of_table, PutMode.UPSERT)])

    try:
        for number in itertools.count():
            step(number)
            eventually(lambda: not any(t.name == "store-unstage" for t in threading.enumerate()))
            with database.reading() as cursor:
                expected[writer.row()["generation"]] = content(cursor)
            if len(expected) == RESTORES:
                break
        log, different = Log(open_place(str(place))), []
        for generation in chance.sample(sorted(expected), RESTORES):
            path = tmp_path / "restored.duckdb"
            restore(log, path, At(generation=generation))
            with duckdb.connect(str(path), read_only=True) as connection:
                if found := {*content(connection)} ^ {*expected[generation]}:
                    different.append((generation, found))
            path.unlink()
    finally:
        writer.close()
        store.close()
    print(f"{RESTORES} generations restored, of {max(expected)}; other content in {len(different)}")
    assert not different
