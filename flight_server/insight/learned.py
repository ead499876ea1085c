"""The rule `learned`: each measure of a table and of its columns is as its history lets expect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from flight_server.core.views import history, loads
from flight_server.core.views.numbers import number
from flight_server.core.views.reader import Reader, equal, read_table, rows_of
from flight_server.core.views.table_summary import Row, TableSummary
from flight_server.insight import drift, expectations, measures
from flight_server.insight.expectations import COUNT, Kind
from flight_server.insight.results import Result, State
from flight_server.insight.rules import Rule
from store.model.columns import EXPECTED

GAP: Final = "commit_gap"
TIMELY: Final = frozenset({"age_seconds", GAP})  # measures that time alone changes
OF_TABLE: Final = ("row_count", "size_bytes")
OF_COLUMN: Final = ("null_fraction", "distinct_fraction", "mean", "drift")
MEASURES: Final = (*OF_TABLE, GAP, *OF_COLUMN)
_SKETCHES: Final = 30  # newest snapshots whose sketches are compared
_LEAST_CHANGE: Final = {"null_fraction": 0.002, "distinct_fraction": 0.02, "drift": 0.05}


def rule_of(measure: str) -> str:
    """The text by which the results of one measure are known."""
    return f"learned {measure}"


def kind_of(measure: str, rows: Sequence[Row]) -> Kind:
    """The comparison of a measure's values; `rows` are the records of the column, for the spread of its values."""
    if measure == "mean":
        spreads = [row["stddev"] for row in rows if row["stddev"] is not None]
        return expectations.plain(median(spreads) if spreads else 0.0)
    least = _LEAST_CHANGE.get(measure)
    return COUNT if least is None else expectations.share(least)


class Known(NamedTuple):
    """The values that a measure is judged by.

    Attributes:
        values: Values, oldest first, each with the place of its record.
        of_loads: True if they are of the rows that each load added.
    """

    values: list[tuple[int, float]]
    of_loads: bool


def known_values(measure: str, rows: Sequence[Row]) -> Known:
    """The values of a measure in stored records.

    Of a table that only grows they are those of each load, which the table dilutes. A sample has another mean, and
    fewer distinct values, than all rows: records unlike the newest are left out.
    """
    of_loads = loads.values(measure, rows) if measure in loads.MEASURES else None
    if of_loads is not None:
        return Known(of_loads, of_loads=True)
    of_table = [
        (place, float(value))
        for place, row in enumerate(rows)
        if measures.is_uncertain(row, measure) == measures.is_uncertain(rows[-1], measure)
        and measures.snapshot_of(row, measure) in (None, row["snapshot_id"])
        and (value := measures.number_in(row, measure)) is not None
    ]
    return Known(of_table, of_loads=False)


@dataclass(frozen=True, slots=True)
class _Series:
    measure: str
    column: str | None
    kind: Kind
    values: list[float]
    rows: list[Row]  # the snapshot of each value, with `committed_at`
    of_loads: bool = False

    @classmethod
    def of(cls, measure: str, column: str | None, rows: Sequence[Row]) -> _Series:
        values, of_loads = known_values(measure, rows)
        kind = kind_of(measure, rows)
        return cls(measure, column, kind, [one for _, one in values], [rows[i] for i, _ in values], of_loads)

    def is_of(self, snapshot_id: int | None) -> bool:
        """True if the newest value is of a snapshot."""
        return bool(self.rows) and self.rows[-1]["snapshot_id"] == snapshot_id

    def newest(self, marked: Collection[tuple[str | None, str, int]]) -> expectations.Expectation | None:
        """The range in which the newest value was expected; `marked` are columns, rules and snapshots of values that
        someone has called expected."""
        key = self.column, rule_of(self.measure)
        expected = [place for place, row in enumerate(self.rows) if (*key, row["snapshot_id"]) in marked]
        times = [row["committed_at"] for row in self.rows]
        return expectations.newest(self.values, times, self.kind, expected)


