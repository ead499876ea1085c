"""Numbers of rows for which a condition is true, in each of many files: the least, the greatest and a guess.

The numbers of single comparisons come from counts and bounds (`file_counts`). They are combined by the bounds of
Fréchet: of two sets among n rows, at least their sizes' sum less n, and at most the smaller size, are in
both; at least the larger size, and at most the sum, in one of them. Comparisons of one column are true for its values
only, so n is the number of these. The guess takes the parts for independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from store.model.predicates.plain_conditions import AnyOf, Comparison, Constant, Every, Plain
from store.model.predicates.tree import Op

Counts: TypeAlias = npt.NDArray[np.int64]
Guesses: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Numbers of rows, one of each kind for every file.

    Attributes:
        low: The least number, certain.
        high: The greatest number, certain.
        guess: A number between them.
    """

    low: Counts
    high: Counts
    guess: Guesses

    def within(self, most: Counts) -> Rows:
        """The same numbers, limited to what is possible among `most` rows."""
        high = np.clip(self.high, 0, most)
        low = np.clip(self.low, 0, high)
        guess = np.where(np.isfinite(self.guess), self.guess, (low + high) / 2)
        return Rows(low, high, np.clip(guess, low, high))


def none_of(rows: Counts) -> Rows:
    """No row of any file."""
    zeros: Counts = np.zeros(len(rows), np.int64)
    return Rows(zeros, zeros, zeros.astype(np.float64))


def all_of(rows: Counts) -> Rows:
    """Every row of every file."""
    return Rows(rows, rows, rows.astype(np.float64))


def any_of(rows: Counts) -> Rows:
    """Any number of rows, as nothing is known."""
    return Rows(np.zeros(len(rows), np.int64), rows, rows / 2)


def satisfying(node: Plain, rows: Counts, of_test: Callable[[Comparison], Rows], values: Mapping[int, Counts]) -> Rows:
    """The numbers of rows that satisfy a condition.

    Args:
        rows: Rows of each file.
        of_test: The numbers of rows that satisfy a comparison.
        values: Column id → rows of each file that are not null in the column, at most.
    """
    match node:
        case Every(children) | AnyOf(children):
            joined = _both if isinstance(node, Every) else _either
            return joined(_by_column(children, rows, of_test, values, joined), rows)
        case Comparison():
            return of_test(node).within(rows)
    return none_of(rows) if node is Constant.NEVER else any_of(rows)


def _by_column(
    children: Sequence[Plain],
    rows: Counts,
    of_test: Callable[[Comparison], Rows],
    values: Mapping[int, Counts],
    joined: Callable[[Sequence[Rows], Counts], Rows],
) -> list[Rows]:
    """The numbers of each child, those of comparisons of one column as one."""
    found: list[Rows] = []
    compared: dict[int, list[Rows]] = {}
    for child in children:
        numbers = satisfying(child, rows, of_test, values)
        if isinstance(child, Comparison) and child.op not in (Op.IS_NULL, Op.IS_NOT_NULL):
            compared.setdefault(child.column.id, []).append(numbers)
        else:
            found.append(numbers)
    return found + [joined(numbers, values.get(id, rows)) for id, numbers in compared.items()]


def _both(parts: Sequence[Rows], among: Counts) -> Rows:
    """The rows that are in all parts, which are among so many rows."""
    if not parts:
        return all_of(among)
    low = np.sum([part.low for part in parts], axis=0) - (len(parts) - 1) * among
    high = np.minimum.reduce([part.high for part in parts])
    share = np.prod([part.guess / np.maximum(among, 1) for part in parts], axis=0)
    return Rows(np.maximum(low, 0), high, share * among).within(among)


def _either(parts: Sequence[Rows], among: Counts) -> Rows:
    """The rows that are in one of the parts, which are among so many rows."""
    if not parts:
        return none_of(among)
    low = np.maximum.reduce([part.low for part in parts])
    high = np.sum([np.minimum(part.high, among) for part in parts], axis=0)
    share = 1 - np.prod([1 - part.guess / np.maximum(among, 1) for part in parts], axis=0)
    return Rows(low, np.minimum(high, among), share * among).within(among)
