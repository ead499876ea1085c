"""Theta sketches without the datasketches package equal those with it."""

from __future__ import annotations

import importlib
import struct
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model import sketches
from store.model.errors import InvalidArgument
from store.model.sketches import Theta, theta_by_hand, write_theta
from tests.datasketches_package import datasketches

RETAINED = st.sampled_from([0, 1, 2, 7, 60, 119, 120, 121, 500, 4096])
THETAS = st.floats(-40, 0).map(lambda power: int(2 ** (63 + power)))


MODULE = importlib.import_module("store.model.sketches.theta")  # the package has a function of that name


def without_the_package():
    """What holds where datasketches is not installed."""
    return patch.object(MODULE, "_datasketches", lambda: None)


def both_ways(function, *arguments):
    """A function's results, or InvalidArgument, with the package and without."""

    def result():
        try:
            return function(*arguments)
        except InvalidArgument:
            return InvalidArgument

    with_library = result()
    with without_the_package():
        return with_library, result()


def plain(state):
    return state.theta, state.hashes.tolist(), state.empty


def read_plain(data):
    return plain(sketches.read_theta(data))


@st.composite
def small_sketches(draw):
    """Sketches of few values: empty, exact, or in estimation mode, even without a hash."""
    if draw(st.booleans()):
        return sketches.theta(np.array(draw(st.lists(st.integers(1, 40), max_size=30)), np.uint64), k=8)
    limit = draw(st.integers(20, 60))
    hashes = sorted(draw(st.sets(st.integers(1, limit - 1), max_size=20)))
    return write_theta(Theta(limit, np.array(hashes, np.uint64)))


@given(st.lists(small_sketches(), max_size=4))
def test_intersection_has_the_bytes_of_the_library(data):
    with_library, without = both_ways(sketches.intersection, data)
    assert without == with_library


@given(st.integers(0, 2**32), st.integers(1, 30_000), st.integers(1, 30_000))
def test_intersection_of_large_sketches_has_the_bytes_of_the_library(seed, first, second):
    hashes = np.random.default_rng(seed).integers(1, 2**63, first + second, np.uint64)
    data = [sketches.theta(hashes[:first]), sketches.theta(hashes[first // 2 :])]
    with_library, without = both_ways(sketches.intersection, data)
    assert without == with_library


@given(RETAINED, THETAS, st.integers(1, 3))
def test_bounds_equal_those_of_the_library(retained, theta, deviations):
    """Of few hashes the library has a table, whose ends are two or three values or 0.3 % off the binomial's."""
    theta = max(theta, retained + 1)
    data = write_theta(Theta(theta, np.arange(1, retained + 1, dtype=np.uint64)))
    sketch = datasketches.compact_theta_sketch.deserialize(data)
    expected = sketch.get_lower_bound(deviations), sketch.get_upper_bound(deviations)
    within = {"rel": 1e-12} if retained > 120 else {"rel": 0.003, "abs": 3.5}
    assert theta_by_hand.bounds(retained, theta, deviations) == pytest.approx(expected, **within)


@pytest.mark.parametrize("theta", [2**63 - 1, 2**63 - 2, 2**63 - 1000, int(2**63 * (1 - 1e-6)), 5000, 10, 1])
def test_bounds_at_the_ends_of_theta_are_in_order(theta):
    for retained in (0, 1, 120, 121):
        low, high = theta_by_hand.bounds(retained, theta, 2)
        assert retained <= low <= retained / (theta / 2**63) <= high


@given(st.integers(0, 2**32), st.integers(0, 20_000))
def test_estimate_equals_the_librarys(seed, count):
    data = sketches.theta(np.random.default_rng(seed).integers(1, 2**63, count, np.uint64))
    with_library, without = both_ways(sketches.estimate, data)
    assert without == pytest.approx(with_library, rel=1e-12)


def of_old_library(version, state):
    """The bytes that the first libraries wrote."""
    body = state.hashes.astype("<u8").tobytes()
    seed_hash = 0x93CC if version == 2 else 0
    if version == 2 and state.empty:
        return struct.pack("<BBBxxBH", 1, 2, 3, 0, seed_hash)
    if version == 2 and state.exact:
        return struct.pack("<BBBxxBHII", 2, 2, 3, 0, seed_hash, len(state.hashes), 0) + body
    return struct.pack("<BBBxxBHIIQ", 3, version, 3, 0, seed_hash, len(state.hashes), 0, state.theta) + body


@given(small_sketches(), st.sampled_from([1, 2]))
def test_bytes_of_old_libraries_are_read(data, version):
    with_library, without = both_ways(read_plain, of_old_library(version, sketches.read_theta(data)))
    assert without == with_library != InvalidArgument


@given(st.integers(0, 2**32), st.integers(0, 12_000), st.integers(1, 12))
def test_compressed_bytes_are_read(seed, count, log_size):
    sketch = datasketches.update_theta_sketch(max(log_size, 5))
    for value in np.random.default_rng(seed).integers(0, 2**62, min(count, 3000)).tolist():
        sketch.update(value)
    with_library, without = both_ways(read_plain, sketch.compact().serialize(True))
    assert without == with_library != InvalidArgument


@given(st.data())
def test_damaged_bytes_are_refused_or_read_alike(data):
    sketch = datasketches.update_theta_sketch(5)
    for value in range(data.draw(st.integers(0, 100))):
        sketch.update(value)
    whole = bytearray(sketch.compact().serialize(data.draw(st.booleans())))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    _, without = both_ways(read_plain, bytes(whole))
    if without is not InvalidArgument:
        limit, hashes, _ = without
        assert limit > 0 and len(hashes) <= len(whole) * 8


def test_errors_without_the_package():
    with without_the_package():
        with pytest.raises(InvalidArgument, match="theta"):
            sketches.intersection([sketches.theta(np.arange(1, 9, dtype=np.uint64)), b"no sketch"])
        with pytest.raises(InvalidArgument, match="family 9"):
            sketches.read_theta(bytes([1, 3, 9, 0, 0, 0, 0xCC, 0x93]))
        with pytest.raises(InvalidArgument, match="theta of 0"):
            sketches.estimate(struct.pack("<BBBxxBHIIQ", 3, 3, 3, 26, 0x93CC, 0, 0, 0))