def results(
    reader: Reader, facts: TableSummary, rule: Rule, now: datetime, only_timely: bool = False
) -> Iterator[Result]:
    """Judges what is captured of the current snapshot; of a measure without a value of it there is no result.

    Args:
        rule: The rule; with patterns of columns it is about these alone.
        now: The time, for the gap since the last commit.
        only_timely: Judges only the measures of `TIMELY`.
    """
    snapshots = history.snapshots(reader, facts.name)
    current = next((row["snapshot_id"] for row in snapshots if row["is_current"]), None)
    if not rule.columns:
        yield from _gap(facts.name, snapshots, current, rule, now)
    if only_timely:
        return
    marked = {
        (row["column_name"], row["rule"], row["snapshot_id"])
        for row in rows_of(reader, "sys.checks", facts.name, equal("state", EXPECTED))
    }
    judged = [
        (series, found)
        for series in _series(reader, facts, rule, current)
        if series.is_of(current) and (found := series.newest(marked))
    ]
    believed = expectations.most_are_false([found.probability for _, found in judged])
    for series, found in judged:
        strange = found.strange and found.probability <= believed
        yield Result(
            facts.name,
            series.column,
            rule_of(series.measure),
            series.measure,
            rule.level,
            State.of(rule.level, passed=None if found.unknown else not strange),
            series.values[-1],
            current,
            ("of the rows that were added: " if series.of_loads else "") + _told(found),
        )


def _told(found: expectations.Expectation) -> str:
    """What a result says of the values that were expected."""
    if found.unknown:
        return f"not judged: {found.unknown}"
    return f"expected {number(found.low)} to {number(found.high)}, by {found.count} snapshots"


def _gap(table: str, snapshots: Sequence[Row], current: int | None, rule: Rule, now: datetime) -> Iterator[Result]:
    times = sorted(row["committed_at"] for row in snapshots if row["committed_at"] is not None)
    longest = expectations.longest_gap(times, now)
    if longest is not None:
        gap = (now - times[-1]).total_seconds()
        state = State.of(rule.level, passed=gap <= longest.total_seconds())
        yield Result(
            table,
            None,
            rule_of(GAP),
            GAP,
            rule.level,
            state,
            gap,
            current,
            f"a commit is expected within {number(longest.total_seconds() / 3600, 3)} hours of the last",
        )


def _series(reader: Reader, facts: TableSummary, rule: Rule, current: int | None) -> Iterator[_Series]:
    if not rule.columns:
        rows = history.table_rows(reader, facts.name)
        yield from (_Series.of(measure, None, rows) for measure in OF_TABLE)
    columns: dict[int, list[Row]] = {}
    for row in history.in_order(reader, facts.name, read_table(reader, "stats.columns", facts.name).to_pylist()):
        columns.setdefault(row["column_id"], []).append(row)
    columns = {
        key: rows
        for key, rows in columns.items()
        if rows[-1]["snapshot_id"] == current and rule.takes(rows[-1]["column_name"] or "")
    }
    for rows in columns.values():
        for measure in OF_COLUMN[:-1]:
            yield _Series.of(measure, rows[-1]["column_name"], rows)
    yield from _drifts(reader, facts.name, columns)


def _drifts(reader: Reader, table: str, columns: dict[int, list[Row]]) -> Iterator[_Series]:
    """The distance of each captured distribution from the one before, where it changed."""
    newest = {row["snapshot_id"]: row for rows in columns.values() for row in rows[-_SKETCHES:]}
    if len(newest) <= expectations.LEAST:
        return
    sketches = read_table(
        reader,
        "stats.sketches",
        table,
        ["column_id", "snapshot_id", "data"],
        equal("role", "QUANTILES"),
        equal("target_kind", "COLUMN"),
        equal("snapshot_id", *newest),
    ).to_pylist()
    data = {(row["column_id"], row["snapshot_id"]): row["data"] for row in sketches}
    for column_id, rows in columns.items():
        known = [
            row
            for row in rows[-_SKETCHES:]
            if (column_id, row["snapshot_id"]) in data
            and (row["completeness"] == "PARTIAL") == (rows[-1]["completeness"] == "PARTIAL")
        ]
        values, at = [], []
        for before, after in pairwise(known):
            pair = [data[column_id, row["snapshot_id"]] for row in (before, after)]
            if pair[0] == pair[1]:
                continue  # nothing was loaded, which says nothing about how far a load goes
            if (found := drift.distance(*pair)) is not None:
                values.append(found.value)
                at.append(after)
        yield _Series("drift", rows[-1]["column_name"], kind_of("drift", rows), values, at)
