"""Evaluates rules against the statistics of tables; the values that decide are those of `values`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

from flight_server.core.views import added, table_summary
from flight_server.core.views.numbers import nearest_float
from flight_server.core.views.reader import Reader, read_table
from flight_server.core.views.table_summary import Row, TableSummary
from flight_server.insight import learned, measures, references
from flight_server.insight.results import Result, State
from flight_server.insight.rules import CONTAINMENT, FIRST, LEARNED, PREVIOUS, Rule
from flight_server.insight.values import NoHistory, Terms, Values
from store.model.errors import InvalidArgument
from store.model.names import is_pattern
from store.model.statistics import SIDES

NO_COLUMN: Final = "no such column"
"""Detail of a result of a rule about a column that the table does not have."""


def check(
    reader: Reader,
    table: str,
    rules: Sequence[Rule],
    against: int | str | None = None,
    now: datetime | None = None,
    only_timely: bool = False,
    allow_inherited: bool = False,
) -> list[Result]:
    """Evaluates the rules that apply to a table.

    Args:
        table: Full name.
        rules: Rules; those about other tables are skipped.
        against: Snapshot to compare with, for rules that name none: an id, "first" for the oldest captured one, or
            "previous" for the captured one before the current. When there is none, rules that compare with it have no
            result, and all rows count as added.
        only_timely: Gives only results that time alone may turn.
        allow_inherited: Lets distributions of earlier snapshots decide.

    Raises:
        InvalidArgument: A rule compares snapshots and names none, and `against` is None.
        pa.ArrowKeyError: The table, or the snapshot to compare with, does not exist.
    """
    mine = [rule for rule in rules if rule.is_about(table) and (rule.is_timely or not only_timely)]
    if against is None and (comparing := [rule for rule in mine if rule.needs_snapshot]):
        raise InvalidArgument(
            f"the rule {comparing[0].text!r} compares snapshots", hint="say --against previous, or --against ID"
        )
    if not mine:
        return []
    if against not in (None, PREVIOUS, FIRST):
        table_summary.require(reader, table, against)
    facts = table_summary.gather(reader, table, "current")
    terms = Terms("current", against, now or datetime.now(UTC), only_timely, allow_inherited)
    subject = _Subject(reader, facts, terms)
    subject.about_added = [rule for rule in mine if rule.of_added]
    return [result for rule in mine for result in subject.results(rule)]


def compare(
    reader: Reader, rules: Sequence[Rule], before: TableSummary, was: int | str, after: TableSummary, at: int | str
) -> list[Result]:
    """Evaluates rules at one snapshot of a table against another.

    Args:
        before, after: The table's statistics at the two snapshots.
        was, at: Their ids, or "current".
    """
    subject = _Subject(reader, after, Terms(at, was, datetime.now(UTC)))
    subject.take(was, before)
    subject.about_added = [rule for rule in rules if rule.of_added]
    return [result for rule in rules for result in subject.results(rule)]


def _shown(value: Any) -> float | str:
    """A value as results have it."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else nearest_float(value)
    shown: float | str = value.text if isinstance(value, measures.Ordered) else value
    return shown


