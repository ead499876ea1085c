"""What a rule demands of a value: a comparison, a range, a list, or a band around earlier values.

    < 5%   >= 80% of previous   <= 1h   = '2026-03-05'   in (1, 2)   between 0 and 1   within 3 sigma of last 14
    matches '[A-Z]{2}[0-9]+'

A limit is a constant, or a share of another value: of the same measure in earlier snapshots (`previous`, the mean of
`last N`), or of another measure of the table (`row_count`, `ndv of id`).
"""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Protocol

from flight_server.core.views.numbers import nearest_float

OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_OPPOSITES: Final = {
    "<=": ">",
    ">=": "<",
    "==": "!=",
    "!=": "=",
    "<": ">=",
    ">": "<=",
    "=": "!=",
    "in": "not in",
    "not in": "in",
}
MOST_SNAPSHOTS: Final = 1000  # of `last N`
LEAST_FOR_SIGMA: Final = 3  # earlier values: fewer have no deviation worth the name

_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_BYTES: Final = (
    {"B": 1}
    | {f"{p}B": 1000**n for n, p in enumerate("kMGT", 1)}
    | {f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)}
)
UNITS: Final[dict[str, dict[str, int]]] = {
    "age_seconds": _SECONDS,
    "size_bytes": _BYTES,
    "avg_width_bytes": _BYTES,
}
SHARES: Final = frozenset({"null_fraction", "distinct_fraction", "drift", "containment"})  # with limits such as 5%
TEXTUAL: Final = frozenset({"min", "max", "most_common", "select"})  # measures that compare with texts, dates and times

_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
_LIMIT: Final = re.compile(
    rf"(?P<number>{_NUMBER})\s*(?P<unit>%|[A-Za-z]+)?"
    rf"|(?:(?P<share>{_NUMBER})\s*%\s+of\s+)?(?P<of>previous|last\s+\d+|\w+\s+of\s+\S.*|[a-z_]+)"
    r"|'(?P<text>(?:[^']|'')*)'|(?P<moment>\d{4}-\d\d-\d\d(?:[T ][\d:.]+Z?)?)",
    re.DOTALL,
)
_LISTED: Final = re.compile(r"\s*('(?:[^']|'')*'|[^,']+?)\s*(?:,|$)")
_BAND: Final = re.compile(rf"(?P<sigmas>{_NUMBER})\s+sigma\s+of\s+last\s+(?P<window>\d+)")
_CONDITION: Final = re.compile(
    r"(?P<op><=|>=|==|!=|<|>|=)\s*(?P<limit>.+)|(?P<not>not\s+)?in\s*\((?P<list>.+)\)"
    r"|between\s+(?P<low>.+?)\s+and\s+(?P<high>.+)|within\s+(?P<band>.+)"
    r"|(?P<unlike>not\s+)?matches\s+'(?P<pattern>(?:[^']|'')*)'",
    re.DOTALL,
)


@dataclass(frozen=True)
class Limit:
    """A constant, or a share of another value.

    Attributes:
        value: The constant, a number or the text of a value; of a share the factor, of a band the number of standard
            deviations.
        window: Number of earlier snapshots whose mean it is a share of; 0 for none.
        other: Measure and column (None for the table) it is a share of; None for none.
        sigma: True for the mean of the window plus `value` standard deviations.
        percent: True if `value` is a share of what a change started from.
    """

    value: Fraction | str
    window: int = 0
    other: tuple[str, str | None] | None = None
    sigma: bool = False
    percent: bool = False

    @property
    def is_relative(self) -> bool:
        """True if the limit depends on another value."""
        return bool(self.window or self.other)

    @property
    def least_values(self) -> int:
        """The number of earlier values without which the limit does not exist."""
        return LEAST_FOR_SIGMA if self.sigma else 1 if self.window else 0

    def of_earlier(self, values: Sequence[float | Fraction]) -> float | Fraction:
        """The limit by the values of the window, of which there are `least_values` or more.

        Raises:
            OverflowError: A value, or the deviation of all, is infinite.
            ValueError: A value is NaN.
        """
        assert not isinstance(self.value, str)
        numbers = [Fraction(value) for value in values]
        mean = sum(numbers, Fraction(0)) / len(numbers)
        return float(mean) + float(self.value) * statistics.stdev(numbers) if self.sigma else mean * self.value


