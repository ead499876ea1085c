"""All public Arrow schemas: the flights with their keys, identity columns and cosmetic columns.

Columns that a later version added are the last of their flight, after provenance, so that the position of others never
changes. The statistics of a record are those of `store.model.statistics`; null means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from store.model import statistics
from store.model.statistics import BOOL, FLOAT, INT, TEXT, StatisticGroup

BYTES = pa.binary()
INSTANT = pa.timestamp("us", "UTC")

KEY: Final = {"table_catalog": TEXT, "table_schema": TEXT, "table_name": TEXT, "table_id": TEXT, "snapshot_id": INT}
SCALAR: Final = {"logical_type": TEXT} | {each.name: each.type for each in statistics.SCALARS if not each.since}
ADDED: Final = {each.name: each.type for each in statistics.SCALARS if each.since}
"""Statistics of later versions, such as the mean and sample standard deviation of the values that are no NaN."""
DELETE_FILE: Final = pa.struct(
    [
        ("file_path", TEXT),
        ("file_content", TEXT),
        ("content_offset", INT),
        ("content_size", INT),
    ]
)
"""A delete file or deletion vector that applies to a data file; offset and size in bytes if it is a part of a file."""
DELETES: Final = {"equality_field_ids": pa.list_(INT), "delete_files": pa.list_(DELETE_FILE)}
RECORDED: Final = {
    "producer": TEXT,
    "completeness": TEXT,
    "confidence_level": FLOAT,
    "engine_id": TEXT,
    "capture_mode": TEXT,
    "rows_scanned": INT,
    "files_scanned": INT,
    "row_groups_sampled": INT,
    "bytes_scanned": INT,
    "captured_at": INSTANT,
    "refreshed_at": INSTANT,
    "schema_hash": TEXT,
}
DERIVED: Final = {"freshness": TEXT, "usable_for": TEXT}
PROVENANCE: Final = RECORDED | DERIVED
COUNTS: Final = statistics.names(lambda each: each.group is StatisticGroup.COUNTS)
DISTRIBUTION: Final = statistics.names(lambda each: each.group is StatisticGroup.DISTRIBUTION)
"""The two groups of a record's statistics, each of which is served from the newest record that has it."""

DISTRIBUTION_LABELS: Final = {"distribution_snapshot_id": INT, "distribution_freshness": TEXT}
"""Snapshot and freshness of the distribution; `snapshot_id` and `freshness` are those of the counts."""

COMPUTED: Final = frozenset({*DERIVED, *DISTRIBUTION_LABELS})
"""Columns that reads compute; a put ignores them, but takes no distribution of another snapshot than its own."""
COSMETIC: Final = frozenset({"captured_at", "refreshed_at", "display_name", "column_name", "column_names"})

PRODUCERS: Final = ("SOURCE_NATIVE", "UPSTREAM_METADATA_DERIVED", "ENGINE_COMPUTED")
COMPLETENESS: Final = ("COMPLETE", "PARTIAL", "UNAVAILABLE")
CAPTURE_MODES: Final = ("SYNC", "ASYNC")
FILE_CONTENTS: Final = ("DATA", "POSITION_DELETES", "EQUALITY_DELETES")
DELETE_CONTENTS: Final = ("POSITION_DELETES", "EQUALITY_DELETES", "DELETION_VECTOR")
ROLES: Final = ("NDV", "QUANTILES", "MCV", "TUPLE_NDV")
KINDS: Final = (*statistics.KINDS, "HISTOGRAM", "MCV")
"""Kinds of statistics that a request may name; the last two are of sketches."""
PARTITION_SPECS: Final = "iceberg.partition-specs"
"""Property of an Iceberg table with buckets: all its partition specs, in Iceberg's JSON."""
REMARK: Final = "statflight.remark"
"""Property of a table of which less is read than its files seem to offer: what, why, and what to do."""
FILE_NAMES: Final = "schema.name-mapping.default"
"""Property of an Iceberg table: the names by which its columns are found in files without ids, in Iceberg's JSON."""
THETA: Final = "apache-datasketches-theta-v1"
KLL: Final = "apache-datasketches-kll-doubles-v1"
EXPECTED: Final = "EXPECTED"  # state in sys.checks of a value that someone has called expected; no check replaces it
WAITING: Final = "WAITING"  # state in sys.checks of a rule that waits for what it is about
OF_OTHERS: Final = ("containment", "select")  # measures in sys.checks whose values may come from other tables
FREQUENT_ITEMS: Final = "apache-datasketches-frequent-items-utf8-v1"


