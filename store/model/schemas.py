"""All public Arrow schemas: the flights of statistics and of the catalog; those of the server are `server_flights`.

Columns that a later version added are the last of their flight, after provenance, so that the position of others never
changes. The statistics of a record are those of `store.model.statistics`; null means unknown.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from store.model import statistics
from store.model.columns import ADDED, BYTES, DELETES, DISTRIBUTION_LABELS, INSTANT, KEY, SCALAR
from store.model.flight import TABLE_NAME, Flight, plain_flight, schema_of, stats_flight
from store.model.server_flights import SERVER_FLIGHTS
from store.model.statistics import FLOAT, INT, TEXT, StatisticGroup

_CONSTRAINT = {"constraint_catalog": TEXT, "constraint_schema": TEXT, "constraint_name": TEXT}

_OF_TABLES: Final = {each.name: each.type for each in statistics.STATISTICS if each.group is StatisticGroup.TABLE}

_ALL: Final = [
    stats_flight(
        "stats.tables",
        "Rows, files and bytes of a table at a snapshot",
        {"row_count": INT}
        | {each.name: each.type for each in statistics.STATISTICS if each.group is StatisticGroup.TABLE},
    ),
    stats_flight(
        "stats.columns",
        "Scalar statistics of a column",
        {"column_id": INT, "column_name": TEXT} | SCALAR,
        "column_id",
        added=ADDED | DISTRIBUTION_LABELS,
    ),
    stats_flight(
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
    stats_flight(
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
    stats_flight(
        "stats.file_columns",
        "Scalar statistics of a column within one file",
        {"file_path": TEXT, "column_id": INT, "column_name": TEXT} | SCALAR,
        "file_path",
        "column_id",
        added=ADDED,
    ),
    stats_flight(
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
    stats_flight(
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
        schema_of(
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
    stats_flight(
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
    stats_flight(
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
    stats_flight(
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
    plain_flight(
        "information_schema.schemata", "Schemas of every catalog", {"catalog_name": TEXT, "schema_name": TEXT}
    ),
    plain_flight("information_schema.tables", "Tables of every catalog", TABLE_NAME | {"table_type": TEXT}),
    plain_flight(
        "information_schema.columns",
        "Columns of the current schema, struct leaves by dotted path",
        TABLE_NAME
        | {
            "column_name": TEXT,
            "data_type": TEXT,
            "ordinal_position": INT,
            "is_nullable": TEXT,
            "column_id": INT,
            "column_path": pa.list_(TEXT),
        },
    ),
    plain_flight(
        "information_schema.table_constraints",
        "Declared constraints",
        _CONSTRAINT
        | TABLE_NAME
        | {
            "constraint_type": TEXT,
            "is_deferrable": TEXT,
            "initially_deferred": TEXT,
            "enforced": TEXT,
        },
    ),
    plain_flight(
        "information_schema.key_column_usage",
        "Columns of primary, unique and foreign keys",
        _CONSTRAINT | TABLE_NAME | {"column_name": TEXT, "ordinal_position": INT, "position_in_unique_constraint": INT},
    ),
    plain_flight(
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
    plain_flight(
        "information_schema.check_constraints", "NOT NULL and CHECK constraints", _CONSTRAINT | {"check_clause": TEXT}
    ),
    plain_flight(
        "information_schema.constraint_column_usage",
        "Columns that a constraint refers to",
        TABLE_NAME | {"column_name": TEXT} | _CONSTRAINT,
    ),
    plain_flight(
        "information_schema.constraint_table_usage", "Tables that a constraint refers to", TABLE_NAME | _CONSTRAINT
    ),
    *SERVER_FLIGHTS,
]

FLIGHTS: Final = {flight.name: flight for flight in _ALL}
