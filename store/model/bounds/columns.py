"""Columns of bounds: typed values to canonical text, text to canonical text, and their order.

Arrow kernels and NumPy process whole columns; rare cases fall back to `store.model.bounds.scalar`, once per distinct
value.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.model.bounds.java_floats import by_distinct, join, print_floats, signed
from store.model.bounds.scalar import DAY_US, MAX_DAY, MAX_INT, MIN_DAY, REFUSE, BadBound, ZonePolicy, canonical
from store.model.logical_types import FLOATING, MAX_DECIMAL, TEMPORAL, Kind, LogicalType

# Arrays of typed values to arrays of canonical text.


def encode_array(values: pa.Array | pa.ChunkedArray, lt: LogicalType) -> pa.Array:
    """The canonical text of each value (utf8); null if the value is null or the type cannot represent it.

    Args:
        values: Values of any Arrow type of that kind: every width and unit, views, dictionaries, extensions.
        lt: The type of the bounds; if it has no order, every bound is null.

    Raises:
        BadBound: The values are texts, and one is not a value of the type.
        pyarrow.ArrowInvalid: The values are of another type and cannot be converted.
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
            return print_floats(array, lt.kind is Kind.FLOAT)
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


def _encode_int(array: pa.Array) -> pa.Array:
    if not pa.types.is_integer(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_uint64(array.type):
        array = _within(array, 0, MAX_INT)
    return array.cast(pa.string())


def _within(array: pa.Array, low: int, high: int) -> pa.Array:
    """The values, those outside of the range replaced by null."""
    bounds = pc.min_max(array)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or (low <= least and greatest <= high):
        return array
    low, high = max(low, least), min(high, greatest)  # values that fit the type of the array
    if low > high:
        return pa.nulls(len(array), array.type)
    inside = pc.and_(
        pc.greater_equal(array, pa.scalar(low, array.type)), pc.less_equal(array, pa.scalar(high, array.type))
    )
    return pc.if_else(inside, array, pa.scalar(None, array.type))


def _encode_decimal(array: pa.Array, lt: LogicalType) -> pa.Array:
    if not pa.types.is_decimal(array.type):
        if pa.types.is_floating(array.type):
            # By the printed digits, not by the exact binary fraction.
            return canonicalize_array(array.cast(pa.string()), lt)
        array = array.cast(pa.decimal128(38, 0))
    scale, width = array.type.scale, array.type.byte_width
    if scale < 0:
        texts = array.cast(pa.string())
        return canonicalize_array(texts, lt)
    # From the unscaled integers, because Arrow prints a small decimal with an exponent.
    whole_type = pa.decimal256(MAX_DECIMAL, 0) if width == 32 else pa.decimal128(38, 0)
    if width < 16:
        array = array.cast(pa.decimal128(38, scale))
    text = pa.Array.from_buffers(whole_type, len(array), array.buffers(), -1, array.offset).cast(pa.string())
    if scale == 0:
        return text
    sign, digits = signed(text)
    digits = pc.utf8_lpad(digits, scale + 1, "0")
    fraction = pc.utf8_rtrim(pc.utf8_slice_codeunits(digits, -scale), "0")
    point = pc.if_else(pc.equal(fraction, ""), "", ".")
    return join(sign, pc.utf8_slice_codeunits(digits, 0, -scale), point, fraction)


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
    return by_distinct(array, lambda value: base64.b64encode(value).decode(), pa.string())


def _encode_date(array: pa.Array) -> pa.Array:
    if pa.types.is_date64(array.type):
        array = _floored(array, 86_400_000).cast(pa.int32(), safe=False).cast(pa.date32())
    elif not pa.types.is_date32(array.type):
        array = array.cast(pa.date32())
    days = _within(array.cast(pa.int32()), MIN_DAY, MAX_DAY)
    return days.cast(pa.date32()).cast(pa.string())


_UNITS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}  # microseconds