@dataclass(frozen=True)
class Flight:
    """A named dataset: its Arrow schema, whether DoPut accepts it, and the columns that identify a record."""

    name: str
    schema: pa.Schema
    description: str
    writable: bool = False
    identity: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The first part of the name: stats, information_schema or sys."""
        return self.name.split(".")[0]

    @property
    def payload(self) -> tuple[str, ...]:
        """The stored columns between key and provenance."""
        return tuple(n for n in self.schema.names if n not in KEY and n not in PROVENANCE and n not in COMPUTED)


def _schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema(list(columns.items()))


def _stats(
    name: str,
    description: str,
    columns: dict[str, pa.DataType],
    *identity: str,
    writable: bool = True,
    added: dict[str, pa.DataType] | None = None,
) -> Flight:
    return Flight(name, _schema(KEY | columns | PROVENANCE | (added or {})), description, writable, identity)


def _plain(name: str, description: str, columns: dict[str, pa.DataType]) -> Flight:
    return Flight(name, _schema(columns), description)


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

_TABLE_KEY = {"table_catalog": TEXT, "table_schema": TEXT, "table_name": TEXT}
_CONSTRAINT = {"constraint_catalog": TEXT, "constraint_schema": TEXT, "constraint_name": TEXT}

_OF_TABLES: Final = {each.name: each.type for each in statistics.STATISTICS if each.group is StatisticGroup.TABLE}

_ALL: Final = [
    _stats(
        "stats.tables",
        "Rows, files and bytes of a table at a snapshot",
        {"row_count": INT}
        | {each.name: each.type for each in statistics.STATISTICS if each.group is StatisticGroup.TABLE},
    ),
    _stats(
        "stats.columns",
        "Scalar statistics of a column",
        {"column_id": INT, "column_name": TEXT} | SCALAR,
        "column_id",
        added=ADDED | DISTRIBUTION_LABELS,
    ),
    _stats(
        "stats.files",
        "Data and delete files of a snapshot",
        {
            "file_path": TEXT,
            "file_format": TEXT,
            "file_content": TEXT,
            "row_count": INT,
            "size_bytes": INT,
            "partition_data_json": TEXT,
            "partition_spec_id": pa.int32(),
            "sequence_number": INT,
        },
        "file_path",
        added=DELETES,
    ),
    _stats(
        "stats.partitions",
        "Rows, files and bytes of a partition, from the files of the snapshot",
        {
            "partition_data_json": TEXT,
            "partition_spec_id": pa.int32(),
            "row_count": INT,
            "file_count": INT,
            "size_bytes": INT,
            "delete_file_count": INT,
            "last_sequence_number": INT,
        },
        writable=False,
    ),
    _stats(
        "stats.file_columns",
        "Scalar statistics of a column within one file",
        {"file_path": TEXT, "column_id": INT, "column_name": TEXT} | SCALAR,
        "file_path",
        "column_id",
        added=ADDED,
    ),
    _stats(
        "stats.expressions",
        "Scalar statistics of an engine's expression",
        {
            "engine_kind": TEXT,
            "engine_expression_key": BYTES,
            "engine_version": TEXT,
            "display_name": TEXT,
        }
        | SCALAR,
        "engine_kind",
        "engine_expression_key",
        added=ADDED | DISTRIBUTION_LABELS,
    ),
    _stats(
        "stats.column_groups",
        "Scalar statistics of a group of columns",
        {
            "column_ids": pa.list_(INT),
            "column_names": pa.list_(TEXT),
        }
        | SCALAR,
        "column_ids",
        added=ADDED | DISTRIBUTION_LABELS,
    ),
    Flight(
        "stats.sketches",
        _schema(
            KEY
            | {
                "target_kind": TEXT,
                "storage_id": TEXT,
                "column_id": INT,
                "file_path": TEXT,
                "role": TEXT,
                "sketch_type": TEXT,
                "data": BYTES,
                "params": TEXT,
                "captured_at": INSTANT,
                "freshness": TEXT,
            }
        ),
        "Mergeable sketches: theta, KLL, frequent items",
        True,
        ("storage_id", "column_id", "role"),
    ),
    _stats(
        "stats.histograms",
        "Equi-depth histograms, from KLL",
        {
            "column_id": INT,
            "column_name": TEXT,
            "bucket": pa.int32(),
            "lower": TEXT,
            "upper": TEXT,
            "row_count": FLOAT,
            "cumulative_row_count": FLOAT,
        },
        writable=False,
    ),
    _stats(
        "stats.most_common_values",
        "Most common values, from frequent items",
        {
            "column_id": INT,
            "column_name": TEXT,
            "rank": pa.int32(),
            "value": TEXT,
            "count": INT,
            "count_lower": INT,
            "count_upper": INT,
        },
        writable=False,
    ),
    _stats(
        "stats.quantiles",
        "Quantiles, from KLL; 0 and 1 are min and max",
        {
            "column_id": INT,
            "column_name": TEXT,
            "quantile": FLOAT,
            "value": TEXT,
        },
        writable=False,
    ),
    _plain("information_schema.schemata", "Schemas of every catalog", {"catalog_name": TEXT, "schema_name": TEXT}),
    _plain("information_schema.tables", "Tables of every catalog", _TABLE_KEY | {"table_type": TEXT}),
    _plain(
        "information_schema.columns",
        "Columns of the current schema, struct leaves by dotted path",
        _TABLE_KEY
        | {
            "column_name": TEXT,
            "data_type": TEXT,
            "ordinal_position": INT,
            "is_nullable": TEXT,
            "column_id": INT,
            "column_path": pa.list_(TEXT),
        },
    ),
    _plain(
        "information_schema.table_constraints",
        "Declared constraints",
        _CONSTRAINT
        | _TABLE_KEY
        | {
            "constraint_type": TEXT,
            "is_deferrable": TEXT,
            "initially_deferred": TEXT,
            "enforced": TEXT,
        },
    ),
    _plain(
        "information_schema.key_column_usage",
        "Columns of primary, unique and foreign keys",
        _CONSTRAINT | _TABLE_KEY | {"column_name": TEXT, "ordinal_position": INT, "position_in_unique_constraint": INT},
    ),
    _plain(
        "information_schema.referential_constraints",
        "Foreign keys",
        _CONSTRAINT
        | {
            "unique_constraint_catalog": TEXT,
            "unique_constraint_schema": TEXT,
            "unique_constraint_name": TEXT,
            "match_option": TEXT,
            "update_rule": TEXT,
            "delete_rule": TEXT,
        },
    ),
    _plain(
        "information_schema.check_constraints", "NOT NULL and CHECK constraints", _CONSTRAINT | {"check_clause": TEXT}
    ),
    _plain(
        "information_schema.constraint_column_usage",
        "Columns that a constraint refers to",
        _TABLE_KEY | {"column_name": TEXT} | _CONSTRAINT,
    ),
    _plain("information_schema.constraint_table_usage", "Tables that a constraint refers to", _TABLE_KEY | _CONSTRAINT),
    _plain(
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
    _plain(
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
    _plain(
        "sys.costs",
        "Requests to each lake and its catalog, by day, operation and reason",
        {"day": pa.date32(), "catalog": TEXT, "operation": TEXT, "requests": INT, "bytes": INT, "reason": TEXT},
    ),
    _plain(
        "sys.columns",
        "Columns of the current schema with the comments that the format has of them",
        _TABLE_KEY
        | {
            "column_id": INT,
            "column_name": TEXT,
            "comment": TEXT,
        },
    ),
    _plain(
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
    _plain(
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
    _plain(
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
    _plain(
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
    _plain(
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
    _plain(
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
    _plain(
        "sys.capture_jobs",
        "The durable queue",
        {"job_id": TEXT, "state": TEXT}
        | _TABLE_KEY
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
    _plain(
        "sys.capture_decisions",
        "Every decision of the engine registry",
        {
            "decided_at": INSTANT,
            "correlation_id": TEXT,
        }
        | _TABLE_KEY
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
    _plain(
        "sys.column_usage",
        "Reads of each column; column_name is null for reads of all columns",
        _TABLE_KEY
        | {
            "column_name": TEXT,
            "reads": INT,
            "last_read_at": INSTANT,
        },
    ),
    _plain(
        "sys.storage",
        "Rows, snapshots and bytes that are stored of each table, by kind",
        _TABLE_KEY
        | {
            "kind": TEXT,
            "rows": INT,
            "snapshots": INT,
            "bytes": INT,
        },
    ),
    _plain(
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
    _plain(
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
    _plain("sys.functions", "The actions of this server", {"name": TEXT, "arguments": TEXT, "description": TEXT}),
]

FLIGHTS: Final = {flight.name: flight for flight in _ALL}
