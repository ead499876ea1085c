"""The union of theta sketches of any of a column's files, without reading the sketches of all of them each time.

The union of some sketches has the least of their thetas, and the 4096 least of their hashes below it. So the hashes of
all files are kept sorted: the union of many files is found near the beginning of that order, the union of few from
their own hashes. Where most files have the same few hashes, a bit for each file and hash takes less memory than these,
and the union is the bits of the files together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from store.model import sketches
from store.model.sketches import THETA_K, Estimate, Theta, read_theta, write_theta

_FIRST: Final = 4 * THETA_K  # hashes of the sorted order that are looked at first
_SMALL_SHARE: Final = 1 / 16  # of all hashes: fewer are sorted anew
_MAX_BITS: Final = 8  # for each hash, of those for each file and distinct hash
_MAX_THETA: Final = np.uint64((1 << 63) - 1)


class MergedSketches:
    """The theta sketches of one column in the files of a listing.

    Args:
        files: Number of files.
        data: Index of a file → its sketch.
    """

    def __init__(self, files: int, data: Mapping[int, bytes]):
        states = {at: read_theta(each) for at, each in data.items()}
        self.known: npt.NDArray[np.bool_] = np.zeros(files, np.bool_)
        """Mask of the files that have a sketch."""
        self._thetas = np.full(files, _MAX_THETA)
        sizes: npt.NDArray[np.int64] = np.zeros(files, np.int64)
        for at, state in states.items():
            self.known[at] = True
            self._thetas[at] = state.theta
            sizes[at] = len(state.hashes)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        hashes = [states[at].hashes for at in sorted(states)]
        self._hashes = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
        order = np.argsort(self._hashes, kind="stable")
        self._ascending = self._hashes[order]
        self._owners: npt.NDArray[np.int32] = np.repeat(np.arange(files, dtype=np.int32), sizes)[order]
        self._distinct = _runs(self._ascending)
        self._bits = self._as_bits(files)

    def _as_bits(self, files: int) -> npt.NDArray[np.uint8] | None:
        """For each file a bit for each distinct hash; None if they would take more memory than the hashes."""
        if files * len(self._distinct) > _MAX_BITS * len(self._hashes) or not len(self._distinct):
            self._distinct = self._distinct[:0]
            return None
        has: npt.NDArray[np.bool_] = np.zeros((files, len(self._distinct)), np.bool_)
        has[self._owners, np.searchsorted(self._distinct, self._ascending)] = True
        return np.packbits(has, axis=1)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        arrays = (self.known, self._thetas, self._starts, self._hashes, self._ascending, self._owners, self._distinct)
        return sum(each.nbytes for each in arrays) + (0 if self._bits is None else self._bits.nbytes)

    def estimate(self, files: npt.NDArray[np.int64]) -> Estimate:
        """The distinct values of some files, all of them `known`.

        Args:
            files: Indexes, ascending.
        """
        theta: np.uint64 = np.min(self._thetas[files], initial=_MAX_THETA)
        if self._bits is not None:
            found = np.unpackbits(np.bitwise_or.reduce(self._bits[files], axis=0), count=len(self._distinct))
            hashes = self._distinct[found.astype(np.bool_)]
        elif np.sum(self._starts[files + 1] - self._starts[files]) <= len(self._hashes) * _SMALL_SHARE:
            hashes = self._of_few(files)
        else:
            hashes = self._of_many(files, theta)
        hashes = hashes[: np.searchsorted(hashes, theta)]
        if len(hashes) > THETA_K:
            theta, hashes = hashes[THETA_K], hashes[:THETA_K]
        if theta == _MAX_THETA:
            count = float(len(hashes))
            return Estimate(count, count, count, True)
        return sketches.estimate(write_theta(Theta(int(theta), hashes)))

    def may_have(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Mask of the files whose sketch does not show that their values have none of the hashes.

        Args:
            hashes: Ascending.
        """
        found: npt.NDArray[np.bool_] = ~self.known
        if len(hashes):
            found |= hashes[-1] >= self._thetas
        starts = np.atleast_1d(np.searchsorted(self._ascending, hashes, "left"))
        ends = np.atleast_1d(np.searchsorted(self._ascending, hashes, "right"))
        for at in range(len(hashes)):
            found[self._owners[starts[at] : ends[at]]] = True
        return found

    def _of_few(self, files: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        parts = [self._hashes[self._starts[at] : self._starts[at + 1]] for at in files.tolist()]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)

    def _of_many(self, files: npt.NDArray[np.int64], theta: np.uint64) -> npt.NDArray[np.uint64]:
        """The least distinct hashes of the files, ascending: more than 4096, or all below theta."""
        wanted: npt.NDArray[np.bool_] = np.zeros(len(self.known), np.bool_)
        wanted[files] = True
        is_all = len(files) == np.count_nonzero(self.known)
        found: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        start, length = 0, _FIRST
        while start < len(self._ascending) and len(found) <= THETA_K:
            block = self._ascending[start : start + length]
            if not is_all:
                block = block[wanted[self._owners[start : start + length]]]
            fresh = np.concatenate([found[-1:], block])
            found = np.concatenate([found, block[fresh[1:] != fresh[:-1]] if len(found) else _runs(block)])
            if len(block) and block[-1] >= theta:
                break
            start, length = start + length, 2 * length
        return found


def _runs(ascending: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The distinct values of an ascending array."""
    return ascending[np.concatenate([[True], ascending[1:] != ascending[:-1]])] if len(ascending) else ascending
