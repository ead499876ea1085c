"""The sketch of some files, found in the hashes of all, is the union of their sketches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.planning import file_keys, merged_sketches
from flight_server.planning.merged_sketches import MergedSketches
from store.model import sketches


def sketch(seed: int, size: int) -> bytes:
    """The sketch of `size` values out of those that files share."""
    values = np.random.default_rng(seed).integers(1, 1 << 63, 60_000, np.uint64)
    return sketches.theta(values[:size])


@pytest.mark.parametrize(("bits", "share"), [(0, 0.0), (0, 1.0), (8, 0.0)], ids=["in order", "of few", "by bits"])
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_estimates_are_those_of_the_union(bits: int, share: float, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 50, 4096, 5000, 60_000]), min_size=2, max_size=6))
    seeds = data.draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)))
    stored = {at: sketch(seed, size) for at, (seed, size) in enumerate(zip(seeds, sizes, strict=True))}
    chosen = sorted(data.draw(st.sets(st.sampled_from(sorted(stored)))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_sketches, "_MAX_BITS", bits)
        patch.setattr(merged_sketches, "_SMALL_SHARE", share)
        merged = MergedSketches(len(sizes), stored)
        found = merged.estimate(np.array(chosen, np.int64))
    assert found == sketches.estimate(sketches.union([stored[at] for at in chosen]))


def test_a_file_without_a_sketch_is_not_known() -> None:
    merged = MergedSketches(3, {1: sketch(0, 10)})
    assert merged.known.tolist() == [False, True, False]
    assert merged.estimate(np.array([1])).ndv == 10


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_files_that_may_have_hashes_are_those_that_their_sketches_tell(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 50, 5000]), min_size=1, max_size=5))
    stored = {at: sketch(at % 2, size) for at, size in enumerate(sizes) if at != 1}
    kept = np.concatenate([sketches.read_theta(each).hashes[:60] for each in stored.values()])
    wanted = np.unique(
        np.array(data.draw(st.lists(st.sampled_from([5, 1 << 62, *kept.tolist()]), max_size=3)), np.uint64)
    )
    merged = MergedSketches(len(sizes), stored)
    expected = [at not in stored or file_keys._may_have(stored[at], wanted) for at in range(len(sizes))]
    assert merged.may_have(wanted).tolist() == expected
