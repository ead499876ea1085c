"""The state of a table that policies decide by, and the age of distributions that they bound."""

from __future__ import annotations

import json

import pytest

from flight_server.core.actions import ACTIONS, Call
from flight_server.core.auth.principal import ALL_SCOPES, Principal
from flight_server.core.control.table_states import states
from store.catalog.discovery import Discovery
from store.model.errors import InvalidArgument
from tests.flight_server.serving import app_in, command, put, read, rows


def state_of(app):
    table = app.catalog.get("lake.s.t")
    return states(app.database, [table], app.usage.of([table.table_key]))[table.table_key]


def test_state_counts_the_snapshots_since_the_newest_scan():
    with app_in() as app:
        put(app, rows("t", 1, [1], producer="ENGINE_COMPUTED"))
        for snapshot, behind in ((1, 0), (2, 1), (3, 2)):
            put(app, rows("t", snapshot, [2], producer="UPSTREAM_METADATA_DERIVED"))
            assert state_of(app).snapshots_behind == behind
        put(app, rows("t", 3, [1], producer="ENGINE_COMPUTED"))
        assert state_of(app).snapshots_behind == 0


def test_doubled_rows_are_seen_without_a_listing_of_files():
    with app_in() as app:
        (one,) = rows("t", 1, [1], producer="ENGINE_COMPUTED")
        key = {name: one[name] for name in ("table_catalog", "table_schema", "table_name")}
        put(app, [one])
        for snapshot, count, share in ((2, None, 0.0), (3, one["row_count"], 0.0), (4, 4 * one["row_count"], 0.75)):
            put(app, [key | {"snapshot_id": snapshot, "row_count": count}], "stats.tables")
            state = state_of(app)
            assert (state.changed_share, state.least_changed_share) == (None, share)


def test_sample_is_no_scan():
    with app_in() as app:
        put(app, rows("t", 1, [1], producer="ENGINE_COMPUTED"))
        put(app, rows("t", 2, [1], producer="ENGINE_COMPUTED", completeness="PARTIAL", row_groups_sampled=1))
        state = state_of(app)
        assert (state.captured_snapshot_id, state.captured_columns) == (1, frozenset())


def test_file_whose_row_is_replaced_has_not_changed():
    """As by a capture of another mode."""
    with app_in() as app:
        (one,) = rows("t", 1, [1], producer="ENGINE_COMPUTED")
        key = {name: one[name] for name in ("table_catalog", "table_schema", "table_name")}
        put(app, [one])
        files = [
            {"file_path": path, "file_content": "DATA", "row_count": count, "size_bytes": size}
            for path, count, size in (("a", 70, 7), ("b", 20, 7), ("c", 10, 7))
        ]
        for snapshot, mode, size in ((1, "ASYNC", 7), (2, "SYNC", 8)):
            listed = [key | {"snapshot_id": snapshot, "capture_mode": mode} | file for file in files]
            put(app, [*listed[:2], listed[2] | {"size_bytes": size}], "stats.files", "replace_snapshot")
        assert state_of(app).changed_share == 0.1


def test_states_of_many_tables_are_those_of_each():
    with app_in() as app:
        for snapshot in range(1, 4):
            columns, files = [], []
            for number in range(20):  # more than conditions have literals
                if snapshot > number % 4:
                    continue
                count = 100 + number * snapshot
                producer = "ENGINE_COMPUTED" if (number + snapshot) % 3 else "UPSTREAM_METADATA_DERIVED"
                columns += rows(f"t{number}", snapshot, [1, 2], producer=producer, row_count=count)
                key = {"table_catalog": "lake", "table_schema": "s", "table_name": f"t{number}"}
                files += [
                    key | {"snapshot_id": snapshot, "file_path": f"f{at}", "file_content": "DATA", "row_count": at + 1}
                    for at in range(snapshot, snapshot + number)
                ]
            put(app, columns)
            put(app, files, "stats.files")
        tables = app.catalog.tables()
        used = {tables[0].table_key: {"c1": 3}}
        found = states(app.database, tables, used)
        assert found == {t.table_key: states(app.database, [t], used)[t.table_key] for t in tables}
        assert len({(s.snapshots_behind, s.changed_share, s.least_changed_share) for s in found.values()}) == 5


