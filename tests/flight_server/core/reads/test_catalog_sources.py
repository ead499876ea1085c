"""`sys.changes`: each snapshot compared with the previous one; `sys.connectors` for limited callers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.reads.local_reader import LocalReader
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        for snapshot, rows in ((1, 100), (2, 100), (3, 250), (4, 0)):
            put(app, [KEY | {"snapshot_id": snapshot, "row_count": rows, "data_file_count": 1}], "stats.tables")
        put(app, [KEY | {"table_name": "hidden", "snapshot_id": 1, "row_count": 5}], "stats.tables")
        put(app, [KEY | {"table_name": "hidden", "snapshot_id": 2, "row_count": 6}], "stats.tables")

        def commit(connection):
            for snapshot, hour, schema in ((1, 1, "a"), (2, 2, "a"), (3, 5, "b"), (4, 6, "b")):
                connection.execute(
                    "UPDATE snapshots SET committed_at = ?, schema_hash = ? WHERE snapshot_id = ?",
                    [datetime(2026, 1, 1, hour, tzinfo=UTC), schema, snapshot],
                )

        app.database.write(commit)
        yield app


def changes(app, principal=ANONYMOUS, **of):
    where = [{"column": name, "op": "EQ", "values": [value]} for name, value in of.items()]
    rows = LocalReader(app.scanner, principal).read("sys.changes", None, where).to_pylist()
    return [
        (
            row["snapshot_id"],
            row["previous_snapshot_id"],
            row["statistic"],
            row["before"],
            row["after"],
            row["change_percent"],
        )
        for row in rows
    ]


def test_volume_change_is_listed_only_where_the_row_count_differs(app):
    assert changes(app, table_name="t", kind="VOLUME") == [
        (3, 2, "row_count", 100, 250, 150.0),
        (4, 3, "row_count", 250, 0, -100.0),
    ]


def test_schema_change_is_listed_where_the_hash_differs(app):
    assert changes(app, table_name="t", kind="SCHEMA") == [(3, 2, "schema_hash", None, None, None)]


def test_freshness_change_is_the_time_between_commits(app):
    found = changes(app, table_name="t", kind="FRESHNESS")
    assert [(row[0], row[3], row[4]) for row in found] == [(2, None, 3600), (3, 3600, 10_800), (4, 10_800, 3600)]


def test_options_of_a_lake_are_for_callers_who_see_all_of_it(app):
    options = {"exclude": "s.hidden"}
    app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "delta", "/lake", options))
    for tables, expected in (("*", options), ("lake.*", options), ("lake.s.t", None)):
        reader = LocalReader(app.scanner, Principal("some", frozenset({"stats.read"}), (tables,)))
        (row,) = reader.read("sys.connectors").to_pylist()
        assert (row["uri"], row["options"] and json.loads(row["options"])) == ("/lake", expected)
        named = [{"column": "options", "op": "EQ", "values": [json.dumps(options)]}]
        assert reader.read("sys.connectors", ["catalog"], named).num_rows == (expected is not None)


def test_changes_are_limited_to_visible_tables(app):
    some = Principal("some", frozenset({"stats.read"}), ("lake.s.t",))
    assert not changes(app, some, table_name="hidden") and changes(app, some)
    assert changes(app, table_name="hidden", kind="VOLUME") == [(2, 1, "row_count", 5, 6, 20.0)]
