"""Rules, alone or in a TOML file with patterns and levels.

`[COLUMN:] [change of] MEASURE CONDITION`, with the conditions of `limits.py`; `[N% of] COLUMN in TABLE.COLUMN`, for a
column whose values are among those of another; `[COLUMN:] unique`, for `unique = 1`; `(SELECT …) CONDITION`, about the
one value of a SELECT; `[COLUMN:] learned`, for what the history lets expect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, field

from flight_server.core.config import read_toml
from flight_server.core.reloading import Reloaded
from flight_server.insight import limits
from flight_server.insight.limits import Condition, Limit
from store.model.columns import OF_OTHERS
from store.model.errors import InvalidArgument, nearest
from store.model.names import matcher, quote
from store.model.statistics import names
from store.model.structs import Struct, read

OF_TABLE: Final = ("row_count", "size_bytes", "file_count", "age_seconds", "schema_changes")
_STATISTICS: Final = names(lambda each: each.is_shown and not each.is_precision and each.name not in OF_TABLE)
_FRACTIONS: Final = ("null_fraction", "distinct_fraction")
OF_COLUMN: Final = (*_STATISTICS, *_FRACTIONS, "most_common", "drift", "unique")
CONTAINMENT, SELECT = OF_OTHERS  # the measures of COLUMN in TABLE.COLUMN, and of a SELECT
LEARNED: Final = "learned"  # a rule that asks for what was learned of the table and its columns
AGAINST: Final = frozenset({"drift", "schema_changes"})  # measures that compare two snapshots
_CONDITION: Final = r"\s*(?P<condition>(?:[<>=!]|\b(?:not\s+)?(?:in|matches)\b|\bbetween\b|\bwithin\b).*)"
_RULE: Final = re.compile(
    rf"\s*(?:(?P<column>.*\S)\s*:\s*)?(?P<change>change\s+of\s+)?(?P<measure>\w+){_CONDITION}", re.DOTALL
)
_LEARNED: Final = re.compile(r"\s*(?:(?P<column>.*\S)\s*:\s*)?learned\s*", re.DOTALL)
_UNIQUE: Final = re.compile(r"\s*(?:(?P<column>.*\S)\s*:\s*)?unique\s*", re.DOTALL)
_SELECT: Final = re.compile(rf"\s*\((?P<sql>\s*(?:SELECT|WITH)\b.*)\){_CONDITION}", re.DOTALL | re.IGNORECASE)
_NAME: Final = r'(?:"[^"]*"|[^\s:()"])+'
_REFERENCE: Final = re.compile(
    rf"\s*(?:(?P<share>\d+\.?\d*|\.\d+)\s*%\s+of\s+)?(?P<column>{_NAME})\s+in\s+(?P<of>{_NAME})\s*"
)
# Measures that compare snapshots already, that no snapshot has, or that are no numbers.
_NOT_RELATIVE: Final = AGAINST | {"age_seconds", "most_common", "unique"}
_ALIASES: Final = {"data_file_count": "file_count", "total_size_bytes": "size_bytes"}  # columns of stats.tables
PREVIOUS: Final = "previous"  # the captured snapshot before the current one
FIRST: Final = "first"  # the oldest captured one
ADDED: Final = "added"
OF_ADDED: Final = ("row_count", "size_bytes", "file_count", *_STATISTICS, *_FRACTIONS)
"""Measures of the rows that were added, which the records of their files tell."""


class Level(StrEnum):
    """Levels of a rule: a miss fails the check, or only warns."""

    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True)
class Rule:
    """One expectation.

    Attributes:
        measure: One of `OF_TABLE` or `OF_COLUMN`, `CONTAINMENT`, `SELECT` or `LEARNED`.
        columns: Patterns of column names, or names in double quotes; empty for all columns and for measures of the
            table.
        tables: Patterns of full table names.
        against: The snapshot that a measure of `AGAINST` compares with: an id or "previous"; None leaves it to the
            caller of the check.
        of_change: True if the condition is about the change of the measure since that snapshot.
        of: The referenced `TABLE.COLUMN` of `CONTAINMENT`, the statement of `SELECT`.
        of_added: True if the rule is about the rows that came with files added since `against`, the captured snapshot
            before where that is None and the caller names none.
    """

    text: str
    measure: str
    condition: Condition
    columns: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("*",)
    level: Level = Level.FAIL
    against: int | str | None = None
    of_change: bool = False
    of: str = ""
    of_added: bool = False

    @property
    def is_of_table(self) -> bool:
        """True for measures of a whole table, which name no column."""
        return self.measure in OF_TABLE or self.measure == SELECT

    @property
    def is_timely(self) -> bool:
        """True if time alone may turn the result."""
        return self.measure in ("age_seconds", LEARNED)

    @property
    def compares(self) -> bool:
        """True if the rule compares two snapshots."""
        return self.measure in AGAINST or self.of_change

    @property
    def needs_snapshot(self) -> bool:
        """True if the rule compares with a snapshot but names none."""
        return self.compares and self.against is None

    @property
    def needs_distinct(self) -> bool:
        """True if the rule asks for distinct values, by its measure or a limit."""
        named = {self.measure, *(limit.other[0] for limit in self.condition.limits if limit.other)}
        return not named.isdisjoint(("ndv", "distinct_fraction"))

    def judges(self, column: str) -> bool:
        """True if the rule needs statistics of a column; of a learned one these are the columns it names, if any."""
        others = {limit.other[1] for limit in self.condition.limits if limit.other}
        if column in others:
            return True
        is_of_any = not self.columns and self.measure == LEARNED
        return not self.is_of_table and not is_of_any and self.takes(column)

    def about_added(self, text: str) -> Rule:
        """This rule about the rows that were added.

        Args:
            text: The text by which its results are known.

        Raises:
            InvalidArgument: It is about what the records of the added files do not tell.
        """
        if self.of_change or self.measure not in OF_ADDED:
            raise InvalidArgument(
                f"the rule {self.text!r} cannot be about added rows",
                hint=f"of them there are {', '.join(OF_ADDED)}",
            )
        if any(limit.window for limit in self.condition.limits):
            raise InvalidArgument(
                f"the rule {self.text!r} compares with earlier snapshots, and added rows are of one load",
                hint='give a constant limit, or use the rule "learned", which compares loads',
            )
        return replace(self, text=text, of_added=True)

    def is_about(self, table: str) -> bool:
        """True if the rule applies to a table, by its full name."""
        return bool(matcher(self.tables).fullmatch(table))

    def takes(self, column: str) -> bool:
        """True if the rule applies to a column of this name; one in double quotes is no pattern."""
        return not self.columns or quote(column) in self.columns or bool(matcher(self.columns).fullmatch(column))


def parse(
    text: str,
    level: Level = Level.FAIL,
    tables: Sequence[str] = ("*",),
    columns: Sequence[str] = (),
    of_change: bool = False,
) -> Rule:
    """Parses a rule.

    Args:
        text: One of the forms above.
        tables: Patterns of the tables it applies to.
        columns: Patterns of columns, used if the text names none.
        of_change: Reads MEASURE as `change of MEASURE`, where the measure has a change.

    Raises:
        InvalidArgument: The text is not a rule, or its measure does not exist.
    """
    make: _Make = partial(Rule, text.strip(), level=level, tables=tuple(tables))
    given = tuple(columns)
    special = _reference(text, make) or _select(text, make) or _without_condition(text, make, given)
    return special or _about_measure(text, make, given, of_change)


_Make = Callable[..., Rule]  # of a measure and a condition, with the text, the level and the tables of the rule


def _reference(text: str, make: _Make) -> Rule | None:
    """The rule `COLUMN in TABLE.COLUMN`; None for another text."""
    match = _REFERENCE.fullmatch(text)
    if match is None or "." not in match["of"]:
        return None
    least = Condition(">=", (Limit(Fraction(match["share"] or 100) / 100),))
    return make(CONTAINMENT, least, columns=(match["column"],), of=match["of"])


def _select(text: str, make: _Make) -> Rule | None:
    """The rule `(SELECT …) CONDITION`; None for another text."""
    match = _SELECT.fullmatch(text)
    return match and make(SELECT, _condition(text, match["condition"], SELECT), of=match["sql"])


def _without_condition(text: str, make: _Make, columns: tuple[str, ...]) -> Rule | None:
    """The rules `learned` and `unique`; None for another text."""
    forms = (
        (_LEARNED, LEARNED, Condition("", ())),
        (_UNIQUE, "unique", Condition("=", (Limit(Fraction(1)),))),
    )
    for form, measure, condition in forms:
        if match := form.fullmatch(text):
            return make(measure, condition, columns=_columns_of(match, columns))
    return None


def _columns_of(match: re.Match[str], columns: tuple[str, ...]) -> tuple[str, ...]:
    """The column that a text names, else those given with it."""
    return (match["column"],) if match["column"] else columns


def _about_measure(text: str, make: _Make, columns: tuple[str, ...], of_change: bool) -> Rule:
    """The rule `[COLUMN:] [change of] MEASURE CONDITION`.

    Raises:
        InvalidArgument: The text is not of this form, or its measure does not exist.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"the rule {text!r} cannot be read",
            hint="must be [COLUMN:] MEASURE CONDITION, such as 'null_fraction <= 1%' or 'id: ndv >= 80% of previous', "
            "COLUMN in TABLE.COLUMN, (SELECT …) CONDITION, or learned",
        )
    measures = [*OF_TABLE, *OF_COLUMN]
    measure = _ALIASES.get(match["measure"], match["measure"])
    if measure not in measures:
        hint = nearest(measure, measures) or f"measures are {', '.join(measures)}"
        raise InvalidArgument(f'the rule {text!r} has the unknown measure "{measure}"', hint=hint)
    if match["change"] and measure in _NOT_RELATIVE:
        raise InvalidArgument(f"the rule {text!r} is about a change, and {measure} has none")
    changes = bool(match["change"]) or (of_change and measure not in _NOT_RELATIVE)
    named = _columns_of(match, columns)
    if named and measure in OF_TABLE:
        raise InvalidArgument(f"the rule {text!r} names a column, but {measure} is of the table")
    condition = _condition(text, match["condition"], measure, changes)
    _check_limits(text, measure, condition, changes)
    return make(measure, condition, columns=named, of_change=changes)


