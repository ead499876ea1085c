"""From layout 19 to layout 20: bounds of writers that nobody knows no longer skip data, footers can be kept, rows of
files may lie in segments, and jobs name the server that runs them.

Rows of layout 19 may be of a time when each bound from metadata was taken for right. Where the summary of a snapshot
names a writer that was not known when layout 20 was released, that is set right here. Most rows do not tell who wrote
the files, such as those of plain Parquet files: these stay as they are, until they are captured again.
"""

from __future__ import annotations

import json
import re
from typing import Final

import duckdb

_Version = tuple[int, ...]

KNOWN: Final[dict[str, tuple[_Version, _Version]]] = {
    "apache-spark": ((3,), (5,)),
    "databricks-runtime": ((), ()),
    "delta-rs": ((), (2,)),
    "apache iceberg": ((1,), (2,)),
}
"""Writers of logs and manifests, in lower case → the first version that is known, and the first one that is not; empty
for any."""

_NAME: Final = re.compile(r"(?P<name>.*?)[/:\s]+(?:py-|rust-)?(?P<version>\d+(?:\.\d+)*)")
_UNCONFIRMED: Final = 0.5  # `confidence_level` of a row by whose bounds no data is skipped


_SEGMENTS: Final = """
CREATE TABLE segments (segment BIGINT, table_key BIGINT, family VARCHAR, name VARCHAR, digest VARCHAR,
    size_bytes BIGINT, row_count BIGINT, from_pos BIGINT, to_pos BIGINT, generation BIGINT, created_at TIMESTAMPTZ,
    has_ends BOOLEAN);
CREATE TABLE segment_ends (segment BIGINT, row_number BIGINT, to_pos BIGINT);
"""


def upgrade(connection: duckdb.DuckDBPyConnection) -> None:
    """Adds tables, which begin empty, and columns, and doubts the bounds of unknown writers."""
    connection.execute(_FOOTERS)
    connection.execute(_SEGMENTS)
    connection.execute("ALTER TABLE tables ADD COLUMN watch_seconds DOUBLE")
    connection.execute("ALTER TABLE jobs ADD COLUMN holder VARCHAR")
    connection.execute(
        "CREATE TABLE costs (day DATE, catalog VARCHAR, operation VARCHAR, reason VARCHAR, requests BIGINT,"
        " bytes BIGINT)"
    )
    _doubt_unknown_writers(connection)


def _doubt_unknown_writers(connection: duckdb.DuckDBPyConnection) -> None:
    """Lowers the confidence of bounds from metadata, of files and of whole tables, from the first snapshot on whose
    summary names a writer that is not known. Nothing moves elsewhere."""
    named = connection.execute(
        "SELECT table_key, ordinal, summary FROM snapshots WHERE summary LIKE '%\"engineInfo\"%'"
        " OR summary LIKE '%\"iceberg-version\"%' OR summary LIKE '%\"engine-name\"%'"
    ).fetchall()
    unknown = [(key, ordinal) for key, ordinal, summary in named if not is_known(summary)]
    if not unknown:
        return
    firsts: dict[int, int] = {}
    for key, ordinal in unknown:
        firsts[key] = min(ordinal, firsts.get(key, ordinal))
    connection.execute(
        "CREATE TEMP TABLE doubted AS SELECT unnest(?::BIGINT[]) AS table_key, unnest(?::BIGINT[]) AS ordinal",
        [list(firsts), list(firsts.values())],
    )
    for table in ("stats_columns", "stats_expressions", "stats_column_groups"):
        for part in ("current", "history"):
            connection.execute(_lowering_sql(f"{table}_{part}", "k.snapshot_id = r.snapshot_id", "snapshots"))
    is_listing = "k.family = 'stats.file_columns' AND k.pos = r.from_pos"
    connection.execute(_lowering_sql("stats_file_columns", is_listing, _LISTINGS))
    connection.execute("DROP TABLE doubted")


_FOOTERS: Final = (
    "CREATE TABLE footers (path VARCHAR, size_bytes BIGINT, modified BIGINT, footer BLOB, kept_at TIMESTAMPTZ)"
)

_LISTINGS: Final = (
    "(SELECT f.table_key, f.family, f.pos, s.ordinal FROM file_snapshots f"
    " JOIN snapshots s ON s.table_key = f.table_key AND s.snapshot_id = f.snapshot_id)"
)
"""SQL of the listings of files with the ordinals of their snapshots."""


def _lowering_sql(table: str, is_of: str, places: str) -> str:
    """The statement that lowers the confidence of a table's rows.

    Args:
        is_of: Condition of the place `k` of a row `r`.
        places: SQL of the places, with the ordinals from which rows hold. A row without one is doubted, too.
    """
    older = f"SELECT 1 FROM {places} k WHERE k.table_key = r.table_key AND {is_of} AND k.ordinal < d.ordinal"
    return (
        f"UPDATE {table} AS r SET confidence_level = {_UNCONFIRMED}, min_is_exact = NULL, max_is_exact = NULL"
        " FROM doubted d WHERE d.table_key = r.table_key AND r.producer = 'UPSTREAM_METADATA_DERIVED'"
        " AND (r.min IS NOT NULL OR r.max IS NOT NULL)"
        f" AND coalesce(r.confidence_level, 1) > {_UNCONFIRMED} AND NOT EXISTS ({older})"
    )


def is_known(summary: str) -> bool:
    """True if the summary of a snapshot, as JSON, names a known writer or none."""
    try:
        fields = json.loads(summary)
    except ValueError:
        return True
    if not isinstance(fields, dict):
        return True
    engine = " ".join(str(fields[name]) for name in ("engine-name", "engine-version") if fields.get(name))
    text = str(fields.get("engineInfo") or fields.get("iceberg-version") or engine).strip()
    match = _NAME.match(text)
    name, version = (text, ()) if match is None else (match["name"], _version(match["version"]))
    if not text:
        return True
    since, until = KNOWN.get(name.lower(), ((1,), (1,)))
    return since <= version and (not until or version < until)


def _version(text: str) -> _Version:
    return tuple(map(int, text.split(".")))
