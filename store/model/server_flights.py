"""Flights about the server and what it knows besides statistics: `sys.*`, and the statistics in the shape of ADBC."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from store.model.columns import BYTES, INSTANT, KEY
from store.model.flight import TABLE_NAME, Flight, plain_flight
from store.model.statistics import BOOL, FLOAT, INT, TEXT

ADBC_STATISTIC: Final = pa.struct(
    [
        pa.field("table_name", TEXT, False),
        pa.field("column_name", TEXT),
        pa.field("statistic_key", pa.int16(), False),
        pa.field(
            "statistic_value",
            pa.dense_union(
                [
                    pa.field("int64", INT),
                    pa.field("uint64", pa.uint64()),
                    pa.field("float64", FLOAT),
                    pa.field("binary", BYTES),
                ]
            ),
            False,
        ),
        pa.field("statistic_is_approximate", BOOL, False),
    ]
)
_ADBC_SCHEMA = pa.struct(
    [
        pa.field("db_schema_name", TEXT),
        pa.field("db_schema_statistics", pa.list_(pa.field("item", ADBC_STATISTIC, False)), False),
    ]
)

SERVER_FLIGHTS: Final = [
    plain_flight(
        "sys.connectors",
        "Registered connectors, secrets masked",
        {
            "catalog": TEXT,
            "format": TEXT,
            "uri": TEXT,
            "options": TEXT,
            "state": TEXT,
            "last_seen_at": INSTANT,
            "last_error": TEXT,
        },
    ),
    plain_flight(
        "sys.tables",
        "Tables of every catalog, and whether they can be read",
        KEY
        | {
            "format": TEXT,
            "location": TEXT,
            "partition_keys": pa.list_(TEXT),
            "properties": TEXT,
            "state": TEXT,
            "last_error": TEXT,
            "discovered_at": INSTANT,
            "checked_at": INSTANT,
            "description": TEXT,
            "owner": TEXT,
            "tags": pa.list_(TEXT),
            "notes": TEXT,
            "metadata_location": TEXT,
            "format_schema": TEXT,
            "watch_seconds": FLOAT,
        },
    ),
    plain_flight(
        "sys.costs",
        "Requests to each lake and its catalog, by day, operation and reason",
        {"day": pa.date32(), "catalog": TEXT, "operation": TEXT, "requests": INT, "bytes": INT, "reason": TEXT},
    ),
    plain_flight(
        "sys.columns",
        "Columns of the current schema with the comments that the format has of them",
        TABLE_NAME
        | {
            "column_id": INT,
            "column_name": TEXT,
            "comment": TEXT,
        },
    ),
    plain_flight(
        "sys.relationships",
        "Foreign keys between tables, declared or inferred from key sketches",
        {
            "from_catalog": TEXT,
            "from_schema": TEXT,
            "from_table": TEXT,
            "from_columns": pa.list_(TEXT),
            "to_catalog": TEXT,
            "to_schema": TEXT,
            "to_table": TEXT,
            "to_columns": pa.list_(TEXT),
            "kind": TEXT,
            "cardinality": TEXT,
            "containment": FLOAT,
            "containment_low": FLOAT,
            "containment_high": FLOAT,
            "from_ndv": FLOAT,
            "to_ndv": FLOAT,
        },
    ),
    plain_flight(
        "sys.snapshots",
        "Known snapshots of each table",
        KEY
        | {
            "parent_snapshot_id": INT,
            "sequence_number": INT,
            "committed_at": INSTANT,
            "operation": TEXT,
            "schema_hash": TEXT,
            "is_current": BOOL,
            "captured": BOOL,
            "manifest_list": TEXT,
            "summary": TEXT,
        },
    ),
    plain_flight(
        "sys.publications",
        "The newest publication of each table in each of its homes",
        KEY
        | {
            "home": TEXT,
            "state": TEXT,
            "location": TEXT,
            "columns": pa.list_(TEXT),
            "published_at": INSTANT,
            "detail": TEXT,
        },
    ),
    plain_flight(
        "sys.checks",
        "Results of the server's rules, for each snapshot that was checked",
        KEY
        | {
            "column_name": TEXT,
            "rule": TEXT,
            "measure": TEXT,
            "level": TEXT,
            "state": TEXT,
            "value": FLOAT,
            "detail": TEXT,
            "checked_at": INSTANT,
            "changed_at": INSTANT,
        },
    ),
    plain_flight(
        "sys.changes",
        "Differences of each snapshot from the one before: schema, volume, freshness",
        KEY
        | {
            "previous_snapshot_id": INT,
            "committed_at": INSTANT,
            "kind": TEXT,
            "statistic": TEXT,
            "before": FLOAT,
            "after": FLOAT,
            "change": FLOAT,
            "change_percent": FLOAT,
        },
    ),
    plain_flight(
        "sys.engines",
        "Capture engines of the connected workers",
        {
            "engine_id": TEXT,
            "priority": INT,
            "connectors": pa.list_(TEXT),
            "target_kinds": pa.list_(TEXT),
            "statistic_kinds": TEXT,
            "execution_modes": pa.list_(TEXT),
            "sampling": pa.list_(TEXT),
            "error": TEXT,
        },
    ),
    plain_flight(
        "sys.capture_jobs",
        "The durable queue",
        {"job_id": TEXT, "state": TEXT}
        | TABLE_NAME
        | {
            "snapshot": TEXT,
            "mode": TEXT,
            "targets": TEXT,
            "attempts": INT,
            "queued_at": INSTANT,
            "started_at": INSTANT,
            "finished_at": INSTANT,
            "progress": FLOAT,
            "degraded": BOOL,
            "stats_processed": INT,
            "message": TEXT,
        },
    ),
    plain_flight(
        "sys.capture_decisions",
        "Every decision of the engine registry",
        {
            "decided_at": INSTANT,
            "correlation_id": TEXT,
        }
        | TABLE_NAME
        | {
            "snapshot_id": INT,
            "target_kind": TEXT,
            "storage_id": TEXT,
            "outcome": TEXT,
            "engine_id": TEXT,
            "detail": TEXT,
            "elapsed_ms": FLOAT,
        },
    ),
    plain_flight(
        "sys.column_usage",
        "Reads of each column; column_name is null for reads of all columns",
        TABLE_NAME
        | {
            "column_name": TEXT,
            "reads": INT,
            "last_read_at": INSTANT,
        },
    ),
    plain_flight(
        "sys.storage",
        "Rows, snapshots and bytes that are stored of each table, by kind",
        TABLE_NAME
        | {
            "kind": TEXT,
            "rows": INT,
            "snapshots": INT,
            "bytes": INT,
        },
    ),
    plain_flight(
        "sys.replication",
        "The role of this server among the replicas of its database",
        {
            "role": TEXT,
            "epoch": INT,
            "generation": INT,
            "shipped_generation": INT,
            "lag_ms": INT,
            "writer": TEXT,
            "url": TEXT,
            "last_error": TEXT,
        },
    ),
    plain_flight(
        "sys.flights",
        "The flights of this server",
        {
            "name": TEXT,
            "column_count": INT,
            "row_estimate": INT,
            "writable": BOOL,
            "description": TEXT,
        },
    ),
    Flight(
        "adbc.statistics",
        pa.schema(
            [
                pa.field("catalog_name", TEXT),
                pa.field("catalog_db_schemas", pa.list_(pa.field("item", _ADBC_SCHEMA, False)), False),
            ]
        ),
        "Current statistics in the shape of ADBC's GetStatistics, one row per catalog",
    ),
    plain_flight("sys.functions", "The actions of this server", {"name": TEXT, "arguments": TEXT, "description": TEXT}),
]
"""In the order in which they are listed."""
