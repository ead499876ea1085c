"""Arrow's statistics schema as the client returns it."""

import pyarrow as pa
import pytest

from flight_server.client import StatsClient


def test_client_returns_arrow_and_adbc_statistics(live_server):
    key = {"table_catalog": "shapes", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    with StatsClient(live_server.uri) as client:
        client.put(
            "stats.columns", pa.table({name: [value] for name, value in (key | {"column_id": 4, "ndv": 3.0}).items()})
        )
        client.put("stats.tables", pa.table({name: [value] for name, value in (key | {"row_count": 5}).items()}))
        found = client.arrow_statistics("shapes.s.t").to_pylist()
        assert [(row["column"], dict(row["statistics"])) for row in found] == [
            (None, {"ARROW:row_count:approximate": 5}),
            (0, {"ARROW:distinct_count:approximate": 3.0}),
        ]
        (catalog,) = client.adbc_statistics("shapes").to_pylist()
        assert catalog["catalog_name"] == "shapes"
        with pytest.raises(pa.ArrowKeyError, match="UNKNOWN_TABLE"):
            client.arrow_statistics("shapes.s.u")
