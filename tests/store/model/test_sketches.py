"""Sketches: bytes of Apache DataSketches, algebra of merges, error bounds."""

import base64
import json
import math
import struct
from itertools import pairwise
from pathlib import Path

import mmh3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.model import sketches
from store.model.errors import InvalidArgument
from store.model.sketches import murmur3
from store.model.sketches.airlift_hll import HyperLogLog, estimate
from store.model.sketches.frequent_items import _all_items, _few_items
from tests.datasketches_package import datasketches


def theta_of(values, k=sketches.THETA_K):
    return sketches.theta(murmur3.hash_longs(np.asarray(values, np.int64)), k)


def library_theta(values):
    sketch = datasketches.update_theta_sketch(12)
    for value in values:
        sketch.update(value)
    return sketch.compact().serialize()


def offsets_of(values):
    return np.concatenate([[0], np.cumsum([len(value) for value in values])]).astype(np.int64)


def hash_all(values):
    return murmur3.hash_bytes(np.frombuffer(b"".join(values), np.uint8), offsets_of(values))


# Hashes.


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 4096])
def test_exact_theta_sketches_equal_datasketches_bytes(count):
    assert theta_of(range(count)) == library_theta(range(count))


def test_doubles_hash_as_in_datasketches():
    values = [1.5, -2.25, 0.0, 1e300, math.inf, math.nan]
    assert sketches.theta(murmur3.hash_doubles(np.array(values))) == library_theta(values)


def test_all_zeros_hash_alike_and_all_nans_hash_alike():
    other_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    hashes = murmur3.hash_doubles(np.concatenate([[0.0, -0.0, np.nan], other_nan]))
    assert len(set(hashes.tolist())) == 2
    assert len(set(murmur3.hash_floats(np.array([0.0, -0.0, np.nan, -np.nan], np.float32)).tolist())) == 2


@pytest.mark.parametrize("longest", [1, 15, 16, 17, 33, 300])
def test_texts_hash_as_in_datasketches(longest):
    texts = ["é" * (size // 2) + "x" * (size % 2) + str(size) for size in range(longest)]
    assert sketches.theta(hash_all([text.encode() for text in texts])) == library_theta(texts)


def test_hash_of_a_text_is_independent_of_its_position(monkeypatch):
    """Neighbours of other lengths and chunk borders have no effect."""
    border = 1000
    monkeypatch.setattr(murmur3, "CHUNK", border)
    generator = np.random.default_rng(7)
    values = [generator.bytes(int(size)) for size in generator.integers(0, 70, 2500)]
    together = hash_all(values)
    for place in [0, 1, border - 1, border, border + 1, 2499, *generator.integers(0, 2500, 50).tolist()]:
        assert together[place] == hash_all([values[place]])[0]


@given(
    st.lists(st.binary(max_size=50))
    | st.integers(0, 40).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n)))
    | st.lists(st.integers(0, 700).map(bytes))
    | st.lists(st.integers(5000, 5200).map(bytes), max_size=5),
    st.binary(max_size=9),
    st.binary(max_size=40),
    st.integers(0, 7),
)
def test_texts_hash_as_mmh3_at_any_alignment(values, before, after, misaligned):
    """Any surrounding bytes and any offset of the buffer in memory."""
    octets = np.empty(misaligned + 5200 * len(values) + 60, np.uint8)[misaligned:]
    buffer = before + b"".join(values) + after
    octets[: len(buffer)] = np.frombuffer(buffer, np.uint8)
    expected = [mmh3.hash64(value, murmur3.SEED, signed=False)[0] >> 1 for value in values]
    assert murmur3.hash_bytes(octets[: len(buffer)], offsets_of(values) + len(before)).tolist() == expected


def test_long_texts_hash_as_mmh3():
    """Long texts beside short ones."""
    generator = np.random.default_rng(3)
    values = [generator.bytes(int(size)) for size in (16_384, 16_385, 5, 100_000, 0, 5_000_007)]
    assert hash_all(values).tolist() == [mmh3.hash64(v, murmur3.SEED, signed=False)[0] >> 1 for v in values]


def test_empty_text_counts_as_one_value():
    assert hash_all([b""])[0] != 0
    assert sketches.estimate(sketches.theta(hash_all([b""]))).ndv == 1


def test_fixed_width_values_hash_as_their_bytes():
    days = np.array([0, 1, -1, 20_000, -(2**31)], np.int32)
    assert murmur3.hash_ints(days).tolist() == hash_all([struct.pack("<i", day) for day in days]).tolist()
    assert murmur3.hash_booleans(np.array([False, True])).tolist() == hash_all([b"\0", b"\1"]).tolist()
    assert murmur3.hash_longs(np.array([2**64 - 1], np.uint64)) == murmur3.hash_longs(np.array([-1]))


