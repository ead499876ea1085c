"""Floating-point text of Java: as documented, round trips, scalar form and array form."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.bounds import (
    canonicalize_array,
    columns,
    encode_array,
    java_double,
    java_float,
)
from store.model.logical_types import Kind, parse
from tests.store.model.bounds.forms import encoded


def javadoc(value, single):
    """`Double.toString` of JDK 19 and later as documented, in rational numbers."""
    kind, bits = (np.float32, np.int32) if single else (np.float64, np.int64)
    v = kind(abs(value))
    above, below = float(np.nextafter(v, kind(np.inf))), float(np.nextafter(v, kind(0)))
    exact, below = Fraction(float(v)), Fraction(below)
    above = Fraction(above) if math.isfinite(above) else 2 * exact - below
    low, high, closed = (exact + below) / 2, (exact + above) / 2, int(v.view(bits)) % 2 == 0
    exponent = math.floor(math.log10(float(v)))
    exponent += (Fraction(10) ** (exponent + 1) <= exact) - (Fraction(10) ** exponent > exact)

    def nearest(length):
        unit = Fraction(10) ** (exponent - length + 1)
        around = [exact // unit, exact // unit + 1]
        good = [n for n in around if n and (low < n * unit < high or (closed and n * unit in (low, high)))]
        return [min((abs(n * unit - exact), n % 2, n) for n in good)[2] * unit] if good else []

    shortest = len(str(v).partition("e")[0].replace(".", "").strip("0"))
    assert nearest(shortest) and not (shortest > 1 and nearest(shortest - 1))
    decimal = nearest(max(shortest, 2))[0]
    exponent += decimal >= Fraction(10) ** (exponent + 1)
    digits = str(decimal / Fraction(10) ** (exponent - 20)).rstrip("0")
    sign = "-" if value < 0 else ""
    if not Fraction(1, 1000) <= decimal < 10**7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    plain = digits.ljust(exponent + 1, "0") if exponent >= 0 else "0" * -exponent + digits
    point = max(exponent, 0) + 1
    return f"{sign}{plain[:point]}.{plain[point:] or '0'}"


def edge_values(single):
    """Powers of two and ten with their neighbours, the smallest numbers, few digits, random bits."""
    kind, bits = (np.float32, np.uint32) if single else (np.float64, np.uint64)
    random = np.random.default_rng(7)
    twos = kind(2) ** np.arange(-148 if single else -1073, 128 if single else 1024, 1 if single else 5).astype(kind)
    tens = np.array([float(f"{m}e{k}") for k in (range(-44, 38) if single else range(-323, 308, 5)) for m in (1, 2, 9)])
    middle = np.concatenate([twos, tens.astype(kind)]).view(bits)
    near = [(middle + bits(step)).view(kind) for step in (0, 1)] + [(middle - bits(1)).view(kind)]
    others = [
        np.arange(1, 300).astype(bits).view(kind),
        random.integers(0, np.iinfo(bits).max, 500, dtype=bits).view(kind),
        np.round(10.0 ** random.uniform(-6, 10, 500), 3).astype(kind),
        random.integers(0, 2**40, 200).astype(kind),
    ]
    values = np.concatenate(near + others)
    return values[np.isfinite(values) & (values != 0)]


@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_floats_print_as_java_documents(single):
    values = edge_values(single)
    expected = [javadoc(value, single) for value in values.tolist()]
    assert encoded(pa.array(values), "FLOAT" if single else "DOUBLE") == expected
    assert [(java_float if single else java_double)(value) for value in values.tolist()] == expected


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_random_floats_round_trip(single, count):
    kind, bits, type = (np.float32, np.uint32, "FLOAT") if single else (np.float64, np.uint64, "DOUBLE")
    values = np.random.default_rng(13).integers(0, np.iinfo(bits).max, count, dtype=bits, endpoint=True).view(kind)
    values = values[~np.isnan(values) & (values != 0)]
    printed = encode_array(pa.array(values), parse(type))
    assert canonicalize_array(printed, parse(type)).equals(printed)
    assert np.array_equal(printed.cast(pa.from_numpy_dtype(kind)).to_numpy().view(bits), values.view(bits))


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_array_form_and_scalar_form_of_floats_agree(single, count):
    kind, bits = (np.float32, np.uint32) if single else (np.float64, np.uint64)
    type, java = ("FLOAT", java_float) if single else ("DOUBLE", java_double)
    random = np.random.default_rng(11)
    any_bits = random.integers(0, np.iinfo(bits).max, count, dtype=bits, endpoint=True).view(kind)
    usual = (random.normal(size=count) * 10.0 ** random.uniform(-6, 10, count)).astype(kind)
    values = pa.array(np.concatenate([any_bits, usual, np.array([0, -0.0, np.nan, np.inf, -np.inf], kind)]))
    printed = encode_array(values, parse(type))
    assert printed.to_pylist() == [java(value) for value in values.to_pylist()]
    assert canonicalize_array(printed, parse(type)).equals(printed)
    numbers = [0.0 if value == 0 else value for value in values.to_pylist()]
    assert np.array_equal(printed.cast(values.type).to_numpy(), np.array(numbers, kind), equal_nan=True)


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_short_arrays_of_floats_print_as_long_ones(kind):
    few = [0.0, -0.0, 1.0, -1e7, 9.9e-4, 3.4, 1e-3, 5e-324, math.nan, math.inf, -math.inf, 1.7e308, 123456.7, None]
    printed = encode_array(pa.array(few, pa.float64()), parse(kind)).to_pylist()
    assert encode_array(pa.array(few * 20, pa.float64()), parse(kind)).to_pylist() == printed * 20


@given(
    st.sampled_from([Kind.FLOAT, Kind.DOUBLE]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.from_regex(f"^(?:{columns._USUAL_FLOATS[kind]})$", fullmatch=True))
    )
)
def test_text_of_few_digits_is_canonical_as_it_is(given_text):
    kind, text = given_text
    type = pa.float32() if kind is Kind.FLOAT else pa.float64()
    assert columns.print_floats(pa.array([text]).cast(type), kind is Kind.FLOAT).to_pylist() == [text]