def _check_limits(text: str, measure: str, condition: Condition, changes: bool) -> None:
    """Refuses limits that compare what has no other value to compare with."""
    must_be_constant = changes or measure in _NOT_RELATIVE
    if must_be_constant and any(limit.is_relative for limit in condition.limits):
        raise InvalidArgument(f"the rule {text!r} compares {measure} with another value; its limits must be constants")
    if measure not in OF_TABLE:
        return
    others = [limit.other for limit in condition.limits if limit.other]
    if any(other in OF_COLUMN and column is None for other, column in others):
        raise InvalidArgument(f"the rule {text!r} compares with a measure of columns", hint="say MEASURE of COLUMN")


def _condition(text: str, condition: str, measure: str, of_change: bool = False) -> Condition:
    try:
        others = [] if measure == SELECT else [m for m in (*OF_TABLE, *OF_COLUMN) if m not in _NOT_RELATIVE]
        return limits.parse(condition, measure, others, of_change)
    except ValueError as wrong:
        raise InvalidArgument(f"the rule {text!r} cannot be read: {wrong}") from None


_Pattern = Annotated[str, Meta(min_length=1)]
_Patterns = Annotated[
    _Pattern | list[_Pattern], Meta(title="must be a pattern or a list of patterns", description="texts")
]
_Snapshot = Annotated[
    int | Annotated[str, Meta(pattern=rf"^({PREVIOUS}|{FIRST}|-?\d{{1,19}})$")],
    Meta(title="must be the id of a snapshot", description=f'an id, "{PREVIOUS}" or "{FIRST}"'),
]