class HasEnds(Protocol):
    """A value of a measure or of a limit, as surely as it is known."""

    @property
    def value(self) -> Any:
        """The value, or its estimate."""

    @property
    def is_certain(self) -> bool:
        """True if it is exactly this value."""

    @property
    def ends(self) -> tuple[Any, Any]:
        """The least and the greatest value that it may be; None where there is no end."""


@dataclass(frozen=True)
class Condition:
    """A condition on the value of a measure.

    Attributes:
        op: An operator, "in", "not in", "between" (both ends included), "matches" or "not matches" (a whole text).
        limits: Its limits: one, any number, or two.
    """

    op: str
    limits: tuple[Limit, ...]

    def holds(self, value: Any, limits: Sequence[Any]) -> bool:
        """True if a value meets the condition with the values of `limits`; floats compare with the nearest floats."""
        if self.op.endswith("matches"):
            return bool(re.fullmatch(limits[0], value)) == (self.op == "matches")
        if isinstance(value, float) and math.isfinite(value):
            limits = [nearest_float(limit) for limit in limits]
        if self.op == "between":
            return bool(limits[0] <= value <= limits[1])
        if self.op in OPERATORS:
            return OPERATORS[self.op](value, limits[0])
        return (value in limits) == (self.op == "in")

    def verdict(self, value: HasEnds, limits: Sequence[HasEnds]) -> bool | None:
        """True if each possible value meets the condition with all possible limits, False if none does, else None."""
        if value.is_certain and all(limit.is_certain for limit in limits):
            return self.holds(value.value, [limit.value for limit in limits])
        if self.holds_between(*value.ends, limits):
            return True
        return False if self.fails_between(*value.ends, limits) else None

    def fails_between(self, low: Any, high: Any, limits: Sequence[HasEnds]) -> bool:
        """True if no value from `low` to `high` meets the condition; arguments as of `holds_between`."""
        if self.op == "between":
            return _surely("<", high, limits[0].ends[0]) or _surely(">", low, limits[1].ends[1])
        return self.op in _OPPOSITES and Condition(_OPPOSITES[self.op], ()).holds_between(low, high, limits)

    def holds_between(self, low: Any, high: Any, limits: Sequence[HasEnds]) -> bool:
        """True if each value from `low` to `high` meets the condition, whatever its limits are within their ends.

        Args:
            low, high: The least and the greatest value; None where there is no end.
        """
        ends = [limit.ends for limit in limits]
        least, most = ends[0]
        if self.op in ("<", "<="):
            return _surely(self.op, high, least)
        if self.op in (">", ">="):
            return _surely(self.op, low, most)
        if self.op == "between":
            return _surely(">=", low, most) and _surely("<=", high, ends[1][0])
        if self.op in ("!=", "not in"):
            return all(_surely(">", low, most) or _surely("<", high, least) for least, most in ends)
        return low == high and any(_surely("=", low, least) and least == most for least, most in ends)


def _surely(op: str, value: Any, limit: Any) -> bool:
    """True if an end of a value and one of a limit compare so; False if there is no such end."""
    return value is not None and limit is not None and Condition(op, ()).holds(value, [limit])


def _band(text: str) -> Condition:
    """The condition `within`, by what follows it."""
    band = _BAND.fullmatch(text.strip())
    if band is None:
        raise ValueError(f"{text!r} must be `N sigma of last N`, such as `3 sigma of last 14`")
    window, sigmas = _window(band["window"]), Fraction(band["sigmas"])
    if sigmas <= 0 or window < LEAST_FOR_SIGMA:
        raise ValueError(f"must be more than 0 sigma of the last {LEAST_FOR_SIGMA} or more")
    return Condition("between", (Limit(-sigmas, window, sigma=True), Limit(sigmas, window, sigma=True)))


