"""Text of floating-point numbers as Java 19 and later print it, for single values and columns."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FEW: Final = 64  # up to that many values, printing them one by one is faster than kernels


def java_double(value: float) -> str:
    """The text of a double: `1.0`, `1.0E7`, `4.9E-324`, `NaN`; both zeros are `0`."""
    return _special(value) or _java(value, repr(abs(value)), float)


def java_float(value: float) -> str:
    """The text of the float nearest to `value`."""
    value = ctypes.c_float(value).value  # overflows to infinity, where NumPy would warn and struct raise
    return _special(value) or _java(value, pa.scalar(abs(value), pa.float32()).cast(pa.string()).as_py(), read_float)


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
        # Java prints the nearest text of at least two digits, which for the smallest numbers has other digits.
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


def read_float(text: str) -> float:
    """The 32-bit float nearest to the number in a text."""
    # Not float() and then rounding: rounding twice may give a neighbour of the nearest float.
    value: float = pa.scalar(text.lstrip("+")).cast(pa.float32()).as_py()
    return value


# Columns.


def print_floats(array: pa.Array, single: bool) -> pa.Array:
    """The text of each number of a column (utf8), as 32-bit floats if `single`, else as doubles; null stays null."""
    array = array.cast(pa.float32() if single else pa.float64(), safe=False)
    if len(array) <= _FEW:
        java = java_float if single else java_double
        return pa.array([None if value is None else java(value) for value in array.to_pylist()], pa.string())
    return _shape(array, java_float if single else java_double, 1e-42 if single else 1e-320)


def _shape(array: pa.Array, java: Callable[[float], str], tiny: float) -> pa.Array:
    """Java's form of the shortest digits, which Arrow prints.

    Both print the shortest digits that read back as the number. They differ in the range of plain notation, the form of
    exponents, and for the smallest numbers, for which Java prints at least two digits. Each class of rows has its own
    kernels, so a column of one class takes one pass.
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
        text = pc.replace_with_mask(text, mask, by_distinct(array.filter(mask), java, pa.string()))
    return text


def by_distinct(array: pa.Array, how: Callable[[Any], Any], type: pa.DataType) -> pa.Array:
    """Applies `how` to each value of a column, but only once to equal ones; null stays null."""
    coded = array.dictionary_encode()
    return pa.array([how(value) for value in coded.dictionary.to_pylist()], type).take(coded.indices)


def join(*parts: pa.Array | str) -> pa.Array:
    """Concatenates texts row by row; each part is a column (utf8) or one text for all rows."""
    return pc.binary_join_element_wise(*parts, "")


def _with_point(text: pa.Array) -> pa.Array:
    """`5` → `5.0`."""
    return pc.if_else(pc.match_substring(text, "."), text, join(text, ".0"))


def _java_exponent(text: pa.Array) -> pa.Array:
    """`1e+21` → `1.0E21`, `1.5e-9` → `1.5E-9`."""
    text = pc.replace_substring(pc.replace_substring(text, "e+", "E"), "e", "E")
    return pc.if_else(pc.match_substring(text, "."), text, pc.replace_substring(text, "E", ".0E"))


def _large(text: pa.Array) -> pa.Array:
    """`-12345678.5` → `-1.23456785E7`."""
    sign, text = signed(text)
    point = pc.find_substring(text, ".")
    whole = pc.if_else(pc.less(point, 0), pc.binary_length(text), point)
    digits = pc.utf8_rtrim(pc.replace_substring(text, ".", "", max_replacements=1), "0")
    return _mantissa(sign, digits, pc.subtract(whole, 1))


def _small(text: pa.Array) -> pa.Array:
    """`0.00015` → `1.5E-4`."""
    sign, text = signed(text)
    digits = pc.utf8_ltrim(text, "0.")
    return _mantissa(sign, digits, pc.subtract(pc.binary_length(digits), pc.subtract(pc.binary_length(text), 1)))


def signed(text: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The sign (`-` or empty) and the rest of each text."""
    return pc.if_else(pc.starts_with(text, "-"), "-", ""), pc.utf8_ltrim(text, "-")


def _mantissa(sign: pa.Array, digits: pa.Array, exponent: pa.Array) -> pa.Array:
    rest = pc.utf8_slice_codeunits(digits, 1)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    return join(sign, pc.utf8_slice_codeunits(digits, 0, 1), ".", rest, "E", exponent.cast(pa.string()))
