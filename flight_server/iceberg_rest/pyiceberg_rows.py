"""The rows that pyiceberg finds in files that lack a column of the condition, such as that of a partition.

pyiceberg 0.12 takes the value of such a column from the partition, but only if the column is among those selected; else
it takes null, and null satisfies `not-eq` and whatever is negated. In a file that has the column a comparison with null
selects no row. A plan is right if both readings select the same rows of each file that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flight_server.iceberg_rest.expressions import OPPOSITES, Find, condition
from store.model.errors import InvalidArgument
from store.model.logical_types import LogicalType
from store.model.predicates.arrow import to_mask
from store.model.predicates.bounds import TYPE_COLUMN
from store.model.predicates.tree import And, Leaf, Node, Not, Or

_FALSE, _UNKNOWN, _TRUE = 0, 1, 2  # AND is the least of them, OR the greatest
_BOUNDS: Final = pa.schema([("min", pa.string()), (TYPE_COLUMN, pa.string())])


@dataclass(frozen=True)
class Lacking:
    """A column that files lack.

    Attributes:
        values: For each group of files its value as canonical text (utf8), or null.
        is_shown: It is among the columns selected.
    """

    type: LogicalType | None
    values: pa.Array
    is_shown: bool


@dataclass(frozen=True)
class Rows:
    """What a condition selects of each group of files.

    Attributes:
        none: No row is to be found in these groups, whatever pyiceberg would find.
        wrong: pyiceberg would find other rows in these groups than there are.
        columns: The columns of the condition because of which it would.
    """

    none: np.ndarray
    wrong: np.ndarray
    columns: frozenset[str]


def rows_of(filter: Any, find: Find, lacking: Mapping[int, Lacking], groups: int) -> Rows:
    """The rows of groups of files for which a filter holds.

    Args:
        filter: A filter that `expressions.condition` reads.
        lacking: Id of a column → its values in the files.

    Raises:
        InvalidArgument: The filter is nested too deeply.
    """
    reading = _Reading(find, lacking, groups)
    try:
        found = reading.of(filter, negated=False)
    except RecursionError:
        raise InvalidArgument("filter: nested too deeply") from None
    wrong = found.differs & (found.truth != _FALSE)
    return Rows(
        found.truth == _FALSE, wrong, frozenset(n for n, where in reading.differing.items() if any(where & wrong))
    )


@dataclass(frozen=True)
class _Truth:
    """Truth of a part of the condition for each group.

    Attributes:
        truth: In a file that has the columns.
        seen: As pyiceberg takes it.
        differs: The two may differ for a row.
    """

    truth: np.ndarray
    seen: np.ndarray
    differs: np.ndarray


class _Reading:
    def __init__(self, find: Find, lacking: Mapping[int, Lacking], groups: int):
        self._find, self._lacking, self._groups = find, lacking, groups
        self.differing: dict[str, np.ndarray] = {}  # name of a column → groups in which one of its tests differs

    def of(self, filter: Any, *, negated: bool) -> _Truth:
        match filter:
            case bool() | "true" | "false" | {"type": "true" | "false"}:
                is_true = condition(filter, self._find) is not negated
                return self._same(_TRUE if is_true else _FALSE)
            case {"type": "and" | "or" as word, "left": left, "right": right}:
                sides = self.of(left, negated=negated), self.of(right, negated=negated)
                return _joined(*sides, np.minimum if (word == "and") is not negated else np.maximum)
            case {"type": "not", "child": child}:
                return self.of(child, negated=not negated)
        return self._test(filter, negated=negated)

    def _same(self, truth: int) -> _Truth:
        """A part that is the same for all groups and both readings."""
        whole: np.ndarray = np.full(self._groups, truth, np.int8)
        return _Truth(whole, whole, np.zeros(self._groups, np.bool_))

    def _test(self, test: Mapping[str, Any], *, negated: bool) -> _Truth:
        kind, term = OPPOSITES.get(test["type"], test["type"]), test["term"]
        negated = negated is (kind == test["type"])
        name = term["term"] if isinstance(term, dict) else term
        column = self._lacking.get(self._find(name).id)
        if column is None:
            return self._same(_UNKNOWN)
        is_null = column.values.is_null().to_numpy(zero_copy_only=False)
        plain = {**test, "type": kind}
        truth = np.where(is_null, _of_null(kind, negated), self._of_values(plain, column, negated))
        if column.is_shown:
            seen = np.where(is_null, _as_none(kind, negated), truth)
        else:
            seen = np.full(self._groups, _as_none(kind, negated), np.int8)
        differs = truth != seen
        self.differing[name] = self.differing.get(name, np.zeros(self._groups, np.bool_)) | differs
        return _Truth(truth, seen, differs)

    def _of_values(self, test: Mapping[str, Any], column: Lacking, negated: bool) -> np.ndarray:
        node = condition(test, self._find)
        if isinstance(node, bool) or column.type is None:
            # a filter holds for every file where it is not decided
            return np.full(self._groups, _UNKNOWN, np.int8)
        types = pa.repeat(pa.scalar(column.type.text, pa.string()), self._groups)
        mask = to_mask(_on_bounds(node), _BOUNDS)(pa.record_batch([column.values, types], schema=_BOUNDS))
        truth = mask.fill_null(False).to_numpy(zero_copy_only=False) != negated
        known = mask.is_valid().to_numpy(zero_copy_only=False)
        return np.where(known, np.where(truth, _TRUE, _FALSE), _UNKNOWN)


def _joined(left: _Truth, right: _Truth, join: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> _Truth:
    truth, seen = join(left.truth, right.truth), join(left.seen, right.seen)
    decided = (truth == seen) & (truth != _UNKNOWN)
    return _Truth(truth, seen, (left.differs | right.differs) & ~decided)


def _of_null(kind: str, negated: bool) -> int:
    """Truth of a test of a null in a file, by Arrow's kernels, which pyiceberg calls."""
    if kind == "is-null":
        return _FALSE if negated else _TRUE
    return _TRUE if kind == "in" and negated else _FALSE


def _as_none(kind: str, negated: bool) -> int:
    """Truth of a test of a column that is null because neither the file nor the partition has a value for it."""
    return _TRUE if (kind == "is-null") is not negated else _FALSE


def _on_bounds(node: Node) -> Node:
    """The condition on a column as one on bounds, which are compared by their logical type."""
    match node:
        case And(children) | Or(children):
            return type(node)(tuple(map(_on_bounds, children)))
        case Not(child):
            return Not(_on_bounds(child))
        case Leaf(_, op, values):
            return Leaf("min", op, values)
    raise AssertionError(node)
