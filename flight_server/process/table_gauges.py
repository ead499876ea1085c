"""Optional gauges of tables: rows, bytes and nulls of the largest tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from store.duckdb.database import Database
from store.model.names import join_name

_CURRENT: Final = """
SELECT t.table_catalog, t.table_schema, t.table_name, s.row_count, s.total_size_bytes,
    (SELECT sum(c.null_count) / nullif(sum(c.row_count), 0) FROM stats_columns c
     WHERE c.table_key = t.table_key AND c.snapshot_id = t.current_snapshot_id
         AND c.null_count IS NOT NULL AND c.row_count IS NOT NULL) AS nulls
FROM tables t JOIN stats_tables s ON s.table_key = t.table_key AND s.snapshot_id = t.current_snapshot_id
WHERE NOT t.dropped ORDER BY s.row_count DESC NULLS LAST, t.table_key LIMIT ?
"""


def table_gauges(database: Database, most: int) -> Iterator[Metric]:
    """Gauges of the `most` largest tables at their current snapshots; unknown values have none."""
    if most <= 0:
        return
    rows = database.rows(_CURRENT, most)
    about = (("rows", "Rows"), ("size_bytes", "Bytes of the data files"), ("null_share", "Nulls of all values"))
    for place, (name, words) in enumerate(about, 3):
        families = GaugeMetricFamily(
            f"statflight_table_{name}", f"{words}, of the {most} largest tables", labels=["table"]
        )
        for row in rows:
            if row[place] is not None:
                families.add_metric([join_name(*row[:3])], float(row[place]))
        yield families
