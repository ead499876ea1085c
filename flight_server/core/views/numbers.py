"""Numbers as text for people: in terminals, on pages and reports, in charts and in details of checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from store.model.units import bytes_text

_UNITS: Final = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))  # powers of ten
_EXPONENTS_FROM: Final = 15  # power of ten from which a number that is not whole has an exponent
_EXPONENTS_BELOW: Final = -4  # power of ten below which a number has an exponent
_DIGITS_OF_FLOATS: Final = 15  # significant digits that every float has
_WHOLE_FLOATS: Final = 2**53  # floats below this are exact where they are whole
LONG: Final = 1e7  # size from which a number in a cell has a unit


def number(
    value: float | Fraction,
    digits: int = 6,
    *,
    unit_from: float = math.inf,
    exact: bool = False,
    sign: str = "",
    separator: str = ",",
) -> str:
    """A number with few digits. The text reads back as the value, within half of its last digit.

    Args:
        value: The number; whole ones are written in full below `unit_from`.
        digits: Significant digits, at least; digits before the point are never left out.
        unit_from: Size from which a unit stands for the last digits before the point: `12.35M`.
        exact: Takes as many digits more as keep it from looking like a whole or shorter number, all if need be: for
            what is compared.
        sign: `+` writes the sign of a number that is not negative.
        separator: Between groups of three digits.
    """
    if value != value:
        return "NaN"
    if value in (math.inf, -math.inf):
        return "Infinity" if value == math.inf else "-Infinity"
    is_whole = value == int(value)
    if isinstance(value, float):
        is_whole = is_whole and abs(value) < _WHOLE_FLOATS
    if is_whole and -unit_from < value < unit_from:
        return f"{int(value):{sign},}".replace(",", separator)
    whole = _decimal(value)
    rounded = Decimal(f"{whole:.{digits - 1}e}").normalize()
    power = rounded.adjusted()
    unit = next((one for one in _UNITS if one[0] <= power), None)
    if unit is not None and abs(rounded) >= unit_from and power < _EXPONENTS_FROM:
        return f"{rounded.scaleb(-unit[0]):{sign}f}{unit[1]}"
    if exact and (len(rounded.as_tuple().digits) < digits or rounded == int(rounded)):
        if digits < _DIGITS_OF_FLOATS:
            return number(value, digits + 1, exact=True, sign=sign, separator=separator)
        if not isinstance(value, float):
            return number(value, _DIGITS_OF_FLOATS, sign=sign, separator=separator)
        return f"{value:{sign},}".replace(",", separator)
    if not _EXPONENTS_BELOW <= power < _EXPONENTS_FROM:
        return f"{rounded:{sign}e}"
    decimals = max(digits - 1 - power, 0)
    text = f"{whole:{sign},.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text).replace(",", separator)


def _decimal(value: float | Fraction) -> Decimal:
    """A finite number as a decimal; a float by the shortest digits that read back as it."""
    if isinstance(value, Fraction):
        return Decimal(value.numerator) / Decimal(value.denominator)
    return Decimal(repr(value))


def brief(value: float, unit_from: float = LONG) -> str:
    """A number with some four digits, as people read it: 0.01234, 98.77, 12,346, 497.6G."""
    return number(value, 4, unit_from=unit_from)


def known(value: float | Fraction | None) -> str:
    """A number to six digits; empty if unknown."""
    return "" if value is None else number(value)


def count(value: float | None) -> str:
    """A number of things, or an estimate of one, without a fraction; empty if unknown."""
    return "" if value is None else number(round(value))


def counted(value: float | None, noun: str) -> str:
    """`1 file`, `3 files`, `? files`."""
    return f"{count(value) or '?'} {noun}{'' if value == 1 else 's'}"


def percent(part: int | None, rows: int | None) -> str:
    """A part of the rows in percent; `0` and `100` only if exact, empty if unknown."""
    if part is None or rows is None:
        return ""
    if part in (0, rows) or rows == 0:
        return "100" if part and rows else "0"
    share = 100 * part / rows
    return "<0.1" if share < 0.05 else ">99.9" if share > 99.95 else f"{share:.1f}"


def size(value: float | None) -> str:
    """Bytes in a unit that leaves one to four digits; empty if unknown."""
    return "" if value is None else bytes_text(value)


def nearest_float(value: float | Fraction) -> float:
    """The nearest float; an infinity if the value is beyond all finite ones."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def interval(known: Mapping[str, float | None] | None) -> str:
    """An interval as text: a number alone if it is certain, else with its limits."""
    if known is None:
        return "unknown"
    low, estimate, high = (known[name] for name in ("low", "estimate", "high"))
    if low == high and high is not None:
        return count(round(high))
    shown = ["unknown" if each is None else count(round(each)) for each in (estimate, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"
