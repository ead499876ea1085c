"""Numbers as people see them: what is shown reads back as the value."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flight_server.core.views import numbers, shapes
from flight_server.faces.present import charts, render

UNITS = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12}
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = FINITE | FINITE.map(lambda x: math.copysign(min(abs(x), 1e16), x)) | st.integers() | st.fractions()
FORMATTERS = {
    "number": numbers.number,
    "exact": lambda value: numbers.number(value, exact=True),
    "signed": lambda value: numbers.number(value, sign="+"),
    "apart": lambda value: numbers.number(value, separator=" "),
    "brief": numbers.brief,
    "an axis": charts.axis,
    "a point": lambda value: shapes.text_at(value, "DOUBLE"),
    "a cell": lambda value: render.text_of(value) if isinstance(value, float | int) else numbers.number(value),
}


def read(text: str) -> tuple[Fraction, Fraction]:
    """The value of a text, and half of its last digit."""
    found = re.fullmatch(r"([-+]?)([\d, ]+)(?:\.(\d+))?(?:e([-+]?\d+))?([kMGT]?)", text)
    assert found, text
    sign, whole, fraction, exponent, unit = found.groups()
    digits = re.sub("[, ]", "", whole) + (fraction or "")
    power = int(exponent or 0) + UNITS[unit] - len(fraction or "")
    value = Fraction(int(digits)) * Fraction(10) ** power
    return (-value if sign == "-" else value), Fraction(10) ** power / 2


@pytest.mark.parametrize("name", FORMATTERS)
@given(value=NUMBERS)
@example(70_000_000.0)
@example(9_999_999.6)
@example(999_999_999)
@example(0.0625)
@example(1e15)
@example(Fraction(1, 3))
@example(-99_996)
@example(Fraction(37037036703703702, 3))
def test_what_is_shown_reads_back_as_the_value(name, value):
    shown, half = read(FORMATTERS[name](value))
    true = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    error = abs(shown - true)
    assert error <= half * (1 + Fraction(1, 10**9))
    assert error <= abs(true) / 200  # and never an order of magnitude off


@given(st.integers(-(10**30), 10**30))
def test_whole_numbers_are_written_in_full(value):
    assert read(numbers.number(value))[0] == value
    assert read(numbers.known(value))[0] == value


@given(FINITE.filter(lambda value: value != int(value)))
def test_no_value_that_is_compared_looks_whole(value):
    shown, _ = read(numbers.number(value, exact=True))
    assert shown != int(shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234567, "0.01235"),
        (98.7654, "98.77"),
        (12_345.6, "12,346"),
        (9_999_999, "9,999,999"),
        (70_000_000, "70M"),
        (999_999_999, "1G"),
        (497_600_100_000.0, "497.6G"),
        (1.5e-7, "1.5e-7"),
        (2.5e18, "2.5e+18"),
        (math.inf, "Infinity"),
        (math.nan, "NaN"),
    ],
)
def test_brief_text(value, text):
    assert numbers.brief(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.3, "0.3"),
        (0.1 + 0.2, "0.30000000000000004"),
        (0.9999999, "0.9999999"),
        (2 / 3, "0.666667"),
        (-70, "-70"),
        (45_980.9635541015, "45,980.96"),
        (39_634.41, "39,634.4"),
    ],
)
def test_text_of_a_value_that_is_compared(value, text):
    assert numbers.number(value, exact=True) == text
