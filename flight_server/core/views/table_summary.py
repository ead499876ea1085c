"""The statistics of one table at one snapshot, formatted for people."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from flight_server.client.table_names import full_name
from flight_server.core.views import shapes
from flight_server.core.views.numbers import count, counted, known, percent
from flight_server.core.views.reader import Leaf, Reader, as_rows, read_table
from store.model.columns import REMARK
from store.model.errors import nearest
from store.model.figures import interval_of_ndv
from store.model.statistics import COUNTED, SCALARS, SIDES, WIDTHS, Statistic, exactness

Row = dict[str, Any]

SHAPED: Final = 1000
"""Columns of which shapes are read at most: of each there are some 60 rows, and nobody looks at more."""
EXACT: Final = "EXACT"  # `store.model.freshness` loads what a small command does without


@dataclass
class TableSummary:
    """Rows of the `stats.*` flights for one table.

    Attributes:
        is_wide: True if shapes were asked for, and not read of so many columns.
    """

    name: str
    columns: pa.Table
    table: Row | None = None
    histograms: dict[int, list[Row]] = field(default_factory=dict)  # by column id, buckets in order
    common_values: dict[int, list[Row]] = field(default_factory=dict)  # by column id, most common first
    quantiles: dict[int, dict[float, str | None]] = field(default_factory=dict)  # by column id, value by rank
    sampled: set[int] = field(default_factory=set)  # ids of columns whose quantiles are of a sample
    is_wide: bool = False

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of `stats.columns`, in the order of their column ids."""
        return sorted(as_rows(self.columns), key=lambda row: row["column_id"])

    @property
    def schemas(self) -> set[str]:
        """Hashes of the schemas that the rows are of."""
        rows = [*self.rows, *([] if self.table is None else [self.table])]
        return {row["schema_hash"] for row in rows if row.get("schema_hash") is not None}

    def bars(self, row: Row, bins: int, *, cut_tails: bool = False) -> list[shapes.Bar]:
        """The histogram of a column as at most `bins` bars, with long tails cut where that is asked for."""
        column = row["column_id"]
        return shapes.bars(
            self.histograms.get(column, []),
            row["logical_type"] or "",
            bins,
            row["ndv"],
            self.common_values.get(column, []),
            cut_tails=cut_tails,
        )

    @property
    def known(self) -> bool:
        """True when the store has statistics of the table."""
        return self.table is not None or self.columns.num_rows > 0


def gather(
    reader: Reader, name: str, snapshot: str | int, *conditions: Leaf, allow_stale: bool = False, shapes: bool = False
) -> TableSummary:
    """Reads a table's statistics.

    Args:
        name: Full name of the table.
        snapshot: "current", or an id.
        conditions: Conditions on the columns, such as their ids.
        allow_stale: Includes rows of older snapshots if there are none of this one.
        shapes: Also reads histograms, most common values and quantiles, unless of more than SHAPED columns.

    Raises:
        pa.ArrowKeyError: The table or its snapshot does not exist.
    """

    def read(flight: str, *more: Leaf, columns: Sequence[str] | None = None) -> pa.Table:
        return read_table(reader, flight, name, columns, *more, snapshot=snapshot, allow_stale=allow_stale)

    def by_column(flight: str, *columns: str) -> dict[int, list[Row]]:
        found: defaultdict[int, list[Row]] = defaultdict(list)
        for row in read(flight, *conditions, columns=("column_id", *columns)).to_pylist():
            found[row["column_id"]].append(row)
        return {column: sorted(rows, key=lambda row: row[columns[0]]) for column, rows in found.items()}

    summary = TableSummary(name, read("stats.columns", *conditions))
    summary.table = next(iter(read("stats.tables").to_pylist()), None)
    if not summary.known:
        require(reader, name, snapshot)
    elif shapes and summary.columns.num_rows > SHAPED:
        summary.is_wide = True
    elif shapes and summary.columns.num_rows:
        summary.histograms = by_column("stats.histograms", "bucket", "lower", "upper", "row_count")
        counts = ("count", "count_lower", "count_upper")
        summary.common_values = by_column("stats.most_common_values", "rank", "value", *counts)
        for column, rows in by_column("stats.quantiles", "quantile", "value", "completeness").items():
            summary.quantiles[column] = {row["quantile"]: row["value"] for row in rows}
            if rows[0]["completeness"] == "PARTIAL":
                summary.sampled.add(column)
    return summary


def uncaptured(reader: Reader, summary: TableSummary) -> list[Row]:
    """Columns of the current schema without statistics; not structs, which have those of their fields.

    Returns:
        Rows with `column_id`, `column_name` and `data_type`.
    """
    names = ["column_id", "column_name", "data_type"]
    known = {row["column_id"] for row in summary.rows}
    columns = read_table(reader, "information_schema.columns", summary.name, names).to_pylist()
    return [row for row in columns if row["column_id"] not in known and row["data_type"] != "STRUCT"]


