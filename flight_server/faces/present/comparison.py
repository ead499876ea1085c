"""Differences between a table's statistics at two snapshots, as values and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from flight_server.core.views.table_summary import Row, TableSummary
from flight_server.faces.present.column_labels import labels
from store.model.figures import limits_of_ndv
from store.model.statistics import SIDES, STATISTICS, StatisticGroup, exactness, names

OF_TABLE: Final = ("row_count", *names(lambda each: each.group is StatisticGroup.TABLE and each.is_shown, STATISTICS))
OF_COLUMN: Final = (
    "logical_type",
    *names(lambda each: each.is_shown and not each.is_precision and each.name not in OF_TABLE),
)

_NAMES: Final = frozenset({"logical_type", "column_name"})  # facts of a column that no sample is needed for


@dataclass(frozen=True)
class Change:
    """A statistic that differs.

    Attributes:
        of: `table`, or the name of a column.
        statistic: Its name; `added` or `dropped` for a whole column.
        before, after: Values in the form of the flights.
        change: Difference of two numbers.
        change_percent: Difference in percent of the value before, unless that is zero.
        certain: False if the error of an estimate, or a bound that is not exact, may be all of the difference.
    """

    of: str
    statistic: str
    before: Any = None
    after: Any = None
    change: float | None = None
    change_percent: float | None = None
    certain: bool = True

    def to_json(self) -> dict[str, Any]:
        """The change as an object of JSON values."""
        return asdict(self)


def changes(before: TableSummary, after: TableSummary) -> list[Change]:
    """Differences of the table first, then of each column by its id: a renamed column is the same one.

    A column without a row on one side is added or dropped if the schema differs, and else was not captured there.
    """
    differences = _compare("table", OF_TABLE, before.table or {}, after.table or {})
    olds, news = ({row["column_id"]: row for row in summary.rows} for summary in (before, after))
    known_as = labels([*(row for i, row in olds.items() if i not in news), *news.values()])
    differ = bool(olds and news) and not before.schemas & after.schemas
    for column in sorted(olds.keys() | news.keys()):
        old, new = olds.get(column), news.get(column)
        label = known_as[column]
        if old is not None and new is not None:
            differences += _compare(label, ("column_name", *OF_COLUMN), old, new)
        elif differ:
            differences.append(Change(label, "added" if old is None else "dropped"))
        else:
            differences += _compare(label, OF_COLUMN, old or {}, new or {})
    return differences


def _compare(of: str, names: Sequence[str], old: Row, new: Row) -> list[Change]:
    differences = []
    for statistic in names:
        was, now = old.get(statistic), new.get(statistic)
        if was == now:
            continue
        difference: float | None = None
        percent: float | None = None
        if was is not None and now is not None and _is_number(was) and _is_number(now):
            difference = now - was
            percent = 100 * (now - was) / abs(was) if was else None
        certain = was is None or now is None or _is_certain(statistic, old, new)
        differences.append(Change(of, statistic, was, now, difference, percent, certain))
    return differences


def _is_certain(statistic: str, old: Row, new: Row) -> bool:
    """True if two different values of a statistic stand for different ones, whatever their errors are."""
    if statistic not in _NAMES and ((old.get("row_groups_sampled") or 0) or (new.get("row_groups_sampled") or 0)):
        return False  # both may be of a sample of the same rows
    if statistic == "ndv":
        (low, high), (other_low, other_high) = limits_of_ndv(old), limits_of_ndv(new)
        return high < other_low or other_high < low
    return statistic not in SIDES or _is_certain_bound(statistic, old, new)


def _is_certain_bound(statistic: str, old: Row, new: Row) -> bool:
    """True if two different bounds of which one may be inexact stand for different values."""
    was, now = old[statistic], new[statistic]
    was_exact, now_exact = (row.get(exactness(statistic)) is not False for row in (old, new))
    if was_exact and now_exact:
        return True
    first, second = _ordered(was), _ordered(now)
    if first is None or second is None or was_exact == now_exact:
        return False
    # an inexact minimum is one that no value is below, an inexact maximum one that no value is above
    outer, exact = (first, second) if now_exact else (second, first)
    return exact < outer if statistic == SIDES[0] else exact > outer


def _ordered(bound: Any) -> float | None:
    """A bound as a number; None if it is none."""
    try:
        return float(bound)
    except (TypeError, ValueError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
