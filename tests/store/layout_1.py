"""A database file of layout 1, as frozen SQL: later layouts are tested against the files that users have."""

from __future__ import annotations

from pathlib import Path

import duckdb

SCALAR = """logical_type VARCHAR, row_count BIGINT, null_count BIGINT, nan_count BIGINT, ndv DOUBLE, ndv_exact BOOLEAN,
    ndv_lower DOUBLE, ndv_upper DOUBLE, "min" VARCHAR, "max" VARCHAR, min_is_exact BOOLEAN, max_is_exact BOOLEAN,
    avg_width_bytes DOUBLE, max_width_bytes BIGINT"""
RECORDED = """producer VARCHAR, completeness VARCHAR, confidence_level DOUBLE, engine_id VARCHAR, capture_mode VARCHAR,
    rows_scanned BIGINT, files_scanned BIGINT, row_groups_sampled BIGINT, bytes_scanned BIGINT,
    captured_at TIMESTAMPTZ, refreshed_at TIMESTAMPTZ, schema_hash VARCHAR, generation BIGINT, created_at TIMESTAMPTZ"""
SKETCH = """target_kind VARCHAR, storage_id VARCHAR, column_id BIGINT, file_path VARCHAR, role VARCHAR,
    sketch_type VARCHAR, data BLOB USING COMPRESSION uncompressed, params VARCHAR, captured_at TIMESTAMPTZ,
    generation BIGINT, created_at TIMESTAMPTZ"""
LAYOUT = f"""
CREATE TABLE settings (name VARCHAR, value VARCHAR);
CREATE TABLE connectors (catalog VARCHAR, format VARCHAR, uri VARCHAR, options VARCHAR, state VARCHAR,
    last_seen_at TIMESTAMPTZ, last_error VARCHAR);
CREATE TABLE tables (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    table_id VARCHAR, format VARCHAR, location VARCHAR, current_snapshot_id BIGINT, dropped BOOLEAN);
CREATE TABLE schemas (table_key BIGINT, schema_hash VARCHAR, columns VARCHAR);
CREATE TABLE table_columns (table_key BIGINT, column_name VARCHAR, data_type VARCHAR, ordinal_position BIGINT,
    is_nullable VARCHAR, column_id BIGINT);
CREATE TABLE column_ids (table_key BIGINT, column_name VARCHAR, column_id BIGINT);
CREATE TABLE table_constraints (table_key BIGINT, kind VARCHAR, name VARCHAR, ordinal_position BIGINT,
    column_name VARCHAR, clause VARCHAR);
CREATE TABLE snapshots (table_key BIGINT, snapshot_id BIGINT, ordinal BIGINT, parent_snapshot_id BIGINT,
    sequence_number BIGINT, committed_at TIMESTAMPTZ, operation VARCHAR, schema_hash VARCHAR, is_live BOOLEAN);
CREATE TABLE file_snapshots (table_key BIGINT, family VARCHAR, snapshot_id BIGINT, pos BIGINT);
CREATE TABLE idempotency (key VARCHAR, content_hash VARCHAR, answer VARCHAR, stored_at TIMESTAMPTZ);
CREATE TABLE jobs (job_id VARCHAR, state VARCHAR, table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR,
    table_name VARCHAR, snapshot VARCHAR, mode VARCHAR, targets VARCHAR, request VARCHAR, dedupe VARCHAR,
    attempts BIGINT, priority BIGINT, queued_at TIMESTAMPTZ, started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ,
    not_before TIMESTAMPTZ, lease_until TIMESTAMPTZ, lease_token VARCHAR, progress DOUBLE, degraded BOOLEAN,
    stats_processed BIGINT, message VARCHAR);
CREATE TABLE capture_decisions (decided_at TIMESTAMPTZ, correlation_id VARCHAR, table_key BIGINT,
    table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, snapshot_id BIGINT, target_kind VARCHAR,
    storage_id VARCHAR, outcome VARCHAR, engine_id VARCHAR, detail VARCHAR, elapsed_ms DOUBLE);
CREATE TABLE stats_tables (table_key BIGINT, snapshot_id BIGINT, row_count BIGINT, data_file_count BIGINT,
    total_size_bytes BIGINT, merged_size_bytes BIGINT, {RECORDED});
CREATE TABLE stats_columns (table_key BIGINT, snapshot_id BIGINT, column_id BIGINT, column_name VARCHAR, {SCALAR},
    {RECORDED});
CREATE TABLE stats_expressions (table_key BIGINT, snapshot_id BIGINT, engine_kind VARCHAR, engine_expression_key BLOB,
    engine_version VARCHAR, display_name VARCHAR, {SCALAR}, {RECORDED});
CREATE TABLE stats_column_groups (table_key BIGINT, snapshot_id BIGINT, column_ids BIGINT[], column_names VARCHAR[],
    {SCALAR}, {RECORDED});
CREATE TABLE stats_sketches (table_key BIGINT, snapshot_id BIGINT, {SKETCH});
CREATE TABLE stats_files (table_key BIGINT, from_pos BIGINT, to_pos BIGINT, file_path VARCHAR, file_format VARCHAR,
    file_content VARCHAR, row_count BIGINT, size_bytes BIGINT, partition_data_json VARCHAR, partition_spec_id INTEGER,
    sequence_number BIGINT, {RECORDED});
CREATE TABLE stats_file_columns (table_key BIGINT, from_pos BIGINT, to_pos BIGINT, file_path VARCHAR,
    column_id BIGINT, column_name VARCHAR, {SCALAR}, {RECORDED});
CREATE TABLE file_sketches (table_key BIGINT, from_pos BIGINT, to_pos BIGINT, {SKETCH});
INSERT INTO settings VALUES ('schema_version', '1');
"""
ROWS = f"""
INSERT INTO tables VALUES (1, 'c', 's', 't', '00000000-0000-0000-0000-000000000001', 'external', NULL, 5, false);
INSERT INTO snapshots VALUES (1, 5, 5, NULL, NULL, NULL, NULL, NULL, true);
INSERT INTO column_ids VALUES (1, 'a', 1);
INSERT INTO stats_columns (table_key, snapshot_id, column_id, column_name, row_count, generation, created_at)
    VALUES (1, 5, 1, 'a', 10, 1, now());
INSERT INTO file_snapshots VALUES (1, 'stats.files', 5, 0);
INSERT INTO stats_files (table_key, from_pos, to_pos, file_path, row_count, generation, created_at)
    VALUES (1, 0, {2**62}, 'f', 10, 1, now());
INSERT INTO idempotency VALUES ('k', 'h', '{{"received": 1, "created": 1, "unchanged": 0, "replaced": 0}}', now());
"""
# Servers of that time created this table at their start.
USAGE = """
CREATE TABLE column_usage (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    column_name VARCHAR, reads BIGINT, last_read_at TIMESTAMPTZ);
INSERT INTO column_usage VALUES (1, 'c', 's', 't', 'a', 7, now());
"""


def build(path: Path, version: int = 1, *, served: bool = False) -> Path:
    """A file of layout 1 with a column, a file and an idempotency key of one table.

    `version` is the layout version in its settings; `served` adds the usage table of a server that was read from.
    """
    with duckdb.connect(str(path)) as connection:
        connection.execute(LAYOUT)
        connection.execute(ROWS)
        if served:
            connection.execute(USAGE)
        connection.execute("UPDATE settings SET value = ?", [str(version)])
    return path