class _Entry(Struct):
    expect: Annotated[str, Meta(title="must be a rule", description='such as "row_count > 0"')]
    table: _Patterns = "*"
    columns: _Patterns = field(default_factory=list)
    level: Level = Level.FAIL
    against: _Snapshot | None = None
    of: Annotated[str, Meta(pattern=rf"^{ADDED}$", title=f'must be "{ADDED}"', description=f'"{ADDED}"')] | None = None

    def rule(self) -> Rule:
        """The rule."""
        tables, columns = ((given,) if isinstance(given, str) else tuple(given) for given in (self.table, self.columns))
        rule = parse(self.expect, self.level, tables or ("*",), columns)
        if self.of is not None:
            rule = rule.about_added(f"{rule.text} of {ADDED}")
        if self.against is None:
            return rule
        if not (rule.compares or rule.of_added):
            measures = " and ".join(sorted(AGAINST))
            raise InvalidArgument(
                f'"against" is for changes, added rows, {measures}, and {rule.measure} compares nothing'
            )
        against = self.against if self.against in (PREVIOUS, FIRST) else int(self.against)
        # The text includes the snapshot: two rules may differ in it only.
        return replace(rule, text=f"{rule.text} against {against}", against=against)


class _Silence(Struct):
    table: _Patterns
    until: Annotated[datetime, Meta(title="must be a time", description="such as 2026-12-01T08:00:00Z")]

    def value(self) -> tuple[tuple[str, ...], datetime]:
        """The patterns, and the end, in UTC where it names no zone."""
        tables = (self.table,) if isinstance(self.table, str) else tuple(self.table)
        return tables, self.until if self.until.tzinfo else self.until.replace(tzinfo=UTC)


class File(NamedTuple):
    """Content of a rules file; empty without one.

    Attributes:
        silences: Patterns of tables, and the time until which no alarm tells of them.
    """

    rules: Sequence[Rule] = ()
    silences: Sequence[tuple[tuple[str, ...], datetime]] = ()


def watched(path: Path | None) -> Reloaded[File]:
    """The rules of a file, which is read again when it changes; none without a file.

    Raises:
        InvalidArgument: See `load`.
    """
    return Reloaded("rules", [path], lambda: File() if path is None else load(path))


def load(path: Path) -> File:
    """Reads a TOML file of `[[rule]]` and `[[silence]]` tables.

    Raises:
        InvalidArgument: The file cannot be read, or a rule or a silence is invalid.
    """
    content = read_toml(path, "rules file")
    if strange := [key for key in content if key not in ("rule", "silence")]:
        raise InvalidArgument(f'{path}: unknown key "{strange[0]}"', hint="a rules file has [[rule]] and [[silence]]")
    entries = content.get("rule")
    if not isinstance(entries, list) or not entries:
        raise InvalidArgument(f"{path}: has no [[rule]]")
    rules = []
    for number, entry in enumerate(entries, 1):
        try:
            rules.append(read(entry, _Entry, "rule").rule())
        except InvalidArgument as wrong:
            raise InvalidArgument(f"{path}: rule {number}: {wrong}") from None
    try:
        silences = [read(entry, _Silence, "silence").value() for entry in content.get("silence", ())]
    except InvalidArgument as wrong:
        raise InvalidArgument(f"{path}: {wrong}") from None
    return File(rules, silences)
