"""Canonical min and max text (SEMANTICS.md §4): to it, from it, and the order of what it means.

Each operation has two forms of one meaning: a scalar one, which is the reference, and one over Arrow arrays, which
takes whole columns through Arrow kernels and NumPy and hands only what is rare to the scalar form, once per distinct
value. A value that the logical type cannot hold (an unsigned integer above int64, a date after year 9999) has no
bound: the scalar form raises ValueError, the array form leaves null, which reads as unknown.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.logical_types import MAX_DECIMAL, TEMPORAL, Kind, LogicalType

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
_EPOCH: Final = date(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
# Years 0000 to 9999: what four digits can say.
_MIN_DAY: Final = -719_528
_MAX_DAY: Final = 2_932_896


@dataclass(frozen=True)
class ZonePolicy:
    """What to do with a zoned value for a TIMESTAMP: refuse it, or take its wall clock in the session's zone."""

    convert: bool = False
    session_timezone: str = "UTC"


class BadBound(ValueError):
    """A text in an array that is no value of the type.

    Attributes:
        index: The first row that holds it.
        text: The text.
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
_MAX_NUMBER_LENGTH: Final = 4096  # longer than any double's exact digits; bounds the work on hostile input


def canonical(text: str, lt: LogicalType, policy: ZonePolicy = REFUSE) -> str:
    """The canonical text of the value that `text` spells.

    Raises:
        ValueError: It spells no value of the type; the message is a short reason.
    """
    match lt.kind:
        case Kind.TIME:
            return _time(text, lt)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _timestamp(text, lt, policy)
    plain = _PLAIN.get(lt.kind)
    if plain is None:
        raise _unordered(lt)
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
        raise ValueError("is no integer in base 10")
    digits = text.lstrip("+-0")
    if len(digits) > 19:
        raise ValueError("does not fit 64 bits")
    return _from_int(int(text))


def _from_int(value: int) -> str:
    if not MIN_INT <= value <= MAX_INT:
        raise ValueError("does not fit 64 bits")
    return str(value)


def _double(text: str) -> str:
    return java_double(float(_numeral(text)))


def _float(text: str) -> str:
    return java_float(_read_float(_numeral(text)))


def _numeral(text: str) -> str:
    text = text.strip(_BLANKS)
    if len(text) > _MAX_NUMBER_LENGTH or not (_NUMBER.fullmatch(text) or _NAMED.fullmatch(text)):
        raise ValueError("is no number; expected digits, NaN, Infinity or -Infinity")
    return text


def _read_float(text: str) -> float:
    # Not float() and then rounded: two roundings may end one float away from the nearest.
    value: float = pa.scalar(text.lstrip("+")).cast(pa.float32()).as_py()
    return value


def _decimal(text: str) -> str:
    text = text.strip(_BLANKS)
    if len(text) > _MAX_NUMBER_LENGTH or not _NUMBER.fullmatch(text):
        raise ValueError("is no decimal number")
    return _from_decimal(Decimal(text))


def _from_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError("is no finite number")
    if not value:
        return "0"
    # Before it is written out: 1E+999999999 is eleven characters now and a gigabyte then.
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
            raise ValueError("is no valid Unicode") from None
    return text


def _uuid(text: str) -> str:
    text = text.lower()
    if not _UUID.fullmatch(text):
        raise ValueError("is no UUID of the form 8-4-4-4-12")
    return text


def _binary(text: str) -> str:
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, ValueError):
        raise ValueError("is no padded base64") from None


def _date(text: str) -> str:
    if _INTEGER.fullmatch(text) and len(text) < 10:
        return _from_day(int(text))
    if not _DATE.fullmatch(text):
        raise ValueError("is no date of the form YYYY-MM-DD")
    return str(_day(text))


def _day(text: str) -> np.datetime64:
    # NumPy, as Python's own dates begin with year 1.
    try:
        return np.datetime64(text, "D")
    except ValueError:
        raise ValueError(f"is no day of the calendar: {text}") from None


def _from_day(day: int) -> str:
    if not _MIN_DAY <= day <= _MAX_DAY:
        raise ValueError("is outside the years 0000 to 9999")
    return str(np.datetime64(day, "D"))


def _time(text: str, lt: LogicalType) -> str:
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError("is no time of the form HH:MM:SS.ffffff")
    return f"{found['clock']}:{found['second'] or '00'}{_fraction(found['fraction'] or '', lt)}"


def _timestamp(text: str, lt: LogicalType, policy: ZonePolicy) -> str:
    zoned = lt.kind is Kind.TIMESTAMPTZ
    found = _TIMESTAMP.fullmatch(text)
    if not found:
        raise ValueError(f"is no timestamp of the form YYYY-MM-DDTHH:MM:SS.ffffff{'Z' if zoned else ''}")
    day = _day(found["date"])
    if zoned and not found["zone"]:
        raise ValueError("has no zone")
    if not zoned and found["zone"] and not policy.convert:
        raise ValueError("has a zone, which TIMESTAMP has not")
    seconds: int = np.datetime64(f"{day}T{found['clock']}:{found['second'] or '00'}", "s").astype(np.int64).item()
    if found["sign"]:
        shift = int(found["hours"]) * 3600 + int(found["minutes"] or 0) * 60 + int(found["seconds"] or 0)
        seconds += -shift if found["sign"] == "+" else shift
    if not zoned and found["zone"]:
        seconds = _wall_clock(seconds, policy.session_timezone)
    if not _MIN_DAY <= seconds // 86_400 <= _MAX_DAY:
        raise ValueError("is outside the years 0000 to 9999")
    return f"{np.datetime64(seconds, 's')}{_fraction(found['fraction'] or '', lt)}"


def _wall_clock(seconds: int, timezone: str) -> int:
    """The local reading, as seconds, of an instant in a zone."""
    try:
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(ZoneInfo(timezone))
        offset = local.utcoffset() or timedelta()
    except (LookupError, OSError, OverflowError, ValueError):
        raise ValueError(f"has no wall clock in the session zone {timezone!r}") from None
    return seconds + int(offset.total_seconds())


def _fraction(digits: str, lt: LogicalType) -> str:
    """What follows the seconds: the digits of a fraction cut to microseconds, and the `Z` of an instant."""
    suffix = "Z" if lt.kind is Kind.TIMESTAMPTZ else ""
    if lt.precision is not None:
        return (f".{digits[:6].ljust(6, '0')[: lt.precision]}" if lt.precision else "") + suffix
    kept = digits[:6].rstrip("0")
    if suffix:
        kept = kept.ljust(-(-len(kept) // 3) * 3, "0")
    return (f".{kept}" if kept else "") + suffix


def _interval(text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise ValueError("is no ISO-8601 duration")
    return text


def _unordered(lt: LogicalType) -> ValueError:
    return ValueError(f"{lt.kind} has no order and so no bounds")


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


# Floating point as Java 19 and later prints it.


def java_double(value: float) -> str:
    """The text of a double: `1.0`, `1.0E7`, `4.9E-324`, `NaN`; both zeros are `0`."""
    return _special(value) or _java(value, repr(abs(value)), float)


def java_float(value: float) -> str:
    """The text of the float nearest to `value`."""
    value = ctypes.c_float(value).value  # overflows to infinity, where NumPy would warn and struct raise
    return _special(value) or _java(value, pa.scalar(abs(value), pa.float32()).cast(pa.string()).as_py(), _read_float)


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "" if value else "0"


def _java(value: float, shortest: str, read: Callable[[str], float]) -> str:
    sign, value = "-" if value < 0 else "", abs(value)
    digits, exponent = _scientific(shortest)
    if len(digits) == 1:
        # Java picks among texts of at least two digits the nearest, which near the smallest numbers is another one.
        nearer = f"{value:.1e}"
        if read(nearer) == value:
            digits, exponent = _scientific(nearer)
    if not 1e-3 <= value < 1e7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    digits = digits.ljust(exponent + 1, "0")
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :] or '0'}"


def _scientific(text: str) -> tuple[str, int]:
    """Significant digits and the exponent of the first one."""
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    return digits.rstrip("0"), int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))


# Typed value to canonical text and back.


def encode(value: Any, lt: LogicalType, policy: ZonePolicy = REFUSE) -> str:
    """The canonical text of a typed Python value; a text counts as a value where the type has no Python type.

    Raises:
        ValueError: The value is not one of the type; the message is a short reason.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and lt.kind not in (Kind.BOOLEAN, Kind.BINARY):
        return canonical(value, lt, policy)
    match lt.kind, value:
        case Kind.BOOLEAN, bool():
            return "true" if value else "false"
        case _, bool():
            pass
        case (Kind.INT, int() | float() | Decimal()):
            return _from_int(_whole(value))
        case (Kind.FLOAT | Kind.DOUBLE, int() | float() | Decimal()):
            java = java_float if lt.kind is Kind.FLOAT else java_double
            return java(_nearest(value))
        case (Kind.DECIMAL, int() | Decimal()):
            return _from_decimal(Decimal(value))
        case (Kind.DECIMAL, float()):
            return _from_decimal(Decimal(repr(value)))
        case (Kind.UUID, uuid.UUID()):
            return str(value)
        case (Kind.UUID, bytes()) if len(value) == 16:
            return str(uuid.UUID(bytes=value))
        case (Kind.BINARY, bytes() | bytearray() | memoryview()):
            return base64.b64encode(value).decode()
        case (Kind.DATE, int() | float() | Decimal()):
            return _from_day(_whole(value))
        case (Kind.DATE, date()) if not isinstance(value, datetime):
            return value.isoformat()
        case (Kind.TIME, time()) if value.tzinfo is None:
            return canonical(value.isoformat(), lt)
        case (Kind.TIMESTAMP | Kind.TIMESTAMPTZ, datetime()):
            return canonical(value.isoformat(), lt, policy)
        case (Kind.INTERVAL, timedelta()):
            return _from_duration(value)
    if lt.kind in TEMPORAL and isinstance(value, int | float | Decimal):
        raise ValueError(f"is a number, which for {lt.kind} has no known unit")
    if not lt.orderable and lt.kind is not Kind.INTERVAL:
        raise _unordered(lt)
    raise ValueError(f"is of type {type(value).__name__}, which is no {lt.text}")


