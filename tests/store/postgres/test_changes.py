"""What one cache records, another applies: both have the same rows after any history."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import execute, query
from store.duckdb.commit_log import CommitLog
from store.duckdb.database import Database
from store.model.errors import Conflict
from store.postgres.changes import Commit, apply, decode, encode, layout_of
from store.postgres.recorder import Recorder, prepare
from store.queue.job_store import JobStore
from store.queue.jobs import Job
from store.stats_store import DuckDBStatsStore
from tests.store.catalog import test_catalog
from tests.store.catalog import test_schema_changes as schema_changes
from tests.store.contract import StatsStoreContract, columns, put, rows
from tests.store.history import test_spans
from tests.store.test_stats_store import FILE_STEP
from tests.store.test_write_through import apply_file_step


class Mirror(CommitLog):
    """Applies each commit of one database to another."""

    def __init__(self, source: Database, target: Database):
        with source.reading() as cursor:
            self.layout = layout_of(cursor)
        self.target, self.recorder, self.sizes = target, None, []
        self.schemas: dict[str, pa.Schema] = {}

    def begin(self, connection):
        prepare(connection)
        self.recorder = Recorder(connection, self.layout, self.schemas)
        return self.recorder

    def record(self, touched, outlived):
        commit = encode(Commit(self.recorder.changes(), touched, outlived))
        self.sizes.append(len(commit))
        change = lambda connection: apply(connection, [decode(commit)])  # noqa: E731
        self.target.submit(lambda connection: self.target.apply(connection, change), alone=True).result()
        return True


def content(database: Database) -> dict[str, list]:
    with database.reading() as cursor:
        return {
            table: sorted(map(repr, cursor.execute(f"SELECT * FROM {table}").fetchall())) for table in layout_of(cursor)
        }


class MirroredStore(DuckDBStatsStore):
    """A store whose every commit is mirrored, and compared once it is closed."""

    def __init__(self, _=None):
        database, self.copy = Database(":memory:"), Database(":memory:")
        super().__init__(database, Catalog(database))
        self.copied = DuckDBStatsStore(self.copy, Catalog(self.copy))
        self.mirror = Mirror(database, self.copy)
        database.phases = database.phases._replace(log=self.mirror)

    def check(self):
        assert content(self.copy) == content(self.database)
        known, copied = self.catalog.entries.committed, self.copied.catalog.entries.committed
        assert (known.by_name, known.by_key) == (copied.by_name, copied.by_key)

    def close(self):
        self.check()
        super().close()
        self.copy.close()


FEW = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
FILE_STEPS = st.lists(FILE_STEP, min_size=1, max_size=6)


class TestMirroredStore(StatsStoreContract):
    lasts = False

    def open(self, path):
        return MirroredStore()


def check_history(apply_step, steps) -> None:
    store = MirroredStore()
    put(store, "stats.tables", rows("stats.tables", {"row_count": 0}, snapshot=9))
    for step in steps:
        apply_step(store, step)
        store.check()
    store.close()


@FEW
@given(steps=test_spans.HISTORIES)
def test_copy_is_the_same_after_any_history(steps):
    check_history(test_spans.apply, steps)


@pytest.mark.benchmark
@MANY
@given(steps=test_spans.HISTORIES)
def test_copy_is_the_same_after_many_histories(steps):
    check_history(test_spans.apply, steps)


@FEW
@given(steps=FILE_STEPS)
def test_copy_is_the_same_after_any_history_of_files(steps):
    check_history(apply_file_step, steps)


@pytest.mark.benchmark
@MANY
@given(steps=FILE_STEPS)
def test_copy_is_the_same_after_many_histories_of_files(steps):
    check_history(apply_file_step, steps)


def test_columns_that_follow_another_schema_are_the_same_in_the_copy():
    """Groups whose names change are changed as a whole."""
    store = MirroredStore()
    before = schema_changes.schema((1, "a"), (2, "b"), (3, "d"))
    after = schema_changes.schema((1, "b"), (2, "a"), (4, "d"))
    entry = test_catalog.discover(store.catalog, **before, live_snapshot_ids=[1])
    schema_changes.capture(store.catalog, entry, (1, 2, 3), 1, before)
    test_catalog.discover(store.catalog, **after, live_snapshot_ids=[1])
    store.close()


def test_another_life_of_a_table_is_one_everywhere():
    store = MirroredStore()
    put(store, "stats.columns", columns((1, 10)))
    key = store.catalog.get("c.s.t").table_key
    store.database.write(lambda _: store.catalog.outlive(key))
    assert store.copied.catalog.lives[key] == 1
    store.close()


def test_job_goes_to_one_of_two_and_back():
    store = MirroredStore()
    put(store, "stats.columns", columns((1, 10)))
    table = store.catalog.get("c.s.t")
    ours = JobStore(store.database, store.catalog.by_key, holder="ours")
    store.database.phases = store.database.phases._replace(queue=ours)
    theirs = JobStore(store.copy, store.copied.catalog.by_key, holder="theirs")
    store.copy.phases = store.copy.phases._replace(queue=theirs)
    assert theirs.take() == []
    (job_id,) = ours.enqueue([Job("job", table=table, snapshot="1", request={"requests": []})])
    assert theirs.get(job_id)["state"] == "QUEUED"
    assert [job.id for job in ours.take()] == [job_id]
    assert theirs.take() == [] and theirs.other_holders() == {"ours"}
    with pytest.raises(Conflict, match="another server has taken over the job"), store.copy.reading() as cursor:
        theirs.check_held([job_id], cursor)
    assert ours.take_over({"theirs"}) == 0
    assert JobStore(store.database, store.catalog.by_key, holder="third").take_over({"ours"}) == 1
    assert [job.id for job in theirs.take()] == [job_id]
    store.copy, copied = Database(":memory:"), store.copy
    copied.close()
    store.database.close()


def test_puts_after_those_of_a_clock_that_is_ahead_are_newer():
    store = MirroredStore()
    store._generations._newest = ahead = 2**60
    put(store, "stats.columns", columns((1, 10)))
    assert store.copied._generations.next() > ahead + 1
    store.close()


def test_small_change_is_a_few_kilobytes():
    store = MirroredStore()
    put(store, "stats.columns", columns((1, 10), (2, 20)))
    put(store, "stats.columns", columns((1, 11)), "upsert")
    assert max(store.mirror.sizes) < 8_000
    store.close()


def test_unknown_statement_is_refused():
    recorder = Recorder(duckdb.connect(":memory:"), {})
    with pytest.raises(AssertionError, match="a statement of an unknown kind"):
        recorder.execute("TRUNCATE jobs")


def checks_table() -> duckdb.DuckDBPyConnection:
    """A database with two rows in one table."""
    connection = duckdb.connect(":memory:")
    connection.execute("CREATE TABLE checks (table_key BIGINT, rule VARCHAR, more VARCHAR)")
    connection.execute("INSERT INTO checks VALUES (1, 'a', NULL), (2, 'b', NULL)")
    prepare(connection)
    return connection


DELETION, UPDATE = "DELETE FROM checks WHERE rule = 'a'", "UPDATE checks SET more = 'x' WHERE rule = 'b'"
INSERT = "INSERT INTO checks BY NAME FROM {new}"
COPY = "INSERT INTO checks SELECT table_key + 1, rule, 'y' FROM checks"


@pytest.mark.parametrize(
    "statements",
    [
        [INSERT],
        [DELETION, INSERT],
        [INSERT, DELETION],
        [UPDATE, INSERT],
        [INSERT, UPDATE],
        [INSERT, INSERT, DELETION],
        [COPY],
        [INSERT, COPY],
        [COPY, INSERT],
        [COPY, DELETION],
        [UPDATE, COPY],
        [COPY, UPDATE],
    ],
)
def test_inserted_rows_are_as_they_are_once_the_transaction_ends(statements):
    layout, new = {"checks": ("table_key", "rule", "more")}, pa.table({"rule": ["a", "b"], "table_key": [1, 3]})
    connection, copy = checks_table(), checks_table()
    schemas = {"checks": query(connection, "SELECT * FROM checks").schema}
    connection.execute("BEGIN")
    recorder = Recorder(connection, layout, schemas)
    for statement in statements:
        execute(recorder, statement, **({"new": new} if statement is INSERT else {}))
    changes = recorder.changes()
    connection.execute("COMMIT")
    apply(copy, [decode(encode(Commit(changes)))])
    content, copied = (sorted(map(str, each.execute("FROM checks").fetchall())) for each in (connection, copy))
    assert copied == content