def minimal(value):
    size = 1
    while not -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
        size += 1
    return value.to_bytes(size, "big", signed=True)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300), min_size=1))
def test_decimals_hash_as_their_minimal_bytes(values):
    assert murmur3.hash_decimals(np.array(values, np.int64)).tolist() == hash_all(list(map(minimal, values))).tolist()


@given(st.lists(st.integers(-(2**127), 2**127 - 1) | st.integers(-(2**66), 2**66), min_size=1))
def test_wide_decimals_hash_as_their_minimal_bytes(values):
    words = np.array([[value & (2**64 - 1), value >> 64 & (2**64 - 1)] for value in values], np.uint64)
    assert murmur3.hash_wide_decimals(words).tolist() == hash_all(list(map(minimal, values))).tolist()


def test_tuple_hashes_depend_on_order_and_nulls():
    a, b = (murmur3.hash_longs(np.array(values)) for values in ([1, 2, 1, 1], [2, 1, 2, 2]))
    null = np.array([False, False, True, False])
    rows = murmur3.combine([a, b], [null, None]).tolist()
    assert rows[0] == rows[3]
    assert len(set(rows)) == 3


# Theta.


def test_theta_estimate_and_bounds_equal_datasketches():
    data = theta_of(range(100_000))
    sketch = datasketches.compact_theta_sketch.deserialize(data)
    ndv, lower, upper, exact = sketches.estimate(data)
    assert (ndv, lower, upper) == (sketch.get_estimate(), sketch.get_lower_bound(2), sketch.get_upper_bound(2))
    assert not exact
    assert sketch.num_retained == sketches.THETA_K
    assert lower < 100_000 < upper
    assert ndv == pytest.approx(100_000, rel=3 / 64)


def test_theta_estimate_is_exact_up_to_k_values():
    assert sketches.estimate(theta_of([])) == (0, 0, 0, True)
    assert sketches.estimate(theta_of([5, 5, 6])) == (2, 2, 2, True)
    assert sketches.estimate(theta_of(range(4096))).exact
    assert not sketches.estimate(theta_of(range(4097))).exact


def test_theta_never_keeps_a_hash_of_zero():
    assert sketches.read_theta(sketches.theta(np.array([0, 7, 7], np.uint64))).hashes.tolist() == [7]


@given(st.data())
@settings(deadline=None)
def test_theta_union_equals_the_sketch_of_all_values(data):
    """Any parts in any grouping, byte for byte, in exact and in estimation mode."""
    k = data.draw(st.sampled_from([4, 16, 64]))
    parts = data.draw(st.lists(st.lists(st.integers(0, 200), max_size=80), min_size=1, max_size=6))
    whole = theta_of([value for part in parts for value in part], k)
    blobs = [theta_of(part, k) for part in parts]
    assert sketches.union(blobs, k) == whole
    cut = data.draw(st.integers(0, len(blobs)))
    assert sketches.union([sketches.union(blobs[cut:], k), sketches.union(blobs[:cut], k)], k) == whole
    assert sketches.union([whole, whole, *blobs], k) == whole


def test_datasketches_reads_and_merges_theta_bytes():
    ours = datasketches.compact_theta_sketch.deserialize(theta_of(range(50_000)))
    union = datasketches.theta_union(12)
    union.update(ours)
    union.update(datasketches.compact_theta_sketch.deserialize(theta_of(range(25_000, 75_000))))
    assert union.get_result().get_estimate() == pytest.approx(75_000, rel=0.05)


@pytest.mark.parametrize("compress", [False, True])
def test_theta_bytes_of_datasketches_are_read(compress):
    sketch = datasketches.update_theta_sketch(12)
    for value in range(20_000):
        sketch.update(value)
    state = sketches.read_theta(sketch.compact(False).serialize(compress))
    assert state.hashes.tolist() == sorted(sketch.compact())
    assert sketches.estimate(sketches.union([sketch.compact().serialize(compress)])).ndv == pytest.approx(
        20_000, rel=0.05
    )


