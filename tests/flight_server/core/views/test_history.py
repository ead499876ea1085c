"""The order of a table's history, on the server itself."""

from datetime import UTC, datetime, timedelta

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views import history
from flight_server.insight import rules
from flight_server.insight.evaluate import check
from store.catalog.discovery import Discovery
from tests.flight_server.serving import app_in, put

NAME = "lake.s.t"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_history_is_in_the_order_of_snapshots_whatever_their_times():
    """Clocks of writers go back, and so does the time of a directory whose newest file is removed."""
    with app_in() as app:
        snapshots = [
            {
                "snapshot_id": i,
                "ordinal": at,
                "parent_snapshot_id": None,
                "sequence_number": None,
                "operation": None,
                "committed_at": (NOON - timedelta(hours=at)).isoformat(),
                "schema_hash": "h",
            }
            for at, i in enumerate((7, 5, 6))
        ]
        found = {
            "schema": "s",
            "name": "t",
            "table_id": "id",
            "location": "l",
            "schema_hash": "h",
            "schemas": {"h": [["id", "INT", True, 1]]},
            "current_snapshot_id": 6,
            "snapshots": snapshots,
        }
        app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "parquet", [found]))
        key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "schema_hash": "h"}
        for snapshot_id, rows in ((6, 101), (5, 100), (7, 10)):
            row = key | {"snapshot_id": snapshot_id, "row_count": rows}
            put(app, [row], "stats.tables")
            put(app, [row | {"column_id": 1, "column_name": "id", "logical_type": "INT"}])
        reader = LocalReader(app.scanner, ANONYMOUS)
        assert [row["snapshot_id"] for row in history.snapshots(reader, NAME)] == [7, 5, 6]
        assert [(row["snapshot_id"], row["committed_at"]) for row in history.column_rows(reader, NAME, "id")] == [
            (7, NOON),
            (5, NOON - timedelta(hours=1)),
            (6, NOON - timedelta(hours=2)),
        ]
        (result,) = check(reader, NAME, [rules.parse("change of row_count <= 10%")], against="previous")
        assert (result.value, result.detail) == (0.01, "100 → 101 (+1%)")
