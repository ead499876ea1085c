"""Plans of Spark on Delta tables by the Iceberg REST catalog: rows it expects, and the side of a join it broadcasts.

By default Spark uses the rows of a snapshot's summary, and no column statistics. With `spark.sql.cbo.enabled` it takes
distinct counts too, but Iceberg's library hands it neither bounds nor null counts beside them, and then Spark takes a
comparison of a number for one that no row satisfies. Without our counts it is as wrong as without statistics.
"""

from __future__ import annotations

import re
from datetime import date

import pyarrow as pa
import pytest

from tests.flight_server.live_server import serving
from tests.interop import spark
from tests.interop.clients import block
from tests.interop.java import jars
from tests.interop.test_iceberg_rest import JAR, SPARK, spark_settings

pytestmark = pytest.mark.interop

ROWS, KINDS, DIMENSION = 200_000, 7, 1_000
FILTER = "EXPLAIN COST SELECT * FROM {}.lake.default.facts WHERE kind = 3"
JOIN = "EXPLAIN SELECT * FROM {0}.lake.default.facts f JOIN {0}.lake.default.dimension d ON f.key = d.key"
OFF = {"spark.sql.catalog.plain.header.x-statflight-statistics": "off"}


def test_rows_are_known_and_distinct_counts_mislead_cbo(tmp_path):
    from deltalake import write_deltalake

    ids = range(ROWS)
    facts = pa.table(
        {
            "key": [i % DIMENSION for i in ids],
            "kind": [i % KINDS for i in ids],
            "day": [date(2026, 1, 1 + i % 3) for i in ids],
        }
    )
    write_deltalake(tmp_path / "lake/facts", facts, partition_by=["day"])
    write_deltalake(tmp_path / "lake/dimension", pa.table({"key": range(DIMENSION), "day": ["x"] * DIMENSION}))
    (jar,) = (jar for jar in jars(tmp_path / "jars", [JAR]) if jar.name.startswith("iceberg-spark"))
    packages = spark.pyspark(tmp_path / "packages", SPARK)
    with serving(tmp_path, "--http-port", 0, "--workers", 1) as server, server.connect() as client:
        client.timeout = 600.0
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        client.act("register_connector", {"catalog": "lake", "format": "delta", "uri": str(tmp_path / "lake")})
        client.act("discover", {"catalog": "lake"})
        columns = client.get({"table": "information_schema.columns"}).to_pylist()
        requests = [
            {"table": f"lake.default.{c['table_name']}", "target": {"kind": "COLUMN", "column_id": c["column_id"]}}
            for c in columns
        ]
        requests += [{"table": f"lake.default.{t}", "target": {"kind": "TABLE"}} for t in ("facts", "dimension")]
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        settings = spark_settings(jar, base)
        plain = {name.replace(".door", ".plain"): value for name, value in settings.items() if ".door" in name}
        statements = [
            FILTER.format("door"),
            JOIN.format("door"),
            "SET spark.sql.cbo.enabled=true",
            FILTER.format("door"),
            FILTER.format("plain"),
        ]
        answers = spark.run(packages, settings | plain | OFF, statements, timeout_seconds=900)
    usual, join, _, misled, without = (str(answer[0][0]) for answer in answers)
    print(usual, join, misled, without, sep="\n")
    assert rows_of("RelationV2", usual) == ROWS
    assert re.search(r"BroadcastHashJoin \[key#\d+L?\], \[key#\d+L?\], Inner, BuildRight", join), join
    true = sum(i % KINDS == 3 for i in ids)
    assert rows_of("Filter", misled) <= 1 < true  # no row, where there are 28,571
    assert rows_of("Filter", without) is None or rows_of("Filter", without) >= true


def test_setting_of_the_clients_page_is_that_of_these_tests():
    name, value = block("properties cbo").split()
    assert {name.replace(".statflight", ".plain"): value} == OFF


def rows_of(operator: str, plan: str) -> int | None:
    """The rows that a plan expects of its first operator of a kind; None if it tells none."""
    line = next(line for line in plan.splitlines() if operator in line)
    found = re.search(r"rowCount=([\d.E+]+)", line)
    return None if found is None else round(float(found[1]))
