"""Plans of Spark before and after a publication, in a version of Spark that has a jar of a table format.

A program of its own, because its PySpark is not the project's: it writes TPC-H tables in a format, captures and
publishes them, and prints the rows that Spark estimates without and with published statistics, beside the true ones.

`python -m tests.interop.spark_with_jars FORMAT PARQUET_DIRECTORY DIRECTORY JAR…`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from capture.spark.plans import COST_BASED
from tests.benchmarks.bench_plans import capture_and_publish, estimated_rows, lake_of

TABLES = ("customer", "lineitem", "nation", "orders")
HOMES = {"delta": "spark", "iceberg": "iceberg"}
SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    },
    "iceberg": {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.iceberg.report-column-stats": "true",
    },
}
QUERIES = {
    "text": "SELECT * FROM customer WHERE c_mktsegment = 'BUILDING'",
    "number": "SELECT * FROM orders WHERE o_custkey = 370",
    "distinct": "SELECT o_custkey FROM orders GROUP BY o_custkey",
    "joins of 3": """SELECT * FROM customer, orders, lineitem WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND c_mktsegment = 'BUILDING'""",
    "joins of 10": """SELECT * FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey
        AND l_orderkey = o_orderkey AND c_nationkey = n_nationkey AND l_returnflag = 'R'""",
}


def start_session(format: str, directory: Path, jars: list[str]) -> Any:
    """A session whose current namespace is the lake."""
    builder = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(jars))
    settings = dict.fromkeys(COST_BASED, "true") | {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    settings |= {
        "spark.sql.warehouse.dir": str(directory),
        "spark.sql.catalog.lake.warehouse": str(directory),
        "spark.sql.catalog.lake.cache-enabled": "false",
    }
    for name, value in (settings | SETTINGS[format]).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if "spark.sql.catalog.lake" in SETTINGS[format]:
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
        session.sql("USE lake.default")
    return session


def main(format: str, parquet: str, directory: str, *jars: str) -> None:
    lake, home = Path(directory) / "lake", Path(directory)
    session = start_session(format, lake, list(jars))
    for table in TABLES:
        session.sql(f"CREATE TABLE {table} USING {format} AS SELECT * FROM parquet.`{parquet}/{table}`")

    def estimates() -> dict[str, int]:
        plans = {name: session.sql(sql)._jdf.queryExecution().optimizedPlan() for name, sql in QUERIES.items()}
        return {name: estimated_rows(plan) for name, plan in plans.items()}

    found = {"without": estimates()}
    capture_and_publish(lambda: session, home, lake_of(lake, format), TABLES, HOMES[format])
    found["published"] = estimates()
    found["true"] = {name: session.sql(sql).count() for name, sql in QUERIES.items()}
    print(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
