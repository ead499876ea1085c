"""The distance of two distributions, by KLL sketches: Kolmogorov–Smirnov, and a second measure of their tails.

Kolmogorov–Smirnov weighs a percent of the rows alike wherever they lie, so a few of them may go any distance unnoticed.
Beyond the far fences of the earlier distribution (three times its interquartile range from its quartiles) a difference
of the shares is therefore divided by the standard deviation of a share there: 3 % of new rows far out are 0.11, 9 %
are 0.21, all rows are 1, after the error of the sketches.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from store.model.sketches import is_partial, read_kll

FENCE: Final = 3.0  # interquartile ranges from a quartile to its far fence


class Distance(NamedTuple):
    """The distance of two distributions.

    Attributes:
        shares: The greatest difference of two cumulative distributions, in [0, 1].
        error: Its error bound.
        tails: The greatest weighted difference beyond a fence, in [0, 1], each difference less its error.
        beyond: The shares of the rows beyond that fence before and after.
    """

    shares: float
    error: float
    tails: float = 0.0
    beyond: tuple[float, float] = (0.0, 0.0)

    @property
    def value(self) -> float:
        """The greater of both measures."""
        return max(self.shares, self.tails)

    def least(self, unseen: float) -> float:
        """The least value possible if a share of the rows is in no sketch; the tails are less their error already."""
        return max(0.0, self.shares - self.error - unseen, self.tails if not unseen else 0.0)

    def most(self, unseen: float) -> float:
        """The greatest value possible if a share of the rows is in no sketch: all of them may lie beyond a fence."""
        gap = abs(self.beyond[0] - self.beyond[1]) + unseen
        tails = tail(gap, (sum(self.beyond) + unseen) / 2)
        return min(1.0, max(self.shares + self.error + unseen, float(tails)))


def distance(before: bytes, after: bytes) -> Distance | None:
    """The distance of two distributions, given as KLL sketches of doubles; None if a sketch is empty."""
    one, other = read_kll(before), read_kll(after)
    if one is None or other is None:
        return None
    points = np.union1d(one.values, other.values)
    shares = []
    for state in (one, other):
        cumulative = np.concatenate([[0], np.cumsum(state.weights)])
        shares.append(cumulative[np.searchsorted(state.values, points, "right")] / cumulative[-1])
    gaps = np.abs(shares[0] - shares[1])
    errors = _rank_error(before, one.count), _rank_error(after, other.count)
    found = Distance(float(gaps.max()), sum(errors))
    low, high = points[np.searchsorted(shares[0], [0.25, 0.75])].tolist()  # floats, which overflow without a warning
    reach = FENCE * (high - low)
    for above, fence in ((False, low - reach), (True, high + reach)):
        # a share above a point begins with the next: the point before the first beyond the fence counts too
        place = int(np.searchsorted(points, fence, "right" if above else "left"))
        start = max(place - 1, 0) if above else 0
        part = slice(start, None if above else place)
        if place < len(points) if above else place:
            # extremes are exact: a sketch without values beyond the fence has no error there
            error = sum(
                each
                for each, state in zip(errors, (one, other), strict=True)
                if (state.high > fence if above else state.low < fence)
            )
            weighed = tail(np.maximum(gaps[part] - error, 0.0), (shares[0][part] + shares[1][part]) / 2)
            if weighed.max() > found.tails:
                at = start + int(weighed.argmax())
                beyond = [float(1 - share[at] if above else share[at]) for share in shares]
                found = found._replace(tails=float(weighed.max()), beyond=(beyond[0], beyond[1]))
    return found


def tail(gaps: Any, shares: Any) -> npt.NDArray[np.float64]:
    """Differences of two shares, weighed by the deviation of a share.

    Args:
        gaps: Differences, shape (n,).
        shares: The mean of both shares, shape (n,).
    """
    deviation = np.sqrt(np.maximum(shares * (1 - shares), 1e-18))
    weighed: npt.NDArray[np.float64] = np.minimum(gaps / (2 * deviation), 1.0)
    return weighed


def _rank_error(data: bytes, count: int) -> float:
    """The rank error of a sketch as a share of its values: 0 while it holds all of them, 2 / k for a merged one."""
    (k,) = struct.unpack_from("<H", data, 4)
    return 0.0 if count <= k else 2.0 / k


def unseen(data: bytes, params: str | None) -> float:
    """The largest share, in [0, 1], of a column's values that a sketch may lack: 0 if of all rows, 1 if unknown.

    Args:
        data: A serialized KLL sketch.
        params: Its parameters; a sketch of some of the rows has `rows` (the total) and `rows_seen`.
    """
    if not is_partial(params):
        return 0.0
    told, sketch = json.loads(params or "{}"), read_kll(data)
    rows, seen = told.get("rows"), told.get("rows_seen")
    if sketch is None or type(rows) is not int or type(seen) is not int or not 0 <= seen <= rows:
        return 1.0
    return (rows - seen) / (rows - seen + sketch.count)
