"""Gauges of the largest tables at their current snapshot."""

from __future__ import annotations

import pytest

from flight_server.process.table_gauges import table_gauges
from tests.flight_server.serving import app_in, put


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    with app_in(tmp_path_factory.mktemp("gauges")) as app:
        for name, rows in (("small", 1), ("large", 200), ("middle", 50), ("unknown", None)):
            key = {"table_catalog": "lake", "table_schema": "s", "table_name": name, "snapshot_id": 1}
            put(app, [key | {"row_count": rows, "total_size_bytes": 10}], "stats.tables")
        key = {"table_catalog": "lake", "table_schema": "s", "table_name": "large"}
        put(app, [key | {"snapshot_id": 2, "row_count": 400, "total_size_bytes": None}], "stats.tables")
        columns = [
            key | {"snapshot_id": 2, "column_id": number, "row_count": 400, "null_count": nulls}
            for number, nulls in ((1, 0), (2, 100), (3, None))
        ]
        put(app, columns)
        yield app.database


def gauge_values(database, most):
    return {
        metric.name: {sample.labels["table"]: sample.value for sample in metric.samples}
        for metric in table_gauges(database, most)
    }


def test_gauges_cover_the_largest_tables_at_their_current_snapshot(database):
    assert gauge_values(database, 2) == {
        "statflight_table_rows": {"lake.s.large": 400, "lake.s.middle": 50},
        "statflight_table_size_bytes": {"lake.s.middle": 10},
        "statflight_table_null_share": {"lake.s.large": 0.125},
    }


def test_limit_0_gives_no_gauges(database):
    assert gauge_values(database, 0) == {}
    assert len(gauge_values(database, 9)["statflight_table_rows"]) == 3