class _Subject:
    """A table's statistics, read once and used by each rule."""

    def __init__(self, reader: Reader, facts: TableSummary, terms: Terms):
        self._reader, self._table, self._facts, self._terms = reader, facts.name, facts, terms
        self._values = Values(reader, facts, terms)
        self.about_added: Sequence[Rule] = ()
        self._loads: dict[int | None, _Subject] = {}

    def take(self, snapshot: int | str, summary: TableSummary) -> None:
        """Takes the statistics of an earlier snapshot, which need not be read then."""
        self._values.records.older[snapshot] = summary

    def results(self, rule: Rule) -> Iterator[Result]:
        """The results of a rule; none if it has nothing to compare with, or applies to no column of the table."""
        if rule.of_added:
            yield from self._of_added(rule)
            return
        if rule.compares and self._values.against_of(rule) == PREVIOUS and self._values.records.previous is None:
            return  # a first snapshot has no predecessor
        if rule.measure == LEARNED:
            yield from learned.results(self._reader, self._facts, rule, self._terms.now, self._terms.only_timely)
            return
        if rule.is_of_table:
            with suppress(NoHistory):
                yield self._result(rule, None)
            return
        if rule.measure == CONTAINMENT:
            mine = references.of_table(rule, self._table, self._facts.rows)
            if mine is None:
                return  # about another table
            rule = mine
        rows = [row for row in self._facts.rows if rule.takes(row["column_name"] or "")]
        if not rows:
            yield from self._without_columns(rule)
        for row in rows:
            yield from self._of_row(rule, row)

    def _of_added(self, rule: Rule) -> Iterator[Result]:
        """The results of a rule about the rows that were added."""
        named = ", ".join(rule.columns) or None
        try:
            against = self._before_load(rule)
            if against not in self._loads:
                self._loads[against] = self._load(against)
        except measures.NeverKnown as why:
            yield self._failed(rule, named, None, str(why))
        except measures.UnknownValue as why:
            yield self._unknown(rule, named, None, str(why))
        else:
            yield from self._loads[against].results(replace(rule, of_added=False))

    def _before_load(self, rule: Rule) -> int | None:
        """The snapshot since which rows count as added; None if there is none before, so that all do."""
        if self._values.against_of(rule) in (None, PREVIOUS):
            return self._values.records.previous
        return int(self._values.compared(rule))

    def _load(self, against: int | None) -> _Subject:
        """The rows that were added since a snapshot, as a table of their own.

        Raises:
            UnknownValue: The files of one of the snapshots are not captured.
        """
        current = next(
            (row["snapshot_id"] for row in self._values.records.snapshots() if self._values.records.is_now(row)), None
        )
        if current is None:
            raise measures.UnknownValue("nothing captured at the current snapshot")
        has_distinct = any(rule.needs_distinct for rule in self.about_added if not rule.is_of_table)
        wanted = self._columns_of_added()
        try:
            facts, thetas = added.gather(self._reader, self._table, current, against, wanted, sketches=has_distinct)
        except added.NotListed as why:
            raise measures.UnknownValue(str(why)) from None
        load = _Subject(self._reader, facts, Terms(self._terms.at, against, self._terms.now))
        of_load = {"snapshot_id": current, "freshness": "EXACT", "params": None}
        load._values.records.take_sketches(
            current, "NDV", {column: of_load | {"data": data} for column, data in thetas.items()}
        )
        return load

    def _columns_of_added(self) -> set[int]:
        """Ids of the columns that rules about added rows name, in their limits too."""
        asked = [rule for rule in self.about_added if not rule.is_of_table]
        limits = itertools.chain.from_iterable(rule.condition.limits for rule in self.about_added)
        others = {limit.other[1] for limit in limits if limit.other}
        names = {row["column_id"]: row["column_name"] for row in self._facts.rows}
        return {i for i, name in names.items() if name in others or any(rule.takes(name or "") for rule in asked)}

    def _without_columns(self, rule: Rule) -> Iterator[Result]:
        """The result of a rule that no captured column is of; none if its patterns match no column at all."""
        named = ", ".join(rule.columns) or None
        if self._may_come(rule):
            yield self._unknown(rule, named, None, "nothing captured at the current snapshot")
        elif not any(map(is_pattern, rule.columns)):
            yield self._failed(rule, named, None, NO_COLUMN)

    def _of_row(self, rule: Rule, row: Row) -> Iterator[Result]:
        """The result of a rule about a column; none without the history that it needs.

        A rule for all columns skips those it does not apply to; for a named column that is an error.
        """
        try:
            yield self._result(rule, row)
        except NoHistory:
            return
        except measures.DoesNotApply as why:
            if not all(map(is_pattern, rule.columns)):
                judged = self._unknown if why.pending else self._failed
                yield judged(rule, row["column_name"], row["snapshot_id"], str(why))

    def _may_come(self, rule: Rule) -> bool:
        """True if a rule's columns have no statistics yet; False if there are no such columns."""
        known = read_table(self._reader, "information_schema.columns", self._table, ["column_name"])
        return not self._facts.rows or any(map(rule.takes, known["column_name"].to_pylist()))

    def _result(self, rule: Rule, row: Row | None) -> Result:
        about = row if row is not None else self._facts.table
        column = None if row is None else row["column_name"]
        snapshot_id = None if about is None else about["snapshot_id"]
        try:
            found = self._values.found(rule, row)
            limits, told = self._values.limits(rule, row)
            measures.require_comparable(row, found.value, [limit.value for limit in limits])
        except measures.NeverKnown as why:
            return self._failed(rule, column, snapshot_id, str(why))
        except measures.UnknownValue as why:
            return self._unknown(rule, column, snapshot_id, str(why))
        all_decide = all(one.decides for one in (found, *limits))
        verdict = rule.condition.verdict(found, limits) if all_decide else None
        notes = [found.between, found.note, told, found.origin]
        if not all_decide:
            notes.append("a distribution of another snapshot decides only where inherited values are allowed")
        elif verdict is None and not found.is_certain and rule.measure in SIDES:
            notes.append("reading the column tells")
        return Result(
            self._table,
            column,
            rule.text,
            rule.measure,
            rule.level,
            State.of(rule.level, passed=verdict),
            _shown(found.value),
            snapshot_id if found.at is None else found.at,
            "; ".join(filter(None, notes)),
            any(one.at is not None for one in (found, *limits)),
        )

    def _unknown(self, rule: Rule, column: str | None, snapshot_id: int | None, why: str) -> Result:
        """The result of a rule whose value is unknown until a capture tells it."""
        state = State.of(rule.level, passed=None)
        return Result(self._table, column, rule.text, rule.measure, rule.level, state, None, snapshot_id, why, True)

    def _failed(self, rule: Rule, column: str | None, snapshot_id: int | None, why: str) -> Result:
        """The result of a rule that no capture lets pass."""
        state = State.of(rule.level, passed=False)
        return Result(self._table, column, rule.text, rule.measure, rule.level, state, None, snapshot_id, why)