def test_policy_bounds_how_old_an_inherited_distribution_is():
    """Under `current` and under the snapshot's id, and for sketches; counts are inherited as before."""
    with app_in(auto_analyze="max_snapshots_behind=1, columns=none") as app:
        app.database.write(lambda c: app.catalog.register(c, ("lake", "s", "t"), "id", "iceberg"))
        app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "iceberg", "u", {}))
        sketch = {
            "target_kind": "COLUMN",
            "storage_id": "column-0000000000000000001",
            "column_id": 1,
            "role": "NDV",
            "sketch_type": "x",
            "data": b"1",
        }
        one = rows("t", 1, [1], schema_hash="h")[0]
        key = {name: one[name] for name in ("table_catalog", "table_schema", "table_name", "snapshot_id")}
        put(app, [one])
        put(app, [key | sketch], "stats.sketches")

        def served(snapshot, policy=None, **more):
            options = {} if policy is None else {"policy": policy}
            app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "iceberg", "u", options))
            discover(app, snapshot)
            app.auto.review("lake", [app.catalog.get("lake.s.t")])
            for at in (snapshot, "current", snapshot):
                (row,) = read(app, command("t", snapshot=at, **more)).to_pylist()
                assert (row["snapshot_id"], row["row_count"]) == (1, 101)
                labels = read(app, command("t", "stats.sketches", snapshot=at, **more))["freshness"].to_pylist()
                assert labels == [row["distribution_freshness"]] * (row["ndv"] is not None)
            return row["freshness"], row["distribution_freshness"], row["distribution_snapshot_id"], row["ndv"]

        assert served(2) == ("INHERITED", "INHERITED", 1, 1.5)
        assert served(3) == ("INHERITED", None, None, None)
        assert served(3, allow_stale=True) == ("INHERITED", "STALE", 1, 1.5)
        assert served(3, "s.*: max_snapshots_behind=2; *: off") == ("INHERITED", "INHERITED", 1, 1.5)
        assert served(3, "s.*: max_snapshots_behind=0") == ("INHERITED", None, None, None)
        assert served(3, "off") == ("INHERITED", "INHERITED", 1, 1.5)


def test_another_schema_at_the_same_snapshot_does_not_wait_for_a_retry():
    """The statistics of the snapshot were deleted with its former schema."""
    with app_in(auto_analyze="metadata") as app:
        app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "iceberg", "u", {}))

        def review(schema):
            discover(app, 1, schema)
            jobs = app.auto.review("lake", [app.catalog.get("lake.s.t")])
            for job in jobs:
                app.jobs.cancel(job)
            return len(jobs)

        assert [review(schema) for schema in ("h", "h", "g", "g", "h")] == [1, 0, 1, 0, 1]


def discover(app, current, schema="h"):
    """Stores an inspection of the table, which has the snapshots 1 to `current`."""
    snapshots = [
        {
            "snapshot_id": i,
            "ordinal": i,
            "parent_snapshot_id": None,
            "sequence_number": None,
            "committed_at": None,
            "operation": None,
            "schema_hash": schema,
        }
        for i in range(1, current + 1)
    ]
    found = {
        "schema": "s",
        "name": "t",
        "table_id": "id",
        "location": "l",
        "schema_hash": schema,
        "schemas": {schema: []},
        "current_snapshot_id": current,
        "snapshots": snapshots,
    }
    app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "iceberg", [found]))


def test_a_policy_that_cannot_be_read_is_refused_and_ends_no_watch(tmp_path):
    body = {"catalog": "lake", "format": "delta", "uri": str(tmp_path), "options": {"policy": "max_age=often"}}
    with app_in(auto_analyze="on") as app:
        call = Call(app, Principal("p", ALL_SCOPES), "", lambda: False)
        with pytest.raises(InvalidArgument, match='policy: cannot read "max_age=often": expected on, off, metadata'):
            list(ACTIONS["register_connector"].run(call, json.dumps(body).encode()))
        for catalog, policy in (("old", "max_age=often"), ("good", "on")):
            options = {"policy": policy}
            app.database.write(lambda c, of=(catalog, "delta", "u", options): app.catalog.connectors.put(c, *of))
        assert (app.auto.interval("old"), app.auto.interval("good")) == (None, 300.0)


def test_a_dropped_connector_or_a_bad_policy_keeps_no_other_table_from_its_review():
    with app_in(auto_analyze="on") as app:
        for catalog in ("bad", "gone", "lake"):
            options = {"policy": "max_age=often"} if catalog == "bad" else {}
            app.database.write(lambda c, of=(catalog, "iceberg", "u", options): app.catalog.connectors.put(c, *of))
            app.database.write(lambda c, of=catalog: app.catalog.register(c, (of, "s", "t"), of, "iceberg"))
            app.auto.captured(app.catalog.get(f"{catalog}.s.t"))
        app.lakes.drop("gone")
        app.auto.look_later()
        decided = app.database.rows("SELECT DISTINCT table_catalog FROM capture_decisions WHERE engine_id = 'policy'")
        assert decided == [("lake",)]