def _floored(array: pa.Array, divisor: int) -> pa.Array:
    """The integers of the values divided and rounded down; Arrow's own division rounds towards zero."""
    integers = array.cast(pa.int64())
    floor = np.floor_divide(integers.fill_null(0).to_numpy(zero_copy_only=False), divisor)
    return pc.if_else(array.is_valid(), pa.array(floor), pa.scalar(None, pa.int64()))


def _micros(array: pa.Array, low: int, high: int) -> pa.Array:
    """Times or timestamps of any unit in microseconds; null if outside of a range in microseconds."""
    unit = array.type.unit
    if unit == "ns":
        return _within(_floored(array, 1000), low, high)
    factor = _UNITS[unit]
    integers = array.cast(pa.int32()).cast(pa.int64()) if array.type.bit_width == 32 else array.cast(pa.int64())
    # The range is applied first, because the multiplication could overflow.
    integers = _within(integers, -(-low // factor), high // factor)
    return integers if factor == 1 else pc.multiply(integers, factor)


def _encode_time(array: pa.Array, lt: LogicalType) -> pa.Array:
    if not pa.types.is_time(array.type):
        array = array.cast(pa.time64("us"))
    text = _micros(array, 0, DAY_US - 1).cast(pa.time64("us")).cast(pa.string())
    return _cut(text, lt, len("HH:MM:SS"))


def _encode_timestamp(array: pa.Array, lt: LogicalType) -> pa.Array:
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("us"))
    zoned = lt.kind is Kind.TIMESTAMPTZ
    if not pa.types.is_timestamp(array.type) or bool(array.type.tz) is not zoned:
        raise ValueError(f"{array.type} is not {lt.text}")
    micros = _micros(array, MIN_DAY * DAY_US, (MAX_DAY + 1) * DAY_US - 1)
    text = pc.binary_replace_slice(micros.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return _cut(text, lt, len("YYYY-MM-DDTHH:MM:SS"))


def _cut(text: pa.Array, lt: LogicalType, seconds: int) -> pa.Array:
    """Texts with six fractional digits, reduced to the type's precision, or to the digits needed if it has none."""
    zoned = lt.kind is Kind.TIMESTAMPTZ
    if lt.precision is not None:
        text = pc.utf8_slice_codeunits(text, 0, seconds + (lt.precision + 1 if lt.precision else 0))
    elif zoned:
        none, three = pc.ends_with(text, ".000000"), pc.ends_with(text, "000")
        thousands = pc.if_else(three, pc.utf8_slice_codeunits(text, 0, seconds + 4), text)
        text = pc.if_else(none, pc.utf8_slice_codeunits(text, 0, seconds), thousands)
    else:
        text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return join(text, "Z") if zoned else text


_ENCODE: Final[dict[Kind, Callable[[pa.Array], pa.Array]]] = {
    Kind.BOOLEAN: lambda array: array.cast(pa.bool_()).cast(pa.string()),
    Kind.INT: _encode_int,
    Kind.STRING: lambda array: array.cast(pa.string()),
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
# Of so few digits that no other float has a shorter text, which is five times cheaper to see than to print them.
_USUAL_FLOATS: Final = {
    Kind.FLOAT: r"0|-?(?:[1-9][0-9]{0,2}\.(?:0|[0-9]{0,2}[1-9])|0\.0{0,2}[1-9](?:[0-9]{0,4}[1-9])?)",
    Kind.DOUBLE: r"0|-?(?:[1-9][0-9]{0,6}\.(?:0|[0-9]{0,7}[1-9])|0\.0{0,2}[1-9](?:[0-9]{0,13}[1-9])?)",
}
_JAVA_TEXT = r"0|-?(?:[0-9]{1,7}\.[0-9]{1,18}|[1-9]\.[0-9]{1,17}E-?[1-9][0-9]{0,2})"


def canonicalize_array(texts: pa.Array | pa.ChunkedArray, lt: LogicalType, policy: ZonePolicy = REFUSE) -> pa.Array:
    """`canonical` of each text (utf8); nulls stay null.

    Args:
        texts: utf8.

    Raises:
        BadBound: A text is not a value of the type; has the first such row.
    """
    texts = _plain(texts)
    if not pa.types.is_string(texts.type):
        texts = texts.cast(pa.string())
    if lt.kind is Kind.STRING:
        return texts
    if lt.kind in FLOATING:
        usual = pc.match_substring_regex(texts, f"^(?:{_USUAL_FLOATS[lt.kind]})$")
        if pc.all(usual, min_count=0).as_py():
            return texts
        # A text of Java's form may still have too many digits, so it is parsed and printed again.
        good = pc.match_substring_regex(texts, f"^(?:{_JAVA_TEXT})$").fill_null(True)
        read = pc.if_else(good, texts, "0").cast(pa.float32() if lt.kind is Kind.FLOAT else pa.float64())
        result = print_floats(read, lt.kind is Kind.FLOAT)
    else:
        good = _canonical_already(texts, lt)
        result = texts
    if pc.all(good, min_count=0).as_py():
        return result
    rest = pc.invert(good)
    coded = texts.filter(rest).dictionary_encode()
    # Distinct values are in the order of their first row, so the first one that fails is in the first bad row.
    changed = []
    for text in coded.dictionary.to_pylist():
        try:
            changed.append(canonical(text, lt, policy))
        except ValueError as error:
            raise BadBound(pc.index(texts, text).as_py(), text, str(error)) from None
    return pc.replace_with_mask(result, rest, pa.array(changed, pa.string()).take(coded.indices))


def enclosing(
    texts: pa.Array, canonical_texts: pa.Array, lt: LogicalType, *, upper: bool
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Bounds that enclose the values of the texts as given, in the type that readers compare in.

    A text may have more digits than its type: of a decimal, or below the precision of a time or timestamp. Such a lower
    bound is rounded down, an upper one up.

    Args:
        texts: utf8, as given.
        canonical_texts: `canonicalize_array` of them, which keeps the digits of decimals and cuts those of times.
        upper: Whether they are upper bounds.

    Returns:
        Canonical texts, null where the type has no such value; and a mask of those that were rounded, None if none was.
    """
    if lt.kind is Kind.DECIMAL and lt.scale is not None:
        finer = pc.match_substring_regex(canonical_texts, rf"\.[0-9]{{{lt.scale + 1}}}")
    elif lt.kind in TEMPORAL:
        digits = 6 if lt.precision is None else min(lt.precision, 6)
        finer = pc.match_substring_regex(texts, rf"\.[0-9]{{{digits}}}[0-9]*[1-9]")
    else:
        return canonical_texts, None
    finer = finer.fill_null(False)
    if not pc.any(finer, min_count=0).as_py():
        return canonical_texts, None
    rounded = canonical_texts.filter(finer)
    if lt.kind is Kind.DECIMAL:
        rounded = _to_scale(rounded, lt.scale or 0, upper)
    elif upper:  # a cut lower bound is rounded down already
        rounded = _next_up(rounded, lt)
    return pc.replace_with_mask(canonical_texts, finer, rounded), finer


def _next_up(texts: pa.Array, lt: LogicalType) -> pa.Array:
    """The next greater value of each canonical time or timestamp (utf8); null if the type has none."""
    unit = 1 if lt.precision is None else 10 ** (6 - min(lt.precision, 6))
    more = pc.add(sort_keys(texts, lt), unit)
    if lt.kind is Kind.TIME:
        return encode_array(_within(more, 0, DAY_US - 1).cast(pa.time64("us")), lt)
    return encode_array(more.cast(pa.timestamp("us", "UTC" if lt.kind is Kind.TIMESTAMPTZ else None)), lt)


def _to_scale(texts: pa.Array, scale: int, upper: bool) -> pa.Array:
    """Canonical decimals (utf8) rounded to a number of digits after the point, up or down."""
    exact = Context(prec=2 * MAX_DECIMAL, rounding=ROUND_CEILING if upper else ROUND_FLOOR)
    unit = Decimal(1).scaleb(-scale)

    def rounded(text: str) -> str:
        value = Decimal(text).quantize(unit, context=exact)
        return canonical(str(value), LogicalType(Kind.DECIMAL))

    return by_distinct(texts, rounded, pa.string())


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
    """Sort keys of canonical texts (utf8): their order in Arrow is the order of the values.

    Returns:
        int64 for INT, FLOAT, DOUBLE, DATE (days), TIME, TIMESTAMP and TIMESTAMPTZ (microseconds), uint8 for BOOLEAN,
        utf8 for DECIMAL, bytes for STRING, UUID and BINARY.
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
            # Parsed as float32, so that two texts of one float have one key.
            return _float_keys(texts.cast(pa.float32()).cast(pa.float64()))
        case Kind.DOUBLE:
            return _float_keys(texts.cast(pa.float64()))
        case Kind.DECIMAL:
            return _decimal_keys(texts)
        case Kind.STRING | Kind.UUID:
            return texts.cast(pa.binary())  # the hex digits of a UUID sort as its bytes do
        case Kind.BINARY:
            return by_distinct(texts, base64.b64decode, pa.binary())
        case Kind.DATE:
            return texts.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        case Kind.TIME:
            return join("1970-01-01T", texts).cast(pa.timestamp("us")).cast(pa.int64())
        case Kind.TIMESTAMP:
            return texts.cast(pa.timestamp("us")).cast(pa.int64())
        case Kind.TIMESTAMPTZ:
            return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    raise ValueError(f"{lt.kind} has no order")


def _float_keys(values: pa.Array) -> pa.Array:
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 + 0.0 is 0.0
    bits = numbers.view(np.int64)
    # The bits of positive doubles, as integers, have the order of the doubles; those of negative ones are reversed.
    keys = np.where(bits < 0, bits ^ MAX_INT, bits)
    keys[np.isnan(numbers)] = MAX_INT
    return pc.if_else(values.is_valid(), pa.array(keys), pa.scalar(None, pa.int64()))


# Decimals have up to 76 digits, more than a decimal of DuckDB. Their key is a text: the sign, the number of integer
# digits as one character, the digits. Those of negative numbers are complemented, and end above every digit.
ASCENDING, DESCENDING = 40, 120  # characters of no integer digits


@cache
def _characters() -> pa.Array:
    """The ASCII characters by code, created on first use: the first array of texts imports pandas, which is slow."""
    return pa.array([chr(code) for code in range(128)])


def _decimal_keys(texts: pa.Array) -> pa.Array:
    negative = pc.starts_with(texts, "-")
    digits = pc.if_else(negative, pc.utf8_slice_codeunits(texts, 1), texts)
    point = pc.find_substring(digits, ".")
    whole = pc.if_else(pc.less(point, 0), pc.utf8_length(digits), point)
    above = _characters().take(pc.add(whole, ASCENDING))
    below = _characters().take(pc.subtract(DESCENDING, whole))
    return pc.if_else(negative, join("0", below, _complemented(digits), "~"), join("1", above, digits))


def _complemented(texts: pa.Array) -> pa.Array:
    """The texts with 9 in place of 0, 8 in place of 1, and so on."""
    table: np.ndarray = np.arange(256, dtype=np.uint8)
    table[ord("0") : ord("9") + 1] = table[ord("0") : ord("9") + 1][::-1]
    validity, offsets, data = texts.buffers()
    changed = pa.py_buffer(table[np.frombuffer(data or b"", np.uint8)].tobytes())
    return pa.Array.from_buffers(texts.type, len(texts), [validity, offsets, changed], offset=texts.offset)


def in_order(mins: pa.Array | pa.ChunkedArray, maxs: pa.Array | pa.ChunkedArray, lt: LogicalType) -> pa.BooleanArray:
    """A mask of min ≤ max for each row, both canonical texts (utf8); null if either is null."""
    return pc.less_equal(sort_keys(mins, lt), sort_keys(maxs, lt))


def is_range(low: str | None, high: str | None, lt: LogicalType) -> bool:
    """False if both bounds, canonical texts, are known and the lower one is the greater."""
    return low is None or high is None or bool(in_order(pa.array([low]), pa.array([high]), lt)[0].as_py())
