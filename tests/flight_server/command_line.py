"""Rows and results of a fake server, for the tests of the command line."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from store.model.schemas import FLIGHTS

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
NAME = "lake.s.t"


def set_capture_outcome(server, **outcome):
    server.answers["capture"] = lambda body: [
        {"outcome": "CAPTURED", "engine_id": "spark", "job_id": "j-1", "detail": ""} | outcome for _ in body["requests"]
    ]


def column_row(**values):
    base = KEY | {"snapshot_id": 2, "column_id": 1, "column_name": "id", "logical_type": "INT", "freshness": "EXACT"}
    return base | values


def serve_tables(server, *names):
    """Sets tables of `lake.s`; reads with a predicate on table_name return the rows of those tables only."""
    do_get = server.do_get
    tables = {name: KEY | {"table_name": name} for name in names}
    server.rows("information_schema.tables", *(row | {"table_type": "BASE TABLE"} for row in tables.values()))
    server.rows("sys.tables", *tables.values())

    def filtered_by_table(context, ticket):
        command = json.loads(ticket.ticket)
        reply = do_get(context, ticket)
        requested = [leaf["values"] for leaf in command.get("predicates", ()) if leaf["column"] == "table_name"]
        table = server.tables.get(command["table"])
        if not requested or "table_name" not in FLIGHTS[command["table"]].schema.names or table is None:
            return reply
        matching = table.filter(pc.is_in(table["table_name"], pa.array(requested[0])))
        return pa.flight.RecordBatchStream(matching.select(command["columns"]) if "columns" in command else matching)

    server.do_get = filtered_by_table


def relationship(of: str, to: str, **more):
    """A row of `sys.relationships`: `of.x_id` refers to `to.id`."""
    ends = {
        f"{end}_{part}": value
        for end, table in (("from", of), ("to", to))
        for part, value in (("catalog", "lake"), ("schema", "s"), ("table", table))
    }
    return (
        ends
        | {
            "from_columns": ["x_id"],
            "to_columns": ["id"],
            "kind": "INFERRED",
            "cardinality": "MANY_TO_ONE",
            "containment": 1.0,
            "containment_low": 0.993,
            "containment_high": 1.0,
        }
        | more
    )
