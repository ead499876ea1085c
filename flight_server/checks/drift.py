"""The distance of two distributions: Kolmogorov–Smirnov over KLL sketches."""

from __future__ import annotations

import json
import struct

import numpy as np

from store.model.sketches import is_partial, read_kll


def distance(before: bytes, after: bytes) -> tuple[float, float] | None:
    """The greatest difference of two cumulative distributions.

    Args:
        before, after: Serialized KLL sketches of doubles.

    Returns:
        The distance in [0, 1] and its error bound; None if a sketch is empty.
    """
    one, other = read_kll(before), read_kll(after)
    if one is None or other is None:
        return None
    points = np.union1d(one.values, other.values)
    shares = []
    for state in (one, other):
        cumulative = np.concatenate([[0], np.cumsum(state.weights)])
        shares.append(cumulative[np.searchsorted(state.values, points, "right")] / cumulative[-1])
    gap = float(np.max(np.abs(shares[0] - shares[1])))
    return gap, _rank_error(before, one.count) + _rank_error(after, other.count)


def _rank_error(data: bytes, count: int) -> float:
    """The rank error of a sketch as a share of its values: 0 while it holds all of them, 2 / k for a merged one."""
    (k,) = struct.unpack_from("<H", data, 4)
    return 0.0 if count <= k else 2.0 / k


def unseen(data: bytes, params: str | None) -> float:
    """The largest share of a column's values that may be missing from a sketch.

    Args:
        data: A serialized KLL sketch.
        params: Its parameters; a sketch of some of the rows has `rows` (the total) and `rows_seen`.

    Returns:
        A share in [0, 1]: 0 for a sketch of all rows, 1 if the total is unknown.
    """
    if not is_partial(params):
        return 0.0
    told, sketch = json.loads(params or "{}"), read_kll(data)
    rows, seen = told.get("rows"), told.get("rows_seen")
    if sketch is None or type(rows) is not int or type(seen) is not int or not 0 <= seen <= rows:
        return 1.0
    return (rows - seen) / (rows - seen + sketch.count)
