"""Sketches: the kernels of `store.model.sketches` beside the datasketches package, per operation.

`python -m pytest tests/benchmarks/bench_sketches.py -m benchmark -s` prints the table of capture/README.md.
"""

import statistics
import time

import datasketches
import numpy as np
import pytest

from store.model import sketches
from store.model.sketches import murmur3

pytestmark = pytest.mark.benchmark

ROWS, PARTS, ROUNDS = 1_000_000, 25, 5


def theta_by_library(values):
    sketch = datasketches.update_theta_sketch(12)
    for value in values.tolist():  # it takes one value a call
        sketch.update(value)
    return sketch.compact().serialize()


def compact(data):
    return datasketches.compact_theta_sketch.deserialize(data)


def union_by_library(many):
    union = datasketches.theta_union(12)
    for data in many:
        union.update(compact(data))
    return union.get_result().serialize()


def intersection_by_library(many):
    common = datasketches.theta_intersection()
    for data in many:
        common.update(compact(data))
    return common.get_result().serialize()


def kll_by_library(values):
    sketch = datasketches.kll_doubles_sketch(512)
    sketch.update(values)
    return sketch.serialize()


def merge_kll_by_library(many):
    merged = datasketches.kll_doubles_sketch(512)
    for data in many:
        merged.merge(datasketches.kll_doubles_sketch.deserialize(data))
    return merged.serialize()


def frequent_by_library(texts):
    sketch = datasketches.frequent_strings_sketch(8)
    for text in texts:
        sketch.update(text)
    return sketch.serialize()


def frequent_by_kernel(texts):
    counts = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    items, weights = list(counts), np.array(list(counts.values()))
    places, offset = sketches.heaviest(weights)
    kept = [int(weights[at]) - offset for at in places]
    return sketches.frequent([items[at].encode() for at in places], kept, int(weights.sum()), offset)


def merge_frequent_by_library(many):
    merged = datasketches.frequent_strings_sketch(8)
    for data in many:
        merged.merge(datasketches.frequent_strings_sketch.deserialize(data))
    return merged.serialize()


def read_by_library(data):
    return np.fromiter(compact(data), np.uint64)


def milliseconds(function, argument):
    took = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        function(argument)
        took.append(time.perf_counter() - started)
    return 1000 * statistics.median(took)


def test_kernels_beside_the_library(capsys):
    random = np.random.default_rng(1)
    values = random.integers(0, 1 << 40, ROWS)
    parts = [sketches.theta(murmur3.hash_longs(part)) for part in np.array_split(values, PARTS)]
    doubles = np.sort(random.random(ROWS))
    quantiles = [sketches.kll(np.sort(part)) for part in np.array_split(random.permutation(doubles), PARTS)]
    texts = [f"word {n}" for n in random.zipf(1.3, ROWS // 10) % 10_000]
    few = [frequent_by_kernel(texts[at::PARTS]) for at in range(PARTS)]
    rows = [
        ("theta of 1,000,000 integers", lambda v: sketches.theta(murmur3.hash_longs(v)), theta_by_library, values),
        ("theta: union of 25", sketches.union, union_by_library, parts),
        ("theta: intersection of 25", sketches.intersection, intersection_by_library, parts),
        ("theta: read one", sketches.read_theta, read_by_library, parts[0]),
        ("KLL of 1,000,000 sorted doubles", sketches.kll, kll_by_library, doubles),
        ("KLL: merge of 25", sketches.merge_kll, merge_kll_by_library, quantiles),
        ("frequent items of 100,000 texts", frequent_by_kernel, frequent_by_library, texts),
        ("frequent items: merge of 25", sketches.merge_frequent, merge_frequent_by_library, few),
    ]
    assert sketches.union(parts) == union_by_library(parts), "the same bytes"
    assert merge_kll_by_library(quantiles) != merge_kll_by_library(quantiles), "why KLL is merged by a kernel"
    with capsys.disabled():
        print("\n| operation | kernel, ms | datasketches, ms |\n|---|---|---|")
        for name, kernel, library, argument in rows:
            print(f"| {name} | {milliseconds(kernel, argument):.2f} | {milliseconds(library, argument):.2f} |")