def parse(text: str, measure: str, measures: Sequence[str], of_change: bool = False) -> Condition:
    """Parses the part of a rule after its measure.

    Args:
        measure: The measure that it is about, which decides the units of its limits.
        measures: The measures whose values a limit may be a share of.
        of_change: True if it is about the change of the measure, so that 5% is a share of the value before.

    Raises:
        ValueError: The text is not a condition; the message says which part is wrong, and what would be right.
    """
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            "expected an operator and a limit, `in (…)`, `between … and …`, `within N sigma of last N` or `matches '…'`"
        )
    if match["pattern"] is not None:
        return _pattern(match["pattern"].replace("''", "'"), measure, bool(match["unlike"]))
    if match["band"]:
        return _band(match["band"])
    if match["low"]:
        return _condition("between", [match["low"], match["high"]], measure, measures, of_change)
    if match["list"]:
        found = _LISTED.findall(match["list"])
        if "".join(_LISTED.split(match["list"])[::2]).strip():
            raise ValueError(f"({match['list']}) must be values separated by commas, texts in single quotes")
        return _condition("not in" if match["not"] else "in", found, measure, measures, of_change)
    return _condition(match["op"], [match["limit"]], measure, measures, of_change)


def _condition(op: str, texts: Sequence[str], measure: str, measures: Sequence[str], of_change: bool) -> Condition:
    limits = tuple(_limit(text, measure, measures, of_change) for text in texts)
    if len({limit.percent for limit in limits}) > 1:
        raise ValueError("its limits must be all in % or none")
    return Condition(op, limits)


def _pattern(text: str, measure: str, unlike: bool) -> Condition:
    if measure not in ("most_common", "select"):
        raise ValueError("only most_common and a SELECT match patterns")
    try:
        re.compile(text)
    except re.error as wrong:
        raise ValueError(f"{text!r} is not a regular expression: {wrong}") from None
    return Condition("not matches" if unlike else "matches", (Limit(text),))


def _limit(text: str, measure: str, measures: Sequence[str], of_change: bool) -> Limit:
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"the limit {text.strip()!r} must be a number, a text in single quotes, a date or a time, "
            "or `N% of previous`, `N% of last N`, `N% of MEASURE of COLUMN`"
        )
    if match["number"] is not None:
        if of_change and match["unit"] == "%":
            return Limit(Fraction(match["number"]) / 100, percent=True)
        return Limit(Fraction(match["number"]) * _unit(match["unit"], measure))
    if match["of"] is None:
        limit = match["moment"] if match["text"] is None else match["text"].replace("''", "'")
        if measure not in TEXTUAL:
            raise ValueError(
                f"the limit {text.strip()} is no number; only min and max, most_common and a SELECT "
                "compare with texts, dates, times"
            )
        return Limit(limit)
    share = Fraction(match["share"]) / 100 if match["share"] else Fraction(1)
    if match["of"] == "previous":
        return Limit(share, 1)
    if match["of"].startswith("last") and match["of"] != "last":
        return Limit(share, _window(match["of"].split()[1]))
    name, _, column = (part.strip() for part in match["of"].partition(" of "))
    if name not in measures:
        raise ValueError(f"the limit {text.strip()!r} names the unknown measure {name!r}; texts need single quotes")
    return Limit(share, other=(name, column or None))


def _unit(unit: str | None, measure: str) -> Fraction:
    if unit is None:
        return Fraction(1)
    if unit == "%" and measure in SHARES:
        return Fraction(1, 100)
    units = UNITS.get(measure, {})
    if unit not in units:
        known = ", ".join(["%"] if measure in SHARES else units)
        hint = f"units are {known}" if known else "it takes a number without a unit"
        raise ValueError(f"{measure} has no limit in {unit!r}; {hint}")
    return Fraction(units[unit])


def _window(text: str) -> int:
    if not 1 <= (number := int(text[:9])) <= MOST_SNAPSHOTS or len(text) > 9:
        raise ValueError(f"last {text}: must be 1 to {MOST_SNAPSHOTS} snapshots")
    return number
