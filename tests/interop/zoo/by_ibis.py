"""Asks by ibis: `by_ibis.py ADDRESS`, questions on standard input, of which it skips those that are no expressions.

Each expression is asked twice: of ibis's DuckDB, over the datasets of our client; and as the SQL that ibis makes of it,
by ADBC. Both must answer alike.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ibis
import statflight
from adbc_driver_flightsql import dbapi
from ibis import _

FLIGHTS = ("stats.tables", "stats.columns", "stats.files", "stats.file_columns", "stats.partitions", "sys.tables")


def expressions(tables: dict[str, ibis.Table]) -> dict[str, ibis.Table]:
    """Name of a question → the same question to tables by their names."""
    captured, columns, files = tables["stats.tables"], tables["stats.columns"], tables["stats.files"]
    of_delta = columns.filter(_.table_catalog == "delta")
    ranked = columns.mutate(
        place=ibis.row_number().over(group_by="table_catalog", order_by=[ibis.desc("ndv"), "column_id"])
    )
    holes = columns.filter(_.null_count > 0).select("column_name").distinct()
    last = ibis.memtable({"column_name": ["zz"]})
    keys = ["table_catalog", "table_schema", "table_name"]
    of_ids = columns.filter(_.column_name == "id", _.table_catalog == "parquet")
    return {
        "tables": captured.select(*keys, "row_count", "data_file_count").order_by("table_catalog"),
        "sizes": captured.select("table_catalog", "total_size_bytes").order_by("table_catalog"),
        "ids of snapshots": captured.filter(_.table_catalog != "parquet")
        .select("table_catalog", "snapshot_id")
        .order_by("table_catalog"),
        "lists": tables["sys.tables"].filter(_.table_catalog == "delta").select("partition_keys"),
        "instants": captured.filter(_.captured_at > ibis.timestamp("2020-01-01 00:00:00")).agg(n=_.count()),
        "distinct values": of_delta.order_by("column_id").select("column_name", "ndv", "ndv_exact"),
        "nulls": columns.filter(_.table_catalog == "iceberg")
        .order_by("column_id")
        .select("column_name", share=_.null_count / _.row_count),
        "bounds of integers": of_ids.select(low=_["min"].cast("int64"), high=_["max"].cast("int64")),
        "bounds of dates": of_delta.filter(_.logical_type == "DATE").select(
            low=_["min"].cast("date"), high=_["max"].cast("date")
        ),
        "bounds of decimals": of_delta.filter(_.column_name == "price").select(high=_["max"].cast("decimal(9, 2)")),
        "means": of_delta.filter(_.column_name == "id").select("mean"),
        "a page": of_delta.order_by(ibis.desc("ndv"), "column_name").select("column_name", "ndv").limit(3, offset=1),
        "patterns": of_delta.filter(_.column_name.like("%o%"), _.column_name.notin(["word", "day"]))
        .filter(_.nan_count.isnull())
        .select("column_name")
        .order_by("column_name"),
        "files": files.filter(_.table_catalog == "parquet").agg(
            files=_.count(), all_rows=_.row_count.sum(), size=_.size_bytes.sum()
        ),
        "bounds of files": tables["stats.file_columns"]
        .filter(_.table_catalog == "delta", _.column_name == "id", _["min"].cast("int32") >= 30)
        .agg(files=_.count()),
        "partitions": tables["stats.partitions"]
        .filter(_.table_catalog == "delta")
        .agg(parts=_.count(), files=_.file_count.sum(), most=_.row_count.max()),
        "a join": columns.join(captured, [*keys, columns.ndv == captured.row_count])
        .select("table_catalog", "column_name")
        .order_by("table_catalog"),
        "groups": columns.group_by("table_catalog")
        .agg(n=_.count(), nulls=_.null_count.sum(), distinct=_.ndv.sum())
        .filter(_["distinct"] > 10)
        .select("table_catalog", "n", "nulls")
        .order_by("table_catalog"),
        "ranks": ranked.filter(_.place == 0).select("table_catalog", "column_name").order_by("table_catalog"),
        "a union": holes.union(last).order_by("column_name"),
        "parameters": columns.filter(_.table_catalog == "parquet", _.ndv > 5.0, _.column_id <= 7)
        .order_by("column_id")
        .select("column_name")
        .limit(3),
        "a parameter of a function": of_delta.filter(_.column_name == "id").select(rounded=(_.ndv / 7).round(2)),
    }


def rows(found: Any) -> list[list[Any]]:
    return [list(row.values()) for row in found.to_pylist()]


def main(address: str) -> None:
    database, by_sql, by_dataset = ibis.duckdb.connect(), {}, {}
    with statflight.connect(address) as client, dbapi.connect(address, autocommit=True) as connection:
        for flight in FLIGHTS:
            schema, _, name = flight.partition(".")
            described = connection.adbc_get_table_schema(name, db_schema_filter=schema)
            by_sql[flight] = ibis.table(ibis.Schema.from_pyarrow(described), name=name, database=schema)
            current = "current" if schema == "stats" else None
            database.con.register(flight, client.dataset(flight, snapshot=current))
            by_dataset[flight] = database.table(flight)
        as_sql, of_datasets = expressions(by_sql), expressions(by_dataset)
        for line in sys.stdin:
            name = line.partition("\t")[0]
            if name not in as_sql:
                continue
            if name != "a union":  # of a table in the client's memory, which the server cannot read
                with connection.cursor() as cursor:
                    cursor.execute(str(ibis.to_sql(as_sql[name], dialect="duckdb")))
                    of_server = rows(cursor.fetch_arrow_table())
            answer = rows(database.to_pyarrow(of_datasets[name]))
            assert name == "a union" or of_server == answer, (name, of_server, answer)
            sys.stdout.write(json.dumps({"name": name, "rows": answer}, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