def _whole(value: float | Decimal) -> int:
    try:
        whole = int(value)
    except (ValueError, OverflowError):
        raise ValueError("is no finite number") from None
    if whole == value:
        return whole
    raise ValueError("has a fraction")


def _nearest(value: float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _from_duration(value: timedelta) -> str:
    micros = value // timedelta(microseconds=1)
    seconds, fraction = divmod(abs(micros), 1_000_000)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"PT{'-' if micros < 0 else ''}{seconds}{digits}S"


def decode(text: str, lt: LogicalType) -> Any:
    """The typed Python value of a canonical text; the inverse of `encode`.

    An INTERVAL stays text, as its months have no Python type.

    Raises:
        ValueError: The text is no bound of the type, or of a year that Python's calendar lacks.
    """
    match lt.kind:
        case Kind.BOOLEAN:
            return _boolean(text) == "true"
        case Kind.INT:
            return int(text)
        case Kind.FLOAT:
            return _read_float(text)
        case Kind.DOUBLE:
            return float(text)
        case Kind.DECIMAL:
            return Decimal(text)
        case Kind.STRING | Kind.INTERVAL:
            return text
        case Kind.UUID:
            return uuid.UUID(text)
        case Kind.BINARY:
            return base64.b64decode(text, validate=True)
        case Kind.DATE:
            return date.fromisoformat(text)
        case Kind.TIME:
            return time.fromisoformat(text)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return datetime.fromisoformat(text)
    raise _unordered(lt)


def compare(a: str, b: str, lt: LogicalType) -> int:
    """-1, 0 or 1 as the value of `a` is less than, equal to or greater than that of `b`; both texts are canonical."""
    if not lt.orderable:
        raise ValueError(f"{lt.kind} has no order")
    left, right = _key(a, lt), _key(b, lt)
    return int(left > right) - int(left < right)


def _key(text: str, lt: LogicalType) -> Any:
    match lt.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            value = decode(text, lt)
            return (True, 0.0) if math.isnan(value) else (False, value)
        case Kind.STRING | Kind.UUID | Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            # Fields of fixed width, most significant first: the order of the bytes is that of the values.
            return text.encode()
        case Kind.TIMESTAMPTZ:
            return text.removesuffix("Z").encode()  # `Z` sorts after the point of a fraction
    return decode(text, lt)


# Arrays of typed values to arrays of canonical text.


def encode_array(values: pa.Array | pa.ChunkedArray, lt: LogicalType) -> pa.Array:
    """The canonical text of each value, null where the value is null or the type cannot hold it.

    Args:
        values: Any Arrow type that carries the kind: every width and unit, views, dictionaries, extensions.
        lt: The type of the bounds; for one that has no order every bound is null.

    Raises:
        BadBound: Texts, of which one is no value of the type.
        pyarrow.ArrowInvalid: Values of another type, which do not convert.
    """
    array = _plain(values)
    if not lt.orderable or array.null_count == len(array):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_string(array.type) and lt.kind is not Kind.STRING:
        return canonicalize_array(array, lt)
    match lt.kind:
        case Kind.DECIMAL:
            return _encode_decimal(array, lt)
        case Kind.FLOAT | Kind.DOUBLE:
            return _encode_float(array, lt)
        case Kind.TIME:
            return _encode_time(array, lt)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _encode_timestamp(array, lt)
    return _ENCODE[lt.kind](array)


def _plain(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of a primitive or a simple binary type."""
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, values.type)
    while isinstance(values.type, pa.BaseExtensionType):
        if values.type.extension_name == "arrow.bool8":
            return values.storage.cast(pa.bool_())
        values = values.storage
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    if pa.types.is_run_end_encoded(values.type):
        return _plain(pc.run_end_decode(values))
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_large_binary(values.type) or pa.types.is_binary_view(values.type):
        return values.cast(pa.binary())
    return values


def _encode_boolean(array: pa.Array) -> pa.Array:
    return array.cast(pa.bool_()).cast(pa.string())


def _encode_int(array: pa.Array) -> pa.Array:
    if not pa.types.is_integer(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_uint64(array.type):
        array = _within(array, 0, MAX_INT)
    return array.cast(pa.string())


def _within(array: pa.Array, low: int, high: int) -> pa.Array:
    """Null in the place of what is outside of the range."""
    bounds = pc.min_max(array)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or (low <= least and greatest <= high):
        return array
    low, high = max(low, least), min(high, greatest)  # bounds that the array's own type can hold
    if low > high:
        return pa.nulls(len(array), array.type)
    inside = pc.and_(
        pc.greater_equal(array, pa.scalar(low, array.type)), pc.less_equal(array, pa.scalar(high, array.type))
    )
    return pc.if_else(inside, array, pa.scalar(None, array.type))


def _encode_string(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _encode_float(array: pa.Array, lt: LogicalType) -> pa.Array:
    single = lt.kind is Kind.FLOAT
    array = array.cast(pa.float32() if single else pa.float64(), safe=False)
    return _shape(array, java_float if single else java_double, 1e-42 if single else 1e-320)


def _shape(array: pa.Array, java: Callable[[float], str], tiny: float) -> pa.Array:
    """Arrow's shortest digits in Java's form.

    Both print the shortest digits that read back; they differ in where exponents begin, in how these look, and near
    the smallest numbers, where Java insists on two digits. Each class of rows is shaped by kernels of its own, so a
    column that is all of one class costs one pass.
    """
    text = array.cast(pa.string())
    values = array.fill_null(0).cast(pa.float64()).to_numpy(zero_copy_only=False)
    size = np.abs(values)
    finite = np.isfinite(values) & (size > 0)
    plain = finite & (size >= 1e-3) & (size < 1e7)
    exponents = pc.match_substring(text, "e").fill_null(False).to_numpy(zero_copy_only=False) & finite

    def shaped(rows: np.ndarray, how: Callable[[pa.Array], pa.Array], text: pa.Array) -> pa.Array:
        count = np.count_nonzero(rows)
        if not count:
            return text
        if count == len(text):
            return how(text)
        mask = pa.array(rows)
        return pc.replace_with_mask(text, mask, how(text.filter(mask)))

    text = shaped(plain, _with_point, text)
    text = shaped(finite & exponents, _java_exponent, text)
    text = shaped(finite & ~exponents & (size >= 1e7), _large, text)
    text = shaped(finite & ~exponents & (size < 1e-3), _small, text)
    special = ~finite | (size < tiny)
    if special.any():
        mask = pa.array(special & array.is_valid().to_numpy(zero_copy_only=False))
        coded = array.filter(mask).dictionary_encode()
        texts = pa.array([java(value) for value in coded.dictionary.to_pylist()], pa.string())
        text = pc.replace_with_mask(text, mask, texts.take(coded.indices))
    return text


def _join(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _with_point(text: pa.Array) -> pa.Array:
    """`5` is `5.0`."""
    return pc.if_else(pc.match_substring(text, "."), text, _join(text, ".0"))


def _java_exponent(text: pa.Array) -> pa.Array:
    """`1e+21` is `1.0E21`, `1.5e-9` is `1.5E-9`."""
    text = pc.replace_substring(pc.replace_substring(text, "e+", "E"), "e", "E")
    return pc.if_else(pc.match_substring(text, "."), text, pc.replace_substring(text, "E", ".0E"))


def _large(text: pa.Array) -> pa.Array:
    """`-12345678.5` is `-1.23456785E7`."""
    sign, text = _signed(text)
    point = pc.find_substring(text, ".")
    whole = pc.if_else(pc.less(point, 0), pc.binary_length(text), point)
    digits = pc.utf8_rtrim(pc.replace_substring(text, ".", "", max_replacements=1), "0")
    return _mantissa(sign, digits, pc.subtract(whole, 1))


def _small(text: pa.Array) -> pa.Array:
    """`0.00015` is `1.5E-4`."""
    sign, text = _signed(text)
    digits = pc.utf8_ltrim(text, "0.")
    return _mantissa(sign, digits, pc.subtract(pc.binary_length(digits), pc.subtract(pc.binary_length(text), 1)))


def _signed(text: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Sign and the rest."""
    return pc.if_else(pc.starts_with(text, "-"), "-", ""), pc.utf8_ltrim(text, "-")


def _mantissa(sign: pa.Array, digits: pa.Array, exponent: pa.Array) -> pa.Array:
    rest = pc.utf8_slice_codeunits(digits, 1)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    return _join(sign, pc.utf8_slice_codeunits(digits, 0, 1), ".", rest, "E", exponent.cast(pa.string()))


def _encode_decimal(array: pa.Array, lt: LogicalType) -> pa.Array:
    if not pa.types.is_decimal(array.type):
        if pa.types.is_floating(array.type):
            # By the digits that print, not by the binary fraction behind them.
            return canonicalize_array(array.cast(pa.string()), lt)
        array = array.cast(pa.decimal128(38, 0))
    scale, width = array.type.scale, array.type.byte_width
    if scale < 0:
        texts = array.cast(pa.string())
        return canonicalize_array(texts, lt)
    # The unscaled integers print plainly, where Arrow's own text of a small decimal would have an exponent.
    whole_type = pa.decimal256(MAX_DECIMAL, 0) if width == 32 else pa.decimal128(38, 0)
    if width < 16:
        array = array.cast(pa.decimal128(38, scale))
    text = pa.Array.from_buffers(whole_type, len(array), array.buffers(), -1, array.offset).cast(pa.string())
    if scale == 0:
        return text
    sign, digits = _signed(text)
    digits = pc.utf8_lpad(digits, scale + 1, "0")
    fraction = pc.utf8_rtrim(pc.utf8_slice_codeunits(digits, -scale), "0")
    point = pc.if_else(pc.equal(fraction, ""), "", ".")
    return _join(sign, pc.utf8_slice_codeunits(digits, 0, -scale), point, fraction)


def _encode_uuid(array: pa.Array) -> pa.Array:
    array = array.cast(pa.binary(16))
    octets = np.frombuffer(array.buffers()[1] or b"", np.uint8)[array.offset * 16 :][: len(array) * 16]
    nibbles = np.stack([octets >> 4, octets & 15], axis=1).reshape(len(array), 32)
    text: np.ndarray = np.full((len(array), 36), ord("-"), np.uint8)
    columns = [i for i in range(36) if i not in (8, 13, 18, 23)]
    text[:, columns] = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles]
    fixed = pa.Array.from_buffers(pa.binary(36), len(array), [None, pa.py_buffer(text.tobytes())])
    return pc.if_else(array.is_valid(), fixed.cast(pa.binary()).cast(pa.string()), pa.scalar(None, pa.string()))


def _encode_binary(array: pa.Array) -> pa.Array:
    if not pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    return _by_distinct(array, lambda value: base64.b64encode(value).decode())


def _by_distinct(array: pa.Array, how: Callable[[Any], str]) -> pa.Array:
    coded = array.dictionary_encode()
    texts = pa.array([how(value) for value in coded.dictionary.to_pylist()], pa.string())
    return texts.take(coded.indices)


def _encode_date(array: pa.Array) -> pa.Array:
    if pa.types.is_date64(array.type):
        array = _floored(array, 86_400_000).cast(pa.int32(), safe=False).cast(pa.date32())
    elif not pa.types.is_date32(array.type):
        array = array.cast(pa.date32())
    days = _within(array.cast(pa.int32()), _MIN_DAY, _MAX_DAY)
    return days.cast(pa.date32()).cast(pa.string())


_UNITS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}  # microseconds


