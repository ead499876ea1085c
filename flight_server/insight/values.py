"""The values that rules are about, and those of their limits, at a snapshot of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa

from flight_server.core.views import table_summary
from flight_server.core.views.numbers import number
from flight_server.core.views.reader import Reader, equal, read_table
from flight_server.core.views.table_summary import Row, TableSummary
from flight_server.insight import drift, measures, references, statements
from flight_server.insight.found import Found
from flight_server.insight.limits import Limit
from flight_server.insight.records import Records
from flight_server.insight.rules import CONTAINMENT, FIRST, OF_TABLE, PREVIOUS, SELECT, Rule
from store.model.errors import StatflightError, first_line
from store.model.logical_types import MEASURED, NESTED, NUMERIC
from store.model.statistics import SIDES, of_kind

_OWN: Final = ("row_count", "null_count", *of_kind("NDV"))


class NoHistory(Exception):
    """Raised when a rule compares with earlier snapshots, and there are too few of them."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a judgement, besides the table's statistics and the rules.

    Attributes:
        at: Snapshot of the statistics, or "current".
        against: Snapshot that rules compare with that name none; None for none.
        now: The time that ages are measured to.
        only_timely: Gives only results that time alone may turn.
        allow_inherited: Lets distributions of earlier snapshots decide.
    """

    at: int | str
    against: int | str | None
    now: datetime
    only_timely: bool = False
    allow_inherited: bool = False


class Values:
    """Values of a table's statistics, read once and used by each rule.

    Args:
        facts: The table's statistics.

    Attributes:
        records: The table's records at this and other snapshots.
    """

    def __init__(self, reader: Reader, facts: TableSummary, terms: Terms):
        self._reader, self._table, self._facts = reader, facts.name, facts
        self._terms, self._at = terms, terms.at
        self.records = Records(reader, facts.name, terms.at)

    def found(self, rule: Rule, row: Row | None) -> Found:
        """The value that a rule is about."""
        if rule.of_change:
            return self._change(rule, row)
        return self._of_table(rule) if row is None else self._of_column(rule, row)

    def _measured(self, measure: str, row: Row) -> Found:
        """The value of a measure in a record of the table or of a column."""
        at = measures.inherited_from(row, measure)
        row = self._with_own_counts(measure, row)
        value, note = measures.value_in(row, measure)
        is_sample = self._is_sample(measure, row)
        extent = measures.extent(measure, row, is_sample, lambda: self.records.distinct(row))
        if extent is not None and is_sample and measure not in SIDES:
            note = "of a sample; capture without sampling"
        return Found(value, extent, note, at, self._decides(measure, at))

    def _decides(self, measure: str, at: int | None) -> bool:
        """True if a value that is inherited from a snapshot, None for none, may decide a rule."""
        return at is None or measure not in measures.OF_DISTRIBUTION or self._terms.allow_inherited

    def _with_own_counts(self, measure: str, row: Row) -> Row:
        """A record with the counts, and the exactness, of the snapshot that a measure is of."""
        at = measures.snapshot_of(row, measure)
        if measure not in measures.OF_ROWS or at in (None, row["snapshot_id"]):
            return row
        own = next((one for one in self.records.stored(row) if one["snapshot_id"] == at), dict[str, Any]())
        return row | {name: own.get(name) for name in _OWN}

    def _is_sample(self, measure: str, row: Row) -> bool:
        """True if the record of a column, or its distribution, is of a part of the rows."""
        at = row.get("distribution_snapshot_id")
        if measure not in measures.OF_DISTRIBUTION or at in (None, row["snapshot_id"]):
            return bool(row["completeness"] == "PARTIAL")
        return any(one["snapshot_id"] == at and one["completeness"] == "PARTIAL" for one in self.records.stored(row))

    # Measures.

    def _change(self, rule: Rule, row: Row | None) -> Found:
        """The change of a measure since another snapshot: a share of its value there if the limits are in %."""
        old, new = self._compared_records(rule, row)
        was, now = (self._measured(rule.measure, one) for one in (old, new))
        if not isinstance(was.value, float | Fraction) or not isinstance(now.value, float | Fraction):
            raise measures.DoesNotApply(f"the {rule.measure} of a {measures.kind_of(new)} is no number")
        ends = f"{number(was.value)} → {number(now.value)}"
        if now.value - was.value != now.value - was.value:
            raise measures.NeverKnown(f"{ends}, which has no difference")
        change, share = now.change_since(was)
        shown = number(change.value, sign="+") if share is None else f"{number(100 * share.value, sign='+')}%"
        if not any(limit.percent for limit in rule.condition.limits):
            return replace(change, note=f"{ends} ({shown})")
        if share is None:
            raise measures.NeverKnown(f"{ends} ({shown}), which is no percentage of 0")
        return replace(share, note=f"{ends} ({shown})")

    def _compared_records(self, rule: Rule, row: Row | None) -> tuple[Row, Row]:
        """The records of a column, or of the table, at the snapshot to compare with and now.

        A value that is inherited from that very snapshot is compared with the one before.
        """
        old, new = self.records.at(self.compared(rule), row), self._facts.table if row is None else row
        at = measures.inherited_from(new, rule.measure)
        if old is not None and at is not None and at == measures.snapshot_of(old, rule.measure):
            if self.against_of(rule) != PREVIOUS:
                raise measures.UnknownValue(f"both are of snapshot {at}")
            if not (earlier := self.records.earlier(None, at)):
                raise NoHistory
            old = self.records.at(earlier[-1]["snapshot_id"], row)
        if old is None or new is None:
            raise measures.UnknownValue("not captured at both snapshots")
        return old, new

    def _of_table(self, rule: Rule) -> Found:
        measure = rule.measure
        if measure == "age_seconds":
            return Found(*self._age())
        at = measures.inherited_from(self._facts.table, measure)
        if measure == SELECT:
            return Found(statements.value_of(self._reader, rule.of, self._table), at=at)
        if measure == "schema_changes":
            return replace(self._schema_changes(self.compared(rule)), at=at)
        if self._facts.table is None:
            raise measures.UnknownValue("nothing captured at the current snapshot")
        return self._measured(measure, self._facts.table)

    def _age(self) -> tuple[float, None, str]:
        """Seconds since the current snapshot was committed; since its capture if the commit time is unknown."""
        current = [row for row in self.records.snapshots() if self.records.is_now(row)]
        committed = current[0]["committed_at"] if current else None
        if committed is not None:
            return (self._terms.now - committed).total_seconds(), None, ""
        table = self._facts.table or next(iter(self._facts.rows), None)
        captured = None if table is None else table["refreshed_at"] or table["captured_at"]
        if captured is None:
            raise measures.UnknownValue("neither committed nor captured")
        return (self._terms.now - captured).total_seconds(), None, "since the capture"

    def _schema_changes(self, against: int | str) -> Found:
        older = self.records.summary(against)
        if not older.rows or not self._facts.rows:
            at = "the current snapshot" if older.rows else f"snapshot {against}"
            raise measures.UnknownValue(f"no columns captured at {at}")
        if older.schemas & self._facts.schemas:  # a column that one of them lacks was not captured there
            return Found(Fraction(0))
        before, after = (
            {row["column_id"]: (row["column_name"], row["logical_type"]) for row in of.rows}
            for of in (older, self._facts)
        )
        for row in table_summary.uncaptured(self._reader, self._facts) if self._at == "current" else ():
            if row["column_id"] in before or row["data_type"] not in NESTED:
                after[row["column_id"]] = row["column_name"], row["data_type"]
        changed = {i: after.get(i) or before[i] for i in before.keys() | after.keys() if before.get(i) != after.get(i)}
        names = ", ".join(sorted(name or f"#{i}" for i, (name, _) in changed.items()))
        return Found(Fraction(len(changed)), note=names)

    def _of_column(self, rule: Rule, row: Row) -> Found:
        if rule.measure == "drift":
            return self._drift(rule, row, measures.kind_of(row))
        if rule.measure == CONTAINMENT:
            return self._containment(rule, row)
        if rule.measure == "unique":
            return self._unique(row)
        if rule.measure == "most_common":
            return self._most_common(rule, row)
        if rule.measure in SIDES:
            self._require_order(rule, row)
        return self._measured(rule.measure, row)

    def _require_order(self, rule: Rule, row: Row) -> None:
        """Raises `DoesNotApply` if a bound of a column is compared with limits of another kind."""
        measures.bound(rule.measure, row)  # which may not be known
        texts = any(isinstance(limit.value, str) for limit in rule.condition.limits)
        kind = measures.kind_of(row)
        if kind in MEASURED:
            if texts:
                raise measures.DoesNotApply(f"the {rule.measure} of a {kind} is compared with numbers")
        elif not texts and not any(limit.other for limit in rule.condition.limits):
            raise measures.DoesNotApply(
                f"the {rule.measure} of a {kind} is not a number; compare it with a text in single quotes"
            )

    def _unique(self, row: Row) -> Found:
        """1 if no value of a column occurs twice, 0 otherwise: by exact counts, else by reading the column."""
        known = measures.is_unique(row, lambda: self.records.distinct(row))
        if known is None:
            try:
                known = self._reader.unique(self._table, row["column_id"], self._at)
            except (StatflightError, pa.ArrowException, pa.ArrowKeyError) as error:
                raise measures.UnknownValue(f"the column cannot be read: {first_line(error)}") from None
        return Found(Fraction(known))

    def _containment(self, rule: Rule, row: Row) -> Found:
        sketch = self.records.sketch(self._at, row["column_id"], "NDV")
        found = references.containment(self._reader, self._table, row, sketch, rule.of)
        return self._of_sketches(found, sketch)

    def _of_sketches(self, found: Found, *used: Row | None) -> Found:
        """A value by sketches of the current snapshot first, and of others."""
        inherited = [sketch["snapshot_id"] for sketch in used if sketch and sketch["freshness"] == "INHERITED"]
        mine = used[0]
        at = mine["snapshot_id"] if mine is not None and mine["freshness"] == "INHERITED" else None
        return replace(found, at=at, decides=self._terms.allow_inherited or (found.decides and not inherited))

    def _most_common(self, rule: Rule, row: Row) -> Found:
        """The first of a column's most common values that breaks the condition, else the most common one."""
        found = (
            read_table(
                self._reader,
                "stats.most_common_values",
                self._table,
                None,
                equal("column_id", row["column_id"]),
                snapshot=self._at,
            )
            .sort_by("rank")
            .to_pylist()
        )
        if not found and (
            (kind := measures.kind_of(row)) in NESTED or self.records.sketch(self._at, row["column_id"], "MCV")
        ):
            raise measures.DoesNotApply(f"this {kind} column has no values that are common")
        if not found:
            raise measures.UnknownValue("no most common values; capture the kind MCV")
        pattern = rule.condition.op.endswith("matches")
        limits = [limit.value for limit in self.limits(rule, row)[0]]
        values = [one["value"] if pattern else measures.value_of(one["value"], row) for one in found]
        for value in values:
            measures.require_comparable(row, value, limits)
        worst = next((i for i, value in enumerate(values) if not rule.condition.holds(value, limits)), 0)
        note = f"{number(found[worst]['count'])} rows; the most common of {len(found)} values are judged"
        at = measures.inherited_from(row, rule.measure)
        return Found(values[worst], None, note, at, self._decides(rule.measure, at))

    def limits(self, rule: Rule, row: Row | None) -> tuple[list[Found], str]:
        """The values of a rule's limits, and what they are where the rule does not say so."""
        found = [self._limit(limit, rule, row) for limit in rule.condition.limits]
        relative = any(limit.is_relative for limit in rule.condition.limits)
        told = [one.told for one in found if one.note or one.extent or isinstance(one.value, float | Fraction)]
        return found, f"compared with {' and '.join(told)}" if relative and told else ""

    def _limit(self, limit: Limit, rule: Rule, row: Row | None) -> Found:
        if limit.window:
            return self._of_earlier(limit, self._window(limit, rule, row), rule.measure)
        if limit.other is None:
            if not isinstance(limit.value, str) or row is None or rule.condition.op.endswith("matches"):
                return Found(limit.value)
            return Found(measures.ordered(limit.value, measures.type_of(row)))
        measure, column = limit.other
        of_table = measure in OF_TABLE
        about = self._facts.table if of_table else row if column is None else self._row_of(column)
        if about is None:
            raise measures.UnknownValue("nothing captured at the current snapshot")
        return self._measured(measure, about).share(limit, row)

    def _window(self, limit: Limit, rule: Rule, row: Row | None) -> list[Found]:
        """The values at earlier snapshots that a limit is made of, the newest first."""
        at = measures.inherited_from(self._facts.table if row is None else row, rule.measure)
        earlier = [one for one in self.records.earlier(row, at) if measures.number_in(one, rule.measure) is not None]
        whole = [one for one in reversed(earlier) if not measures.is_uncertain(one, rule.measure)][: limit.window]
        if len(whole) < limit.least_values:
            enough = len(earlier) >= limit.least_values
            raise measures.uncertain(rule.measure, " of earlier snapshots") if enough else NoHistory
        return [self._measured(rule.measure, one) for one in whole]

    def _of_earlier(self, limit: Limit, values: Sequence[Found], measure: str) -> Found:
        """A limit by earlier values; a band is about the estimates, for it asks whether they are alike."""
        ends: list[Any] = [None, None]
        try:
            value = limit.of_earlier([one.value for one in values])
            if not limit.sigma and not all(one.is_certain for one in values):
                for place in (0, 1):
                    known = [one.ends[place] for one in values]
                    ends[place] = None if None in known else limit.of_earlier(known)
        except (OverflowError, ValueError):
            raise measures.NeverKnown(f"the {measure} of an earlier snapshot is not finite") from None
        is_certain = limit.sigma or all(one.is_certain for one in values)
        return Found(value, None if is_certain else (ends[0], ends[1]), decides=all(one.decides for one in values))

    def _row_of(self, column: str) -> Row:
        for row in self._facts.rows:
            if row["column_name"] == column:
                return row
        named = equal("column_name", column)
        if read_table(self._reader, "information_schema.columns", self._table, ["column_name"], named).num_rows:
            raise measures.UnknownValue(f'nothing captured of the column "{column}" at the current snapshot')
        raise measures.NeverKnown(f'no such column: "{column}"')

    def _drift(self, rule: Rule, row: Row, kind: str) -> Found:
        if kind not in NUMERIC:
            raise measures.DoesNotApply(
                f"drift compares distributions of numbers, dates and times, and a {kind or 'column without a type'} "
                "has none; use ndv, distinct_fraction, null_fraction or avg_width_bytes"
            )
        against = self.compared(rule)
        after = self.records.sketch(self._at, row["column_id"])
        before = self.records.sketch(against, row["column_id"])
        if before is None or after is None:
            at = "the current snapshot" if before else f"snapshot {against}"
            raise measures.UnknownValue(f"no quantile sketch at {at}; capture the kind HISTOGRAM there")
        distance = drift.distance(before["data"], after["data"])
        if distance is None:
            raise measures.UnknownValue("no values")
        error = distance.error
        told = [f"against {against}" + (f", ±{number(error, 3)}" if error else "")]
        if distance.tails > distance.shares:
            was, now = distance.beyond
            told.append(f"far from the earlier values lie {number(now, 3)} of the rows, before {number(was, 3)}")
        if before["snapshot_id"] != against:
            told.append(f"the sketch of snapshot {against} is inherited from {before['snapshot_id']}")
        unseen = 0.0
        for at, sketch in ((f"snapshot {against}", before), ("the current snapshot", after)):
            if lacking := drift.unseen(sketch["data"], sketch["params"]):
                unseen += lacking
                told.append(
                    f"the sketch of {at} is of a part of the rows and may lack {number(lacking, 3)} of the values; "
                    "capture HISTOGRAM without sampling"
                )
        extent = None
        if error or unseen:
            extent = distance.least(unseen), distance.most(unseen)
        return self._of_sketches(Found(distance.value, extent, "; ".join(told)), after, before)

    # Snapshots.

    def against_of(self, rule: Rule) -> int | str | None:
        """The snapshot that a rule compares with, as it says itself, or all do; None if neither says."""
        return self._terms.against if rule.against is None else rule.against

    def compared(self, rule: Rule) -> int | str:
        """The snapshot that a rule compares with."""
        words = {PREVIOUS: self.records.previous, FIRST: self.records.first}
        against = self.against_of(rule)
        against = words.get(against, against) if isinstance(against, str) else against
        if against is None:  # `check` refuses a rule without one, and `results` leaves out one without a predecessor
            raise measures.UnknownValue("no snapshot is captured")
        if rule.against is not None and against not in [row["snapshot_id"] for row in self.records.snapshots()]:
            raise measures.NeverKnown(f"snapshot {against} does not exist")
        return against
