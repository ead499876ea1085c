"""The state of a table that policies decide by."""

from __future__ import annotations

from tests.flight_server.serving import app_in, put, rows


def test_state_counts_the_snapshots_since_the_newest_scan(tmp_path):
    with app_in(tmp_path) as app:
        put(app, rows("t", 1, [1], producer="ENGINE_COMPUTED"))
        for snapshot, behind in ((1, 0), (2, 1), (3, 2)):
            put(app, rows("t", snapshot, [2], producer="UPSTREAM_METADATA_DERIVED"))
            assert app.auto._state(app.catalog.get("lake.s.t")).snapshots_behind == behind
        put(app, rows("t", 3, [1], producer="ENGINE_COMPUTED"))
        assert app.auto._state(app.catalog.get("lake.s.t")).snapshots_behind == 0
