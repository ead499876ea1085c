"""Columns that several flights have, the two groups of statistics, and the words that some columns have as values.

The statistics of a record are those of `store.model.statistics`; null means unknown.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from store.model import statistics
from store.model.statistics import FLOAT, INT, TEXT, StatisticGroup

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