def test_theta_intersections():
    with pytest.raises(InvalidArgument, match="theta"):
        sketches.intersection([theta_of(range(10)), b"no sketch"])
    both = sketches.intersection([theta_of(range(1000)), theta_of(range(400, 2000)), theta_of(range(700))])
    assert sketches.estimate(both) == (300, 300, 300, True)
    large = sketches.intersection([theta_of(range(60_000)), theta_of(range(30_000, 90_000))])
    assert sketches.estimate(large).ndv == pytest.approx(30_000, rel=0.1)
    for none in ([], [theta_of([]), theta_of([1])], [theta_of([1]), theta_of([2])]):
        assert sketches.estimate(sketches.intersection(none)) == (0, 0, 0, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no sketch",
        b"\x03\x03\x03\0\0\x1a\xcc\x93\xff\xff\xff\xff",
        bytes(40),
        b"\x02\x03\x03\0\0\x1a\x01\x02" + bytes(8),
    ],
)
def test_bytes_that_are_not_a_sketch_are_refused(data):
    for reader in (sketches.read_theta, sketches.read_kll, sketches.read_frequent):
        with pytest.raises(InvalidArgument, match=r"data: not a .* sketch"):
            reader(data)


# KLL.


def rank_errors(data, values):
    """Errors of the sketch's ranks of some values, as shares."""
    ordered = np.sort(values)
    sketch = datasketches.kll_doubles_sketch.deserialize(data)
    at = np.linspace(0, len(ordered) - 1, 200).astype(int)
    true = np.searchsorted(ordered, ordered[at], "right") / len(ordered)
    below = np.searchsorted(ordered, ordered[at], "left") / len(ordered)
    ranks = np.array([sketch.get_rank(value) for value in ordered[at]])
    return np.maximum(0, np.maximum(ranks - true, below - ranks))


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1023, 1024, 1025, 100_003])
def test_datasketches_reads_and_updates_kll_bytes(count):
    values = np.sort(np.random.default_rng(count).normal(size=count))
    data = sketches.kll(values)
    sketch = datasketches.kll_doubles_sketch.deserialize(data)
    assert (sketch.n, sketch.get_min_value(), sketch.get_max_value()) == (count, values[0], values[-1])
    assert sketch.serialize() == data
    assert rank_errors(data, values).max() <= 1 / sketches.KLL_K
    sketch.update(values)  # the sketch accepts updates
    assert sketch.n == 2 * count


def test_kll_of_counts_equals_kll_of_repeated_values():
    values, counts = np.array([-1.0, 0.5, 7.0]), np.array([1000, 1, 30_000])
    assert sketches.kll(values, counts) == sketches.kll(np.repeat(values, counts))


@given(st.lists(st.lists(st.floats(-1e9, 1e9), max_size=400), max_size=12))
@settings(deadline=None)
def test_merged_kll_stays_within_the_rank_error(parts):
    merged = sketches.merge_kll([sketches.kll(np.sort(np.array(part, np.float64))) for part in parts])
    values = np.array([value for part in parts for value in part], np.float64)
    if not len(values):
        assert sketches.quantiles(merged, [0.5]) == []
        return
    assert datasketches.kll_doubles_sketch.deserialize(merged).n == len(values)
    assert rank_errors(merged, values).max() <= 2 / sketches.KLL_K
    assert sketches.quantiles(merged, [0, 1]) == [values.min(), values.max()]


def test_kll_merge_is_independent_of_the_order():
    generator = np.random.default_rng(3)
    parts = [sketches.kll(np.sort(generator.normal(size=size))) for size in (10, 3000, 70_000, 1)]
    assert sketches.merge_kll(parts) == sketches.merge_kll(parts[::-1])


def test_kll_bytes_of_datasketches_are_read():
    theirs = datasketches.kll_doubles_sketch(200)
    theirs.update(np.arange(50_000.0))
    assert sketches.quantiles(theirs.serialize(), [0.5]) == pytest.approx([25_000], rel=0.03)
    assert sketches.read_kll(datasketches.kll_doubles_sketch(200).serialize()) is None
    theirs = datasketches.kll_doubles_sketch(200)
    theirs.update(4.0)
    assert sketches.quantiles(theirs.serialize(), [0.5]) == [4.0]


def test_histograms_are_equi_depth():
    buckets = sketches.histogram(sketches.kll(np.arange(1_000_000.0)), 20)
    assert len(buckets) == 20
    assert buckets[0][0] == 0
    assert buckets[-1][1] == 999_999
    assert sum(count for _, _, count in buckets) == 1_000_000
    assert all(abs(count - 50_000) <= 10_000 for _, _, count in buckets)
    assert all(left[1] == right[0] for left, right in pairwise(buckets))


def test_histogram_bucket_ends_at_a_heavy_value():
    buckets = sketches.histogram(sketches.kll(np.array([1.0, 2.0, 3.0]), np.array([10, 80, 10])), 10)
    assert buckets == [(1.0, 1.0, 10.0), (1.0, 2.0, 80.0), (2.0, 3.0, 10.0)]


