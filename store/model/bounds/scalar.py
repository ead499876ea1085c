"""Single bounds: text to canonical text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from store.model.bounds.java_floats import java_double, java_float, read_float
from store.model.logical_types import MAX_DECIMAL, Kind, LogicalType

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
DAY_US: Final = 86_400_000_000
# Years 0000 to 9999, in days since 1970.
MIN_DAY: Final = -719_528
MAX_DAY: Final = 2_932_896


@dataclass(frozen=True)
class ZonePolicy:
    """Treatment of values with a zone for TIMESTAMP: refusal, or conversion to wall-clock time in the session zone."""

    convert: bool = False
    session_timezone: str = "UTC"


class BadBound(ValueError):
    """A text in an array that is not a value of the type.

    Attributes:
        index: The first row with this text.
        reason: Why it was refused.
    """

    def __init__(self, index: int, text: str, reason: str):
        super().__init__(f"row {index}: {reason}")
        self.index = index
        self.text = text
        self.reason = reason


REFUSE: Final = ZonePolicy()


# Text to canonical text.

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_NAMED = re.compile(r"[+-]?(?:NaN|Infinity)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"(?P<clock>(?:[01][0-9]|2[0-3]):[0-5][0-9])(?::(?P<second>[0-5][0-9])(?:\.(?P<fraction>[0-9]{1,9}))?)?"
_TIME = re.compile(_CLOCK)
_TIMESTAMP = re.compile(
    rf"(?P<date>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})T{_CLOCK}"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<hours>[01][0-9])(?::(?P<minutes>[0-5][0-9])(?::(?P<seconds>[0-5][0-9]))?)?)?"
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DURATION = re.compile(
    r"[+-]?P(?=[-+0-9T])(?:[+-]?[0-9]+Y)?(?:[+-]?[0-9]+M)?(?:[+-]?[0-9]+W)?(?:[+-]?[0-9]+D)?"
    r"(?:T(?=[-+0-9])(?:[+-]?[0-9]+H)?(?:[+-]?[0-9]+M)?(?:[+-]?[0-9]+(?:\.[0-9]{0,9})?S)?)?"
)
_BLANKS: Final = " \t\r\n"
_MAX_NUMBER_LENGTH: Final = 4096  # more than the exact digits of any double; bounds the work on hostile input


def canonical(text: str, lt: LogicalType, policy: ZonePolicy = REFUSE) -> str:
    """The canonical text of a value.

    Args:
        text: Any accepted text of the value.
        policy: Treatment of a text with a zone for TIMESTAMP.

    Raises:
        ValueError: The text is not a value of the type; the message is a short reason.
    """
    match lt.kind:
        case Kind.TIME:
            return _time(text, lt)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _timestamp(text, lt, policy)
    plain = _PLAIN.get(lt.kind)
    if plain is None:
        raise ValueError(f"{lt.kind} has no order and so no bounds")
    return plain(text)


def _boolean(text: str) -> str:
    match text.lower():
        case "true" | "t":
            return "true"
        case "false" | "f":
            return "false"
    raise ValueError("is neither true nor false")


def _int(text: str) -> str:
    text = text.strip(_BLANKS)
    if not _INTEGER.fullmatch(text):
        raise ValueError("is not an integer in base 10")
    digits = text.lstrip("+-0")
    if len(digits) > 19:
        raise ValueError("does not fit 64 bits")
    value = int(text)
    if not MIN_INT <= value <= MAX_INT:
        raise ValueError("does not fit 64 bits")
    return str(value)


def _double(text: str) -> str:
    return java_double(float(_numeral(text)))


def _float(text: str) -> str:
    return java_float(read_float(_numeral(text)))


def _numeral(text: str) -> str:
    text = text.strip(_BLANKS)
    if len(text) > _MAX_NUMBER_LENGTH or not (_NUMBER.fullmatch(text) or _NAMED.fullmatch(text)):
        raise ValueError("is not a number; expected digits, NaN, Infinity or -Infinity")
    return text


def _decimal(text: str) -> str:
    text = text.strip(_BLANKS)
    if len(text) > _MAX_NUMBER_LENGTH or not _NUMBER.fullmatch(text):
        raise ValueError("is not a decimal number")
    value = Decimal(text)
    if not value:
        return "0"
    # Checked before formatting: 1E+999999999 has twelve characters, but a gigabyte without the exponent.
    if not -MAX_DECIMAL <= value.adjusted() < MAX_DECIMAL:
        raise ValueError(f"has more than {MAX_DECIMAL} digits")
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if len(text.lstrip("-0").replace(".", "")) > MAX_DECIMAL:
        raise ValueError(f"has more than {MAX_DECIMAL} digits")
    return text


def _string(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("is not valid Unicode") from None
    return text


def _uuid(text: str) -> str:
    text = text.lower()
    if not _UUID.fullmatch(text):
        raise ValueError("is not a UUID of the form 8-4-4-4-12")
    return text


def _binary(text: str) -> str:
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, ValueError):
        raise ValueError("is not padded base64") from None


def _date(text: str) -> str:
    if _INTEGER.fullmatch(text) and len(text) < 10:
        if not MIN_DAY <= int(text) <= MAX_DAY:
            raise ValueError("is outside the years 0000 to 9999")
        return str(np.datetime64(int(text), "D"))
    if not _DATE.fullmatch(text):
        raise ValueError("is not a date of the form YYYY-MM-DD")
    return str(_day(text))


def _day(text: str) -> np.datetime64:
    # NumPy, because Python's dates begin with year 1.
    try:
        return np.datetime64(text, "D")
    except ValueError:
        raise ValueError(f"is not a day of the calendar: {text}") from None


def _time(text: str, lt: LogicalType) -> str:
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError("is not a time of the form HH:MM:SS.ffffff")
    return f"{match['clock']}:{match['second'] or '00'}{_fraction(match['fraction'] or '', lt)}"


def _timestamp(text: str, lt: LogicalType, policy: ZonePolicy) -> str:
    zoned = lt.kind is Kind.TIMESTAMPTZ
    match = _TIMESTAMP.fullmatch(text)
    if not match:
        raise ValueError(f"is not a timestamp of the form YYYY-MM-DDTHH:MM:SS.ffffff{'Z' if zoned else ''}")
    day = _day(match["date"])
    if zoned and not match["zone"]:
        raise ValueError("has no zone")
    if not zoned and match["zone"] and not policy.convert:
        raise ValueError("has a zone, but TIMESTAMP has none")
    seconds: int = np.datetime64(f"{day}T{match['clock']}:{match['second'] or '00'}", "s").astype(np.int64).item()
    if match["sign"]:
        shift = int(match["hours"]) * 3600 + int(match["minutes"] or 0) * 60 + int(match["seconds"] or 0)
        seconds += -shift if match["sign"] == "+" else shift
    if not zoned and match["zone"]:
        seconds = _wall_clock(seconds, policy.session_timezone)
    if not MIN_DAY <= seconds // 86_400 <= MAX_DAY:
        raise ValueError("is outside the years 0000 to 9999")
    return f"{np.datetime64(seconds, 's')}{_fraction(match['fraction'] or '', lt)}"


def _wall_clock(seconds: int, timezone: str) -> int:
    """Wall-clock time of an instant in a zone; both in seconds since 1970."""
    try:
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(ZoneInfo(timezone))
        offset = local.utcoffset() or timedelta()
    except (LookupError, OSError, OverflowError, ValueError):
        raise ValueError(f"has no wall clock in the session zone {timezone!r}") from None
    return seconds + int(offset.total_seconds())


def _fraction(digits: str, lt: LogicalType) -> str:
    """The text after the seconds: the fraction truncated to microseconds, and `Z` for TIMESTAMPTZ."""
    suffix = "Z" if lt.kind is Kind.TIMESTAMPTZ else ""
    if lt.precision is not None:
        return (f".{digits[:6].ljust(6, '0')[: lt.precision]}" if lt.precision else "") + suffix
    kept = digits[:6].rstrip("0")
    if suffix:
        kept = kept.ljust(-(-len(kept) // 3) * 3, "0")
    return (f".{kept}" if kept else "") + suffix


def _interval(text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise ValueError("is not an ISO-8601 duration")
    return text


_PLAIN: Final[dict[Kind, Callable[[str], str]]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT: _int,
    Kind.FLOAT: _float,
    Kind.DOUBLE: _double,
    Kind.DECIMAL: _decimal,
    Kind.STRING: _string,
    Kind.UUID: _uuid,
    Kind.BINARY: _binary,
    Kind.DATE: _date,
    Kind.INTERVAL: _interval,
}