def remark(reader: Reader, name: str) -> str:
    """What of a table is not read, and why; empty where there is nothing to say."""
    texts = read_table(reader, "sys.tables", name, ["properties"])["properties"].to_pylist()
    return str(json.loads(texts[0]).get(REMARK, "")) if texts and texts[0] else ""


def require(reader: Reader, name: str, snapshot: str | int = "current") -> None:
    """Raises `pa.ArrowKeyError` unless the table and the snapshot exist."""
    if not read_table(reader, "information_schema.tables", name, ["table_name"]).num_rows:
        names = [full_name(row) for row in reader.read("information_schema.tables").to_pylist()]
        hint = nearest(name, names) or "`statflight ls` lists them"
        raise pa.ArrowKeyError(f'[UNKNOWN_TABLE] no table "{name}"; {hint}')
    if snapshot != "current":
        ids = read_table(reader, "sys.snapshots", name, ["snapshot_id"])["snapshot_id"].to_pylist()
        if int(snapshot) not in ids:
            some = ", ".join(map(str, ids[-5:])) or "none"
            raise pa.ArrowKeyError(f'[UNKNOWN_SNAPSHOT] "{name}" has no snapshot {snapshot}; the latest are: {some}')


# Statistics as text.


def percent_null(row: Row) -> str:
    """The share of nulls in percent; `0` and `100` only if exact, empty if unknown."""
    return percent(row["null_count"], row["row_count"])


def distinct(row: Row) -> str:
    """The number of distinct values, with the half-width of its 95 % interval if it has one."""
    if (ndv := row["ndv"]) is None:
        return ""
    if row["ndv_exact"]:
        return count(ndv)
    if (interval := interval_of_ndv(row)) is None or not ndv:
        return f"~{count(ndv)}"
    lower, upper = interval
    return f"{count(ndv)} ±{max(upper - ndv, ndv - lower) / ndv * 100:.1f}%"


_SIGNS: Final = dict(zip(SIDES, "≥≤", strict=True))
_SHOWN: Final = tuple(each for each in SCALARS if each.is_shown and each.label and each.name not in COUNTED)
NULLS: Final = "null %"
LABELS: Final = (NULLS, *(each.label for each in _SHOWN if each.name not in WIDTHS))
"""Labels of what people are shown of a column's values, in the order of the table of statistics."""
WIDTH_LABELS: Final = tuple(each.label for each in _SHOWN if each.name in WIDTHS)
NUMBER_LABELS: Final = frozenset({NULLS, *(each.label for each in _SHOWN if each.is_number)})
"""Those of numbers, which are written to the right."""
SOME_LABELS: Final = frozenset(each.label for each in _SHOWN if each.types is not None)
"""Those that only columns of some types have."""


def texts(row: Row) -> dict[str, str]:
    """The statistics of a record of a column as text, by `LABELS` and `WIDTH_LABELS`; empty if unknown."""
    return {NULLS: percent_null(row), **{each.label: _text(each, row) for each in _SHOWN}}


def _text(statistic: Statistic, row: Row) -> str:
    name = statistic.name
    if name in _SIGNS:
        return bound(row[name], row[exactness(name)], _SIGNS[name])
    return distinct(row) if statistic.per_value else known(row.get(name))


def bound(text: str | None, exact: bool | None, sign: str, longest: int = 28) -> str:
    """A bound, shortened if long; `≥` or `≤` marks an inexact one."""
    if text is None:
        return ""
    shown = '""' if text == "" else text if len(text) <= longest else text[: longest - 1] + "…"
    return f"{sign} {shown}" if exact is False else shown


def freshness(row: Row, *, sampled: bool = False) -> str:
    """EXACT, or the row's label and its snapshot; also that of its distribution if it differs, and a sample's rows.

    Args:
        sampled: True if the column's quantiles are of a sample; the row may be complete all the same.
    """

    def label(fresh: str, snapshot: int) -> str:
        return fresh if fresh in (EXACT, "") else f"{fresh} (from {snapshot})"

    labels = [label(row["freshness"] or "", row["snapshot_id"])]
    if (of_distribution := row.get("distribution_freshness")) is not None:
        of_distribution = label(of_distribution, row["distribution_snapshot_id"])
        if of_distribution not in labels:
            labels.append(f"distribution {of_distribution}")
    if row.get("completeness") == "PARTIAL" and row.get("rows_scanned") is not None:
        labels.append(f"sample of {counted(row['rows_scanned'], 'row')}")
    elif sampled:
        labels.append("quantiles of a sample")
    return ", ".join(labels)


def moment(value: datetime | None) -> str:
    """A timestamp to the second."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}Z"


def age(value: datetime | None, now: datetime | None = None) -> str:
    """The time since a timestamp, in its largest unit."""
    if value is None:
        return ""
    seconds = max(0.0, ((now or datetime.now(UTC)) - value).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
