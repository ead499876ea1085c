"""The data of the page of a column, as plain values, for its template and the JSON twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flight_server.core.views import history, table_summary
from flight_server.core.views.reader import Reader, equal, rows_of
from flight_server.core.views.table_summary import Row
from flight_server.faces.web.data import POINTS, bars_of, column_values
from store.model.figures import null_share
from store.model.statistics import FLAGS


def _judged(rows: Sequence[Row]) -> list[dict[str, dict[str, Any]]]:
    """Measures of each snapshot of a column that its record does not have, by name of the measure.

    Returns:
        `expected`, the bounds between which the history before lets a value be; and `load`, the value of the rows that
        were added, which these bounds are about where there is one.
    """
    found: list[dict[str, dict[str, Any]]] = [{"expected": {}, "load": {}} for _ in rows]
    try:
        from flight_server.insight import expectations, learned
    except ModuleNotFoundError as missing:
        if not str(missing.name).endswith("flight_server.insight"):
            raise
        return found  # that part is not of this build
    for name, measure in (("row_count", "row_count"), ("null_share", "null_fraction"), ("mean", "mean")):
        known = learned.known_values(measure, rows)
        values = [value for _, value in known.values]
        times = [rows[i]["committed_at"] for i, _ in known.values]
        judged = expectations.expectations(values, times, learned.kind_of(measure, rows))
        for (i, value), band in zip(known.values, judged, strict=True):
            if band is not None:
                found[i]["expected"][name] = [band.low, band.high]
            if known.of_loads:
                found[i]["load"][name] = value
    return found


def column(reader: Reader, name: str, column_name: str, then: int | None = None) -> dict[str, Any]:
    """A column: its current statistics, its history, and its histogram at two snapshots.

    Args:
        name: Full name of the table.
        column_name: Its current name, or `#<column_id>`.
        then: The snapshot of the second histogram; None means the captured one before the current.

    Raises:
        pa.ArrowKeyError: The table or the column does not exist.
    """
    rows = history.column_rows(reader, name, column_name)
    if not rows:
        return {
            "table": name,
            "column": column_name,
            "reference": column_name,
            "statistics": None,
            "history": [],
            "then": None,
            "comment": None,
        }
    ids = equal("column_id", rows[-1]["column_id"])
    summary = table_summary.gather(reader, name, "current", ids, allow_stale=True, shapes=True)
    now = summary.rows[0] if summary.rows else rows[-1]
    older = [row["snapshot_id"] for row in rows if row["snapshot_id"] != now["snapshot_id"]]
    at = then if then in older else older[-1] if older else None
    before = None
    if at is not None:
        earlier = table_summary.gather(reader, name, at, ids, shapes=True)
        if earlier.rows:
            before = {"snapshot_id": at, "histogram": bars_of(earlier, earlier.rows[0], 40)}
    names = ("snapshot_id", "committed_at", "logical_type", *FLAGS, *history.STATISTICS)
    said = rows_of(reader, "sys.columns", name, ids)
    comment = said[0]["comment"] if said else None
    return {
        "table": name,
        "column": now["column_name"] or column_name,
        "reference": column_name,
        "statistics": column_values(now, summary) | {"histogram": bars_of(summary, now, 40)},
        "comment": comment,
        "history": [
            {key: row.get(key) for key in names} | {"null_share": null_share(row)} | judged
            for row, judged in zip(rows[-POINTS:], _judged(rows)[-POINTS:], strict=True)
        ],
        "then": before,
    }
