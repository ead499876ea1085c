"""The targets of a listing so far, a bit each: listings have millions of rows, and must know which they had before."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.model.puts import IDENTITY, codes


class Places(NamedTuple):
    """The bit of each row: the number of its file, of a word among the file's words, and the mask in that word."""

    file: npt.NDArray[np.int64]
    word: npt.NDArray[np.int64]
    mask: npt.NDArray[np.uint64]


class TargetBits:
    """A set of targets of one family.

    Args:
        family: A flight of `BY_SPAN`.
        files: Numbers of files by what identifies them, which several sets may share; none at first.
    """

    def __init__(self, family: str, files: dict[str, int] | None = None):
        self._file, *self._rest = IDENTITY[family]
        self._files: dict[str, int] = {} if files is None else files  # path or storage id → number
        self._last: tuple[pa.Array, npt.NDArray[np.int64]] = pa.array([], pa.string()), np.zeros(0, np.int64)
        self._bits: dict[tuple[Any, ...], int] = {}  # rest of a target's identity → number of its bit
        self._words: npt.NDArray[np.uint64] = np.zeros((0, 1), np.uint64)

    def places(self, rows: pa.Table) -> Places:
        """The places of rows with all columns of the identity; of targets in the set or not."""
        files = rows[self._file].combine_chunks().dictionary_encode()
        rests = pa.array(codes(rows, self._rest)).dictionary_encode()
        at = rests.indices.to_numpy()
        first: npt.NDArray[np.int64] = np.empty(len(rests.dictionary), np.int64)
        first[at[::-1]] = np.arange(len(at))[::-1]  # of equal indices the last one written stays
        columns = (rows[name].take(pa.array(first)).to_pylist() for name in self._rest)
        if not files.dictionary.equals(self._last[0]):  # the rows of other columns often are about the same files
            self._last = files.dictionary, _numbers(self._files, files.dictionary.to_pylist())
        numbers = self._last[1]
        bits = _numbers(self._bits, list(zip(*columns, strict=True)) or [()])[at]
        size = (len(self._files), len(self._bits) // 64 + 1)
        if size[0] > len(self._words) or size[1] > self._words.shape[1]:
            words: npt.NDArray[np.uint64] = np.zeros((max(size[0], 2 * len(self._words)), size[1]), np.uint64)
            words[: len(self._words), : self._words.shape[1]] = self._words
            self._words = words
        return Places(numbers[files.indices.to_numpy()], bits >> 6, np.uint64(1) << (bits & 63).astype(np.uint64))

    def has(self, places: Places) -> npt.NDArray[np.bool_]:
        """True for each place whose target is in the set."""
        return (self._words[places.file, places.word] & places.mask) != 0

    def add(self, places: Places) -> None:
        """Adds the targets at places."""
        np.bitwise_or.at(self._words, (places.file, places.word), places.mask)

    def files(self) -> pa.Array:
        """The files of all places (string), each once."""
        return pa.array(self._files, pa.string())

    def __bool__(self) -> bool:
        return bool(self._files)

    def __contains__(self, target: tuple[Any, ...]) -> bool:
        """True if a target, given by its whole identity, is in the set."""
        file, bit = self._files.get(target[0]), self._bits.get(target[1:])
        return file is not None and bit is not None and bool(self._words[file, bit >> 6] >> np.uint64(bit & 63) & 1)


def _numbers(known: dict[Any, int], keys: list[Any]) -> npt.NDArray[np.int64]:
    """The numbers of keys, which get new ones where they are not known."""
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)
