"""Checks of a database's content: none fails after any history, and each finds what it is about."""

from __future__ import annotations

import re
import shutil

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.duckdb.layout import insert_rows
from store.invariants import check_file, checks, violations
from store.model.errors import InvalidArgument
from store.stats_store import DuckDBStatsStore
from tests.store.empty_store import empty_database, empty_store
from tests.store.every_kind import put_every_kind
from tests.store.history.test_spans import HISTORIES, apply


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES)
def test_no_history_violates_an_invariant(steps):
    check_history(steps)


@pytest.mark.benchmark
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES)
def test_no_history_of_many_violates_an_invariant(steps):
    check_history(steps)


def check_history(steps):
    database = empty_database()
    try:
        store = DuckDBStatsStore(database, Catalog(database))
        for step in steps:
            apply(store, step)
        with database.reading() as cursor:
            assert list(violations(cursor)) == []
    finally:
        database.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A closed database that has rows in every table that the checks are about."""
    path = empty_store(tmp_path_factory.mktemp("whole") / "s.duckdb")
    database = Database(path)
    store = DuckDBStatsStore(database, Catalog(database))
    put_every_kind(store)
    key = store.catalog.get("c.s.t").table_key
    database.write(
        lambda connection: insert_rows(connection, "jobs (job_id, state, table_key)", [["j", "QUEUED", key]])
    )
    database.close()
    return path


@pytest.fixture(scope="module")
def connection(whole, tmp_path_factory):
    path = tmp_path_factory.mktemp("opened") / "s.duckdb"
    shutil.copy(whole, path)
    with duckdb.connect(str(path)) as connection:
        yield connection


@pytest.fixture
def opened(connection):
    """A connection to a copy, whose changes are rolled back."""
    connection.execute("BEGIN")
    yield connection
    connection.execute("ROLLBACK")


def broken(whole, tmp_path, *statements):
    path = tmp_path / "broken.duckdb"
    shutil.copy(whole, path)
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return list(check_file(path))


def test_whole_database_has_no_violations(whole, tmp_path):
    assert broken(whole, tmp_path) == []


def test_a_table_that_was_dropped_and_created_again_is_no_violation(whole, tmp_path):
    dropped = "99 AS table_key, * EXCLUDE (table_key) REPLACE (TRUE AS dropped, NULL AS current_snapshot_id)"
    assert broken(whole, tmp_path, f"INSERT INTO tables SELECT {dropped} FROM tables LIMIT 1") == []


# What is broken → what the checks call it; {0} is every table of the kind.
FILES = ("stats_files", "stats_file_columns", "file_sketches")
STORED = ("stats_tables", "stats_columns", "stats_expressions", "stats_column_groups", "stats_sketches")
GROUPED = tuple(f"{name}{part}" for name in STORED[1:4] for part in ("_current", "_history"))
SNAPSHOT_ROWS = tuple(f"{name}{part}" for name in STORED for part in ("_current", "_history"))
REFERRING = (
    "schemas",
    "table_columns",
    "column_ids",
    "table_constraints",
    "snapshots",
    "identities",
    "file_snapshots",
    "checks",
    "publications",
    *SNAPSHOT_ROWS,
    *FILES,
)
TWICE = "INSERT INTO {0} SELECT * FROM {0}"
SPANS = "{0}: a row has another span, part or distribution than its records give"
CASES = [
    ("tables: several of one key", TWICE, ("tables",)),
    (
        "tables: several of one name",
        "INSERT INTO {0} SELECT 99 AS table_key, * EXCLUDE (table_key) FROM {0}",
        ("tables",),
    ),
    ("tables: the current snapshot is not registered", "UPDATE {0} SET current_snapshot_id = 99", ("tables",)),
    ("snapshots: several of one id", TWICE, ("snapshots",)),
    ("snapshots: another schema key than the schema gives", "UPDATE {0} SET schema_key = 9", ("snapshots",)),
    ("column_ids: several of one name", TWICE, ("column_ids",)),
    ("jobs: several of one id", TWICE, ("jobs",)),
    ("jobs: unknown state", "UPDATE {0} SET state = 'LOST'", ("jobs",)),
    ("idempotency: several answers to one key", TWICE, ("idempotency",)),
    ("file_snapshots: several listings of one snapshot", TWICE, ("file_snapshots",)),
    ("file_snapshots: several listings at one position", "UPDATE {0} SET pos = 1", ("file_snapshots",)),
    ("file_snapshots: the span of a listing is another", "UPDATE {0} SET to_ord = 9", ("file_snapshots",)),
    ("{0}: rows of no table", "INSERT INTO {0} (table_key) VALUES (99)", REFERRING),
    ("{0}: the snapshot is not registered", "UPDATE {0} SET snapshot_id = 99", ("file_snapshots", *SNAPSHOT_ROWS)),
    (
        "{0}: several records of one target at one snapshot",
        "INSERT INTO {0}_history SELECT * FROM {0}_current LIMIT 1",
        STORED,
    ),
    ("{0}: spans of one target overlap", "UPDATE {0}_history SET to_ord = 99", STORED),
    (SPANS, "UPDATE {0}_history SET to_ord = from_ord WHERE from_ord = 1", STORED),
    (SPANS, "INSERT INTO {0}_history SELECT * FROM {0}_current", STORED),
    (SPANS, "UPDATE {0}_current SET distribution_snapshot_id = 2", STORED[1:4]),
    ("{0}: the distribution's snapshot is not registered", "UPDATE {0} SET distribution_snapshot_id = 99", GROUPED),
    (
        "{0}: own_ columns of a row that is served with its own distribution",
        "UPDATE {0} SET distribution_snapshot_id = snapshot_id, own_mean = 1",
        GROUPED,
    ),
    ("{0}: the values of a distribution are not those of its record", "UPDATE {0}_current SET ndv = 5", STORED[1:4]),
    (
        "staged_listings: several of one table",
        "INSERT INTO {0} SELECT 1, 'stats.files', 3, unnest([1, 2])",
        ("staged_listings",),
    ),
    (
        "staged_listings: a snapshot has the position",
        "INSERT INTO {0} SELECT table_key, family, pos, 1 FROM file_snapshots",
        ("staged_listings",),
    ),
    ("{0}: empty spans", "UPDATE {0} SET to_pos = from_pos WHERE from_pos = 1", FILES),
    ("{0}: spans of one file overlap", TWICE, FILES),
    ("{0}: spans without a listing", "UPDATE {0} SET from_pos = 7, to_pos = 8 WHERE from_pos = 1", FILES),
    ("{0}: spans that end before or after the newest listing", "UPDATE {0} SET to_pos = 3 WHERE from_pos = 1", FILES),
]


@pytest.mark.parametrize(
    ("name", "statement", "tables"),
    CASES,
    ids=[re.sub(r"\W+", "-", f"{at}-{case[0]}") for at, case in enumerate(CASES)],
)
def test_each_check_finds_what_it_is_about(opened, name, statement, tables):
    for table in tables:
        opened.execute(statement.format(table))
    for table in tables:
        (check,) = (check for check in checks() if check.name == name.format(table))
        (violation,) = violations(opened, [check])
        assert violation.number >= 1
        assert violation.remedy


def test_every_check_is_tested():
    tested = {name.format(table) for name, _, tables in CASES for table in tables}
    assert {check.name for check in checks()} == tested


def test_violation_counts_rows_and_names_tables(whole, tmp_path):
    rows_of_no_table = (f"INSERT INTO checks (table_key) VALUES ({at})" for at in range(90, 95))
    found = broken(whole, tmp_path, "UPDATE jobs SET state = 'LOST'", *rows_of_no_table)
    assert [(violation.number, violation.where) for violation in found] == [
        (1, "c.s.t"),
        (5, "table_key 90, table_key 91, table_key 92, 2 more"),
    ]


def test_damaged_block_ends_the_checks(whole, tmp_path):
    path = tmp_path / "damaged.duckdb"
    damaged = bytearray(whole.read_bytes())
    at = damaged.rindex(b"spark")
    damaged[at : at + 5] = b"SPARK"
    path.write_bytes(damaged)
    (violation,) = check_file(path)
    assert "checksum" in violation.what
    assert violation.number is None


def test_missing_column_ends_the_checks(whole, tmp_path):
    (violation,) = broken(whole, tmp_path, "ALTER TABLE jobs DROP COLUMN message")
    assert violation.number == 1
    assert "layout" in violation.what


def test_database_in_use_or_of_nothing_is_refused(whole, tmp_path):
    path = tmp_path / "held.duckdb"
    shutil.copy(whole, path)
    database = Database(path)
    try:
        with pytest.raises(InvalidArgument, match="another process holds it"):
            list(check_file(path))
    finally:
        database.close()
    with pytest.raises(InvalidArgument, match="there is no file"):
        list(check_file(tmp_path / "none.duckdb"))
    assert not (tmp_path / "none.duckdb").exists()
    (tmp_path / "text.duckdb").write_text("not a database")
    with pytest.raises(InvalidArgument, match="a file of another kind"):
        list(check_file(tmp_path / "text.duckdb"))