def _floored(array: pa.Array, divisor: int) -> pa.Array:
    """Integers behind the values divided, towards the past: Arrow's own division goes towards zero."""
    integers = array.cast(pa.int64())
    floor = np.floor_divide(integers.fill_null(0).to_numpy(zero_copy_only=False), divisor)
    return pc.if_else(array.is_valid(), pa.array(floor), pa.scalar(None, pa.int64()))


def _micros(array: pa.Array, low: int, high: int) -> pa.Array:
    """Microseconds of times or timestamps of any unit, null outside of a range of microseconds."""
    unit = array.type.unit
    if unit == "ns":
        return _within(_floored(array, 1000), low, high)
    factor = _UNITS[unit]
    integers = array.cast(pa.int32()).cast(pa.int64()) if array.type.bit_width == 32 else array.cast(pa.int64())
    # The range first: far seconds would overflow when multiplied.
    integers = _within(integers, -(-low // factor), high // factor)
    return integers if factor == 1 else pc.multiply(integers, factor)


def _encode_time(array: pa.Array, lt: LogicalType) -> pa.Array:
    if not pa.types.is_time(array.type):
        array = array.cast(pa.time64("us"))
    text = _micros(array, 0, _DAY_US - 1).cast(pa.time64("us")).cast(pa.string())
    return _cut(text, lt, len("HH:MM:SS"))


def _encode_timestamp(array: pa.Array, lt: LogicalType) -> pa.Array:
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("us"))
    zoned = lt.kind is Kind.TIMESTAMPTZ
    if not pa.types.is_timestamp(array.type) or bool(array.type.tz) is not zoned:
        raise ValueError(f"{array.type} is no {lt.text}")
    micros = _micros(array, _MIN_DAY * _DAY_US, (_MAX_DAY + 1) * _DAY_US - 1)
    text = pc.binary_replace_slice(micros.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return _cut(text, lt, len("YYYY-MM-DDTHH:MM:SS"))


def _cut(text: pa.Array, lt: LogicalType, seconds: int) -> pa.Array:
    """A text with six digits of fraction, with as many as the type has or the value needs."""
    zoned = lt.kind is Kind.TIMESTAMPTZ
    if lt.precision is not None:
        text = pc.utf8_slice_codeunits(text, 0, seconds + (lt.precision + 1 if lt.precision else 0))
    elif zoned:
        none, three = pc.ends_with(text, ".000000"), pc.ends_with(text, "000")
        thousands = pc.if_else(three, pc.utf8_slice_codeunits(text, 0, seconds + 4), text)
        text = pc.if_else(none, pc.utf8_slice_codeunits(text, 0, seconds), thousands)
    else:
        text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return _join(text, "Z") if zoned else text


_ENCODE: Final[dict[Kind, Callable[[pa.Array], pa.Array]]] = {
    Kind.BOOLEAN: _encode_boolean,
    Kind.INT: _encode_int,
    Kind.STRING: _encode_string,
    Kind.UUID: _encode_uuid,
    Kind.BINARY: _encode_binary,
    Kind.DATE: _encode_date,
}


# Arrays of text to arrays of canonical text.

# Every day but 29 February, which depends on the year.
_DAYS = "[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_SECONDS = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_THOUSANDTHS = "(?:00[1-9]|0[1-9][0-9]|[1-9][0-9][0-9])"
_CANONICAL_TEXT: Final[dict[Kind, str]] = {
    Kind.BOOLEAN: "true|false",
    Kind.INT: "0|-?[1-9][0-9]{0,17}",
    Kind.DECIMAL: r"0|-?(?:[1-9][0-9]{0,37}(?:\.[0-9]{0,36}[1-9])?|0\.[0-9]{0,37}[1-9])",
    Kind.UUID: "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    Kind.BINARY: "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
    Kind.DATE: _DAYS,
    Kind.TIME: rf"{_SECONDS}(?:\.[0-9]{{0,5}}[1-9])?",
    Kind.TIMESTAMP: rf"(?:{_DAYS})T{_SECONDS}(?:\.[0-9]{{0,5}}[1-9])?",
    Kind.TIMESTAMPTZ: rf"(?:{_DAYS})T{_SECONDS}(?:\.(?:[0-9]{{3}})?{_THOUSANDTHS})?Z",
}
_JAVA_TEXT = r"0|-?(?:[0-9]{1,7}\.[0-9]{1,18}|[1-9]\.[0-9]{1,17}E-?[1-9][0-9]{0,2})"


def canonicalize_array(texts: pa.Array | pa.ChunkedArray, lt: LogicalType, policy: ZonePolicy = REFUSE) -> pa.Array:
    """`canonical` of each text; nulls stay null.

    Raises:
        BadBound: A text is no value of the type; tells the first row of such.
    """
    texts = _plain(texts)
    if not pa.types.is_string(texts.type):
        texts = texts.cast(pa.string())
    if lt.kind is Kind.STRING:
        return texts
    if lt.kind in (Kind.FLOAT, Kind.DOUBLE):
        # A text of Java's form may still have too many digits, so it is read and printed anew.
        good = pc.match_substring_regex(texts, f"^(?:{_JAVA_TEXT})$").fill_null(True)
        read = pc.if_else(good, texts, "0").cast(pa.float32() if lt.kind is Kind.FLOAT else pa.float64())
        result = _encode_float(read, lt)
    else:
        good = _canonical_already(texts, lt)
        result = texts
    if pc.all(good, min_count=0).as_py():
        return result
    rest = pc.invert(good)
    coded = texts.filter(rest).dictionary_encode()
    # Distinct values come in the order of their first row, so the first that fails is in the first row that fails.
    changed = []
    for text in coded.dictionary.to_pylist():
        try:
            changed.append(canonical(text, lt, policy))
        except ValueError as error:
            raise BadBound(pc.index(texts, text).as_py(), text, str(error)) from None
    return pc.replace_with_mask(result, rest, pa.array(changed, pa.string()).take(coded.indices))


def _canonical_already(texts: pa.Array, lt: LogicalType) -> pa.Array:
    pattern = _CANONICAL_TEXT.get(lt.kind)
    if pattern is None:
        return texts.is_null()
    if lt.precision is not None and lt.kind in TEMPORAL:
        day = "" if lt.kind is Kind.TIME else f"(?:{_DAYS})T"
        fraction = rf"\.[0-9]{{{lt.precision}}}" if lt.precision else ""
        pattern = f"{day}{_SECONDS}{fraction}{'Z' if lt.kind is Kind.TIMESTAMPTZ else ''}"
    return pc.match_substring_regex(texts, f"^(?:{pattern})$").fill_null(True)


# Order of arrays.


def sort_keys(texts: pa.Array | pa.ChunkedArray, lt: LogicalType) -> pa.Array:
    """Keys whose Arrow order is the order of the values of canonical texts.

    Keys of two calls compare with each other, except those of DECIMAL, which are ranks within one call where the
    digits of the values are too far apart for one decimal type.

    Returns:
        int64 for INT, FLOAT, DOUBLE, DATE (days), TIME, TIMESTAMP and TIMESTAMPTZ (microseconds), uint8 for BOOLEAN,
        a decimal for DECIMAL, bytes for STRING, UUID and BINARY.
    """
    texts = _plain(texts)
    if pa.types.is_null(texts.type):
        texts = texts.cast(pa.string())
    match lt.kind:
        case Kind.BOOLEAN:
            return pc.equal(texts, "true").cast(pa.uint8())
        case Kind.INT:
            return texts.cast(pa.int64())
        case Kind.FLOAT:
            # Read as a float, so that two texts of one float are one key.
            return _float_keys(texts.cast(pa.float32()).cast(pa.float64()))
        case Kind.DOUBLE:
            return _float_keys(texts.cast(pa.float64()))
        case Kind.DECIMAL:
            return _decimal_keys(texts, lt)
        case Kind.STRING | Kind.UUID:
            return texts.cast(pa.binary())  # the hex digits of a UUID sort as its bytes do
        case Kind.BINARY:
            coded = texts.dictionary_encode()
            octets = [base64.b64decode(text) for text in coded.dictionary.to_pylist()]
            return pa.array(octets, pa.binary()).take(coded.indices)
        case Kind.DATE:
            return texts.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        case Kind.TIME:
            return _join("1970-01-01T", texts).cast(pa.timestamp("us")).cast(pa.int64())
        case Kind.TIMESTAMP:
            return texts.cast(pa.timestamp("us")).cast(pa.int64())
        case Kind.TIMESTAMPTZ:
            return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    raise ValueError(f"{lt.kind} has no order")


def _float_keys(values: pa.Array) -> pa.Array:
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 + 0.0 is 0.0
    bits = numbers.view(np.int64)
    # The bits of a positive double order as integers do; those of a negative one run backwards.
    keys = np.where(bits < 0, bits ^ MAX_INT, bits)
    keys[np.isnan(numbers)] = MAX_INT
    return pc.if_else(values.is_valid(), pa.array(keys), pa.scalar(None, pa.int64()))


def _decimal_keys(texts: pa.Array, lt: LogicalType) -> pa.Array:
    scale = lt.scale or 0
    for type in (pa.decimal128(38, min(scale, 38)), pa.decimal256(MAX_DECIMAL, min(scale, 38))):
        try:
            return texts.cast(type)
        except pa.ArrowInvalid:
            continue  # a bound that was widened, or has more digits than its type
    coded = texts.dictionary_encode()
    values = [Decimal(text) for text in coded.dictionary.to_pylist()]
    rank = {value: i for i, value in enumerate(sorted(set(values)))}
    return pa.array([rank[value] for value in values], pa.decimal128(38, 0)).take(coded.indices)


def in_order(mins: pa.Array | pa.ChunkedArray, maxs: pa.Array | pa.ChunkedArray, lt: LogicalType) -> pa.BooleanArray:
    """Whether min ≤ max in each row, null where either is null; both are canonical texts."""
    mins, maxs = (_plain(texts).cast(pa.string()) for texts in (mins, maxs))
    keys = sort_keys(pa.concat_arrays([mins, maxs]), lt)  # in one call, for the ranks of decimals
    return pc.less_equal(keys.slice(0, len(mins)), keys.slice(len(mins)))