# Frequent items.


def frequent_of(counts, keep=4):
    names, values = list(counts), np.array(list(counts.values()), np.int64)
    places, offset = sketches.heaviest(values, keep)
    return sketches.frequent(
        [names[i].encode() for i in places], (values[places] - offset).tolist(), int(values.sum()), offset
    )


def test_frequent_items_within_the_capacity_are_exact():
    data = frequent_of({"a": 3, "": 9, "é": 1})
    assert sketches.frequent_items(data) == [("", 9, 9, 9), ("a", 3, 3, 3), ("é", 1, 1, 1)]
    assert sketches.frequent_items(data, 1) == [("", 9, 9, 9)]


def test_datasketches_reads_and_merges_frequent_items():
    data = frequent_of({f"v{i}": i + 1 for i in range(150)}, 192)
    theirs = datasketches.frequent_strings_sketch.deserialize(data)
    assert theirs.total_weight == 150 * 151 // 2
    assert theirs.get_estimate("v149") == 150
    theirs.merge(datasketches.frequent_strings_sketch.deserialize(frequent_of({"v149": 5})))
    assert theirs.get_upper_bound("v149") == 155
    purged = datasketches.frequent_strings_sketch.deserialize(frequent_of({"a": 9, "b": 5, "c": 2}, 1))
    assert (purged.get_lower_bound("a"), purged.get_upper_bound("a"), purged.get_upper_bound("z")) == (4, 9, 5)


def test_frequent_items_of_datasketches_are_read():
    theirs = datasketches.frequent_strings_sketch(8)
    for i in range(1000):
        theirs.update(str(i), i)
    for value, count, lower, upper in sketches.frequent_items(theirs.serialize()):
        assert (theirs.get_lower_bound(value), theirs.get_upper_bound(value)) == (lower, upper)
        assert theirs.get_estimate(value) == count
    assert sketches.frequent_items(datasketches.frequent_strings_sketch(8).serialize()) == []


counted = st.dictionaries(st.text(max_size=3), st.integers(1, 50), max_size=12)


@given(st.lists(counted, max_size=6))
@settings(deadline=None)
def test_items_of_few_sketches_are_read_as_those_of_many(parts):
    blobs = [frequent_of(part) if part else sketches.frequent([], [], 0, 0) for part in parts]
    few, many = (
        (sorted(zip(items.to_pylist(), weights.tolist(), strict=True)), total, offset)
        for items, weights, total, offset in (_few_items(blobs), _all_items(blobs))
    )
    assert few == many


@given(st.lists(counted, max_size=6))
@settings(deadline=None)
def test_true_counts_stay_within_the_bounds_after_merges(parts):
    """Bounds hold for kept items, and for all others by the offset, also after a merge of merges."""
    blobs = [frequent_of(part) if part else sketches.frequent([], [], 0, 0) for part in parts]
    merged = sketches.merge_frequent([sketches.merge_frequent(blobs[:3], 4), *blobs[3:]], 4)
    weights, total, offset = sketches.read_frequent(merged)
    true = {}
    for part in parts:
        for value, count in part.items():
            true[value] = true.get(value, 0) + count
    assert total == sum(true.values())
    assert len(weights) <= 4
    for value, count in true.items():
        lower = weights.get(value, 0)
        assert lower <= count <= lower + offset


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 20))
def test_heaviest_keeps_the_largest_counts(counts, keep):
    places, offset = sketches.heaviest(np.array(counts), keep)
    ordered = sorted(counts, reverse=True)
    assert offset == (ordered[keep] if len(counts) > keep else 0)
    assert sorted((counts[i] for i in places), reverse=True) == [count for count in ordered[:keep] if count > offset]


# HyperLogLog of Trino.


def test_trino_hyperloglog_is_read_and_estimated():
    golden = Path(__file__).parents[2] / "golden/airlift_hll.jsonl"
    for vector in map(json.loads, golden.read_text().splitlines()):
        data = base64.b64decode(vector["dense_base64"])
        assert HyperLogLog.read(data).serialize() == data
        assert estimate(data) == pytest.approx(vector["n"], rel=0.03)
    assert estimate(b"\x02\x0c\x02\x00" + bytes(8)) == pytest.approx(2)
    for wrong in (b"", b"\x03\x0c", data[:-1], b"\x03\x0b" + data[2:], b"\x02\x0c\x02\x00", b"\x02\x0c"):
        with pytest.raises(ValueError, match="must"):
            estimate(wrong)
