"""Spark's earlier versions read what is published to the session catalog, from a Hive metastore of their own.

Lance has no jar for Spark that reads statistics, so what is published there is read by no Spark yet.
"""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from tests.capture.publishers.contract import rows
from tests.flight_server.live_server import serving
from tests.interop.spark import pyspark, run

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4.1.4"])
def test_earlier_spark_plans_by_published_statistics(tmp_path, version):
    packages = pyspark(tmp_path / "packages", version)
    lake = tmp_path / "lake/events"
    lake.mkdir(parents=True)
    pq.write_table(rows(0, 150), lake / "part.parquet")
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.cbo.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true",
    }

    create = f"CREATE TABLE events USING parquet LOCATION '{lake}'"
    ((running,), _) = run(packages, settings, ["SELECT version()", create])
    assert running[0].startswith(version)
    toml = tmp_path / "statflight.toml"
    toml.write_text("[spark]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items()))
    with serving(tmp_path, "--workers", 1, "--config", toml) as server, server.connect() as client:
        client.timeout = 600.0
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake")})
        client.act("discover", {"catalog": "lake"})
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i} for i in (1, 2))]
        requests = [{"table": "lake.default.events", "target": target} for target in targets]
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        client.act("publish", {"table": "lake.default.events", "to": "spark"})
    asked = ["DESCRIBE EXTENDED events id", "EXPLAIN COST SELECT * FROM events WHERE id < 15"]
    of_id, (plan,) = run(packages, settings, asked)
    facts = dict(row[:2] for row in of_id)
    assert (facts["distinct_count"], facts["min"], facts["max"], facts["num_nulls"]) == ("150", "0", "149", "0")
    assert "rowCount=16" in plan[0] or "rowCount=15" in plan[0]
