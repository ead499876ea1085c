"""Database: one writer with group commit, concurrent readers, refusals, backups."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

from store.catalog.catalog import Catalog
from store.duckdb import opening
from store.duckdb.backup import settle, wal
from store.duckdb.commit import Commit, Derived
from store.duckdb.database import Database
from store.duckdb.layout import OLDEST, VERSION, insert_rows
from store.invariants import check_file
from store.model.errors import Cancelled, InvalidArgument, ShuttingDown
from store.stats_store import DuckDBStatsStore
from store.transfer.directory import export_file
from tests.store.contract import columns, put
from tests.store.empty_store import empty_store


@pytest.fixture
def database(tmp_path):
    database = Database(empty_store(tmp_path / "d.db"))
    database.write(lambda c: c.execute("CREATE TABLE t (x BIGINT)"))
    yield database
    database.close()


def values(database: Database) -> list[int]:
    return [x for (x,) in database.rows("SELECT x FROM t ORDER BY x")]


def insert(x: int) -> Any:
    def run(connection):
        connection.execute("INSERT INTO t VALUES (?)", [x])
        if x < 0:
            raise ValueError(x)
        return x

    return run


def hold_writer(database: Database) -> threading.Event:
    """Blocks the writer until the returned event is set, so that the writes submitted meanwhile form one group."""
    entered, release = threading.Event(), threading.Event()

    def wait(connection):
        entered.set()
        release.wait(60)

    database.submit(wait)
    entered.wait(60)
    return release


def long_query(cancelled: threading.Event) -> Any:
    """Sets the event, once, and then runs a query of minutes."""

    def run(connection):
        if not cancelled.is_set():
            cancelled.set()
            connection.execute("SELECT sum(hash(a.range, b.range)) FROM range(1_000_000) a, range(1_000_000) b")

    return run


def test_cancelled_write_is_interrupted_and_stores_nothing(database):
    cancelled = threading.Event()
    with pytest.raises(Cancelled):
        database.write(lambda c: (insert(1)(c), long_query(cancelled)(c)), cancelled.is_set)
    assert values(database) == []
    database.write(insert(3))
    assert values(database) == [3]


def test_cancelled_write_is_interrupted_in_a_phase_and_the_others_of_its_group_are_stored(database):
    cancelled = threading.Event()

    class Long(Derived):
        def derive(self, connection):
            if database.is_touched(7):
                long_query(cancelled)(connection)

    database.phases = Commit(derived=Long())
    release = hold_writer(database)
    other = database.submit(insert(2))
    with ThreadPoolExecutor(1) as pool:
        unwanted = pool.submit(database.write, lambda c: (insert(1)(c), database.touch(7)), cancelled.is_set)
        while database._queue.qsize() < 2:
            pass
        release.set()
        assert other.result(60) == 2
        with pytest.raises(Cancelled):
            unwanted.result(60)
    assert values(database) == [2]


def test_write_cancelled_while_it_waits_is_not_begun(database):
    release = hold_writer(database)
    future = database.submit(insert(1), is_cancelled=lambda: True)
    release.set()
    with pytest.raises(Cancelled):
        future.result(60)
    assert values(database) == []


def test_failed_writes_of_a_group_leave_the_others_committed(database):
    runs: list[int] = []

    class Counted(Derived):
        def reload(self, _):
            runs.append(0)

    database.phases = Commit(derived=Counted())
    release = hold_writer(database)
    futures = {x: database.submit(insert(x)) for x in (1, 2, -3, 4, -5, 6)}
    release.set()
    assert [futures[x].result(60) for x in (1, 2, 4, 6)] == [1, 2, 4, 6]
    for x in (-3, -5):
        with pytest.raises(ValueError, match=str(x)):
            futures[x].result(60)
    assert values(database) == [1, 2, 4, 6]
    assert len(runs) == 3, "once for the group, once for each that failed"


def test_writes_of_a_group_share_one_commit(database):
    release = hold_writer(database)
    seen = [database.submit(lambda c: c.execute("SELECT txid_current()").fetchall()[0][0]) for _ in range(5)]
    release.set()
    assert len({future.result(60) for future in seen}) == 1


def test_write_that_may_wait_shares_the_commit_of_the_next_one(database, monkeypatch):
    def transaction(connection):
        return connection.execute("SELECT txid_current()").fetchall()[0][0]

    monkeypatch.setattr("store.duckdb.database.WAIT_SECONDS", 60.0)
    waiting = [database.submit(transaction, may_wait=True) for _ in range(2)]
    shared = database.write(transaction)
    assert [future.result(60) for future in waiting] == [shared, shared]
    monkeypatch.setattr("store.duckdb.database.WAIT_SECONDS", 0.01)
    assert database.submit(transaction, may_wait=True).result(60) > shared, "without another one it is stored, too"


def test_touched_table_has_a_new_generation_once_the_write_returns(database):
    """The generation changes after the commit is visible, and before the write returns."""
    first = database.versions.generation(7)
    seen = []

    class Seeing(Derived):
        def publish(self):
            seen.append(database.versions.generation(7))

    database.phases = Commit(derived=Seeing())

    def run(connection):
        database.touch(7)
        seen.append(database.versions.generation(7))

    database.write(run)
    generations = database.versions.generations()
    assert (seen, generations[7], generations[8]) == ([first, first], first + 1, first)
    database.write(insert(1))
    assert (database.versions.generation(7), database.versions.epoch) == (first + 1, 1), "nothing was touched"


def test_rerun_writes_of_a_failed_group_change_their_generations(database):
    def touching(key, x):
        return lambda connection: [database.touch(key), insert(x)(connection)]

    release = hold_writer(database)
    futures = [database.submit(touching(key, x)) for key, x in ((1, 1), (2, -2), (3, 3))]
    release.set()
    assert [futures[at].result(60)[1] for at in (0, 2)] == [1, 3]
    with pytest.raises(ValueError, match="-2"):
        futures[1].result(60)
    assert min(map(database.versions.generation, (1, 3))) > database.versions.generation(99)


def test_write_with_a_failed_statement_is_rolled_back(database):
    def run(connection):
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("SELECT * FROM nowhere")

    with pytest.raises(duckdb.Error):
        database.write(run)
    database.write(insert(2))
    assert values(database) == [2]


def test_reader_keeps_its_snapshot_while_rows_are_deleted(database):
    database.write(lambda c: c.execute("INSERT INTO t SELECT range FROM range(100000)"))
    with database.reading() as cursor:
        reader = cursor.sql("SELECT x FROM t").to_arrow_reader(1000)
        first = reader.read_next_batch()
        database.write(lambda c: c.execute("DELETE FROM t"))
        assert first.num_rows + sum(batch.num_rows for batch in reader) == 100_000
    assert values(database) == []


def test_write_alone_runs_outside_of_transactions(database, tmp_path):
    """The log that the next commit finds is a new one, which need not have the inode of the old one."""

    def checkpoint(connection):
        connection.execute("CHECKPOINT").fetchall()
        (tmp_path / "takes the inode").touch()

    release = hold_writer(database)
    before = database.submit(insert(1))
    alone = database.submit(checkpoint, alone=True)
    failing = database.submit(insert(-1), alone=True)
    after = database.submit(insert(2))
    release.set()
    alone.result(60)
    with pytest.raises(ValueError, match="-1"):
        failing.result(60)
    assert (before.result(60), after.result(60)) == (1, 2)


def test_closed_database_refuses_reads_and_writes(tmp_path):
    database = Database(empty_store(tmp_path / "d.db"))
    pending = database.submit(lambda c: 7)
    database.close()
    database.close()
    assert pending.result(0) == 7
    with pytest.raises(ShuttingDown):
        database.write(lambda c: None)
    with pytest.raises(ShuttingDown):
        database.read()


def test_write_that_is_queued_while_its_database_closes_is_run(tmp_path, monkeypatch):
    database = Database(empty_store(tmp_path / "d.db"))
    closing = threading.Thread(target=database.close)
    queued = database._queue

    class CloseFirst:
        def put(self, item):
            if item is not None:  # of the write, which has found the database open
                closing.start()
                closing.join(0.1)
            queued.put(item)

        def __getattr__(self, name):
            return getattr(queued, name)

    monkeypatch.setattr(database, "_queue", CloseFirst())
    assert database.submit(lambda c: 7).result(60) == 7
    closing.join(60)


def test_query_that_begins_once_its_database_is_closed_says_so(tmp_path):
    database = Database(empty_store(tmp_path / "d.db"))
    with pytest.raises(ShuttingDown), database.reading() as cursor:
        database.close()
        cursor.execute("SELECT 1")


# Opening.


def test_backup_beside_the_log_of_another_state_is_refused_with_the_reason(tmp_path):
    """As where a backup is copied over the file of a server that was killed."""
    database = Database(tmp_path / "d.db")
    database.write(lambda connection: connection.execute("CREATE TABLE t (x BIGINT)"))
    database.backup(tmp_path / "b.db")
    log = wal(tmp_path / "d.db").read_bytes()
    database.close()
    wal(tmp_path / "b.db").write_bytes(log)
    with pytest.raises(InvalidArgument, match=r"cannot be opened as a database: .* WAL .* does not match"):
        Database(tmp_path / "b.db")


def test_foreign_file_is_refused_and_unchanged(tmp_path):
    (tmp_path / "text.db").write_text("no database" * 1000)
    with pytest.raises(InvalidArgument, match="cannot be opened as a database"):
        Database(tmp_path / "text.db")
    for number, table in enumerate(
        (
            "customers (id BIGINT)",
            "settings (id BIGINT)",
            "settings AS SELECT 'a' AS name, 'b' AS value",
            "settings AS SELECT 'schema_version' AS name, 'b' AS value",
            "settings AS SELECT 'schema_version' AS name, '7' AS value",
        )
    ):
        path = tmp_path / f"{number}.db"
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"CREATE TABLE {table}")
        with pytest.raises(InvalidArgument, match="not of statflight"):
            Database(path)
        with duckdb.connect(str(path)) as connection:
            (name,) = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
            assert name == (table.split()[0],)


@pytest.mark.parametrize("version", [1, OLDEST - 1, VERSION + 1])
def test_other_layout_is_refused_with_what_to_do(tmp_path, version):
    path = tmp_path / "d.db"
    with duckdb.connect(str(empty_store(path))) as connection:
        connection.execute(f"UPDATE settings SET value = '{version}'")
    wanted = f'"d.db": it has layout {version}, .* layout {VERSION}'
    with pytest.raises(InvalidArgument, match=wanted) as refused:
        Database(path)
    assert "install the version that wrote it" in refused.value.hint
    with duckdb.connect(str(path)) as connection:  # the file is unlocked and unchanged
        assert connection.execute("SELECT value FROM settings").fetchall() == [(str(version),)]


@pytest.mark.parametrize("noted", [{}, {opening.SHARED_ADDRESS: "postgresql://flight@db/store"}])
def test_cache_of_a_shared_store_is_read_but_not_written_alone(tmp_path, noted):
    path = empty_store(tmp_path / "d.db")
    with duckdb.connect(str(path)) as connection:
        insert_rows(connection, "settings", list({opening.SHARED_STORE: "0b5e", **noted}.items()))
    before = path.read_bytes()
    address = noted.get(opening.SHARED_ADDRESS, "postgresql://...")
    for open_alone in (Database, DuckDBStatsStore.open):
        with pytest.raises(InvalidArgument, match=f'"d.db": it is the cache of the store {address}') as refused:
            open_alone(path)
        assert f'serve it with store = "{address}"' in refused.value.hint
    assert list(check_file(path)) == []
    export_file(path, tmp_path / "exported")
    assert path.read_bytes() == before and not wal(path).exists()
    Database(path, is_cache=True).close()


def test_close_waits_for_a_reader_in_the_middle_of_a_query(tmp_path):
    database = Database(empty_store(tmp_path / "d.db"))
    cursor, began, found = database.read(), threading.Event(), []

    def read() -> None:
        batches = cursor.sql("SELECT i FROM range(3_000_000) t(i)").to_arrow_reader(10_000)
        found.append(batches.read_next_batch().num_rows)
        began.set()
        found.extend(batch.num_rows for batch in batches)
        cursor.close()

    reader = threading.Thread(target=read)
    reader.start()
    began.wait()
    database.close()
    reader.join()
    assert sum(found) == 3_000_000
    Database(tmp_path / "d.db").close()


# Backups.


def test_backup_opens_as_a_database_with_the_records_of_its_time(database, tmp_path):
    store = DuckDBStatsStore(database, Catalog(database))
    put(store, "stats.columns", columns(*((i, i) for i in range(1, 3000))))
    with database.reading() as cursor:  # an open stream does not block the backup
        reader = cursor.sql("SELECT * FROM stats_columns").to_arrow_reader(100)
        reader.read_next_batch()
        size = database.backup(tmp_path / "b.db")
        put(store, "stats.columns", columns((1, 5)), "upsert")
    assert size == (tmp_path / "b.db").stat().st_size > 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "b"))) == ["b.db"]
    copy = Database(tmp_path / "b.db")
    assert DuckDBStatsStore(copy, Catalog(copy)).count(store.catalog.get("c.s.t"), 1) == 2999
    assert copy.rows("SELECT row_count FROM stats_columns WHERE column_id = 1") == [(1,)]
    copy.close()


def test_backup_during_writes_is_consistent(database, tmp_path):
    """Each write inserts a pair of rows; no copy has half of a pair."""
    stop = threading.Event()

    def write() -> None:
        x = 0
        while not stop.is_set():
            x += 1
            database.write(lambda c, x=x: [c.execute("INSERT INTO t VALUES (?)", [x]) for _ in range(2)])

    thread = threading.Thread(target=write)
    thread.start()
    for number in range(3):
        database.backup(tmp_path / f"b{number}.db")
    stop.set()
    thread.join()
    for number in range(3):
        with duckdb.connect(str(tmp_path / f"b{number}.db"), read_only=True) as copy:
            found = copy.execute("SELECT x, count(*) FROM t GROUP BY x ORDER BY x").fetchall()
        assert {count for _, count in found} <= {2}
        assert [x for x, _ in found] == list(range(1, len(found) + 1))


def test_of_two_backups_to_a_path_at_once_one_is_refused(database, tmp_path, monkeypatch):
    refusals = []

    def settling(path: Path) -> None:
        if not refusals:  # by the first one, before it is complete
            refusals.append(None)
            with pytest.raises(InvalidArgument, match="another one to this path is under way") as refusal:
                database.backup(tmp_path / "b.db")
            refusals[0] = refusal.value.code
        settle(path)

    monkeypatch.setattr("store.duckdb.database.settle", settling)
    assert database.backup(tmp_path / "b.db") == (tmp_path / "b.db").stat().st_size
    assert refusals == ["BACKUP"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "b"))) == ["b.db"]


def test_backup_refuses_existing_and_invalid_paths_with_the_reason(database, tmp_path):
    (tmp_path / "taken").write_text("mine")
    for path, reason in (
        (tmp_path / "taken", "exists or is reserved"),
        ("relative.db", "absolute"),
        ("/b\0", "zero byte"),
        (tmp_path / "no" / "b.db", "No such file or directory"),
    ):
        with pytest.raises(InvalidArgument, match=reason) as refusal:
            database.backup(path)
        assert refusal.value.code == "BACKUP" and str(tmp_path) not in str(refusal.value)
    assert (tmp_path / "taken").read_text() == "mine"
    with pytest.raises(InvalidArgument, match="in memory"):
        memory = Database(":memory:")
        try:
            memory.backup(tmp_path / "m.db")
        finally:
            memory.close()


@pytest.mark.parametrize(
    "message",
    [
        "Corrupted bitpacking segment: offset is outside the segment",
        "IO Error: Corrupt database file: computed checksum 1 does not match stored checksum 2 in block 3",
    ],
)
def test_nothing_is_written_once_the_memory_of_duckdb_is_corrupt(tmp_path, caplog, message):
    def fail(connection):
        raise duckdb.Error(message)

    database = Database(empty_store(tmp_path / "d.db"))
    database.write(lambda c: c.execute("CREATE TABLE t (x BIGINT)"))
    database.write(insert(1))
    for write in (fail, insert(2)):
        with pytest.raises(ShuttingDown, match="invalidated"):
            database.write(write)
    assert database.is_invalidated and message in caplog.text
    database.close()
    assert (tmp_path / "d.db.wal").stat().st_size, "the file gets nothing of what is in memory"
    opened = Database(tmp_path / "d.db")
    assert values(opened) == [1]
    opened.close()


def test_writes_to_an_invalidated_database_are_refused_rather_than_left_waiting(tmp_path):
    def fail(_):
        raise duckdb.FatalException("FATAL Error: Failed to create checkpoint")

    class Failing(Derived):
        def reload(self, connection):  # as any query of an invalidated database does
            fail(connection)

    database = Database(empty_store(tmp_path / "d.db"))
    database.phases = Commit(derived=Failing())
    with pytest.raises(duckdb.FatalException):
        database.submit(fail).result(60)
    with pytest.raises(ShuttingDown):
        database.submit(insert(1)).result(60)
    database.close()


def test_error_about_a_value_that_speaks_of_corruption_invalidates_nothing(database):
    with pytest.raises(duckdb.ConversionException, match="Corrupted"):
        database.write(lambda c: c.execute("SELECT 'Corrupted bitpacking segment'::BIGINT").fetchall())
    database.write(insert(1))
    assert values(database) == [1] and not database.is_invalidated


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[1, "a", None]],
        [[1, "a", None]] * 3,
        [[1, "a", ["x"]]] * 2,
        [[1, "a", ["x", "y"]], [2, "a", None]],
        [[x, "a", None] for x in range(501)],
    ],
    ids=["none", "one", "equal", "lists", "other", "many"],
)
def test_rows_are_inserted_as_given(tmp_path, rows):
    database = Database(empty_store(tmp_path / "d.db"))
    database.write(lambda c: c.execute("CREATE TABLE t (x BIGINT, y VARCHAR, z VARCHAR[])"))
    database.write(lambda c: insert_rows(c, "t", rows))
    assert list(map(list, database.rows("SELECT * FROM t ORDER BY x"))) == rows
    database.close()
