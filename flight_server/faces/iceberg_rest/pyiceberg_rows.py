"""The rows that pyiceberg finds in files that lack a column of the condition, such as that of a partition.

pyiceberg 0.12 takes the value of such a column from the partition, but only if the column is among those selected; else
it takes null, and null satisfies `not-eq` and whatever is negated. In a file that has the column a comparison with null
selects no row. A plan is right if both readings select the same rows of each file that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flight_server.faces.iceberg_rest.expressions import OPPOSITES, Find, condition, joined
from store.model.errors import InvalidArgument
from store.model.logical_types import LogicalType
from store.model.predicates.arrow import to_mask
from store.model.predicates.bounds import TYPE_COLUMN
from store.model.predicates.tree import And, Leaf, Node, Not, Op, Or

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


class Rows:
    """The rows of groups of files for which a filter holds: those that there are, and those that pyiceberg finds.

    Attributes:
        none: Of each group whether it has none, whatever pyiceberg would find.
        doubtful: Of each group whether the two may differ.

    Args:
        filter: A filter that `expressions.condition` reads.
        lacking: Id of a column → its values in the files.
        groups: Number of the groups.

    Raises:
        InvalidArgument: The filter is nested too deeply.
    """

    def __init__(self, filter: Any, find: Find, lacking: Mapping[int, Lacking], groups: int):
        self._find, self._lacking, self._groups = find, lacking, groups
        self._tests: list[_OfLacking] = []
        try:
            self._part = self._read(filter, negated=False)
            truth, _, differs = self._truth(self._part)
        except RecursionError:
            raise InvalidArgument("filter: nested too deeply") from None
        self.none = truth == _FALSE
        self.doubtful = differs & ~self.none

    def columns(self, groups: np.ndarray) -> set[str]:
        """The columns because of which the rows of some groups, given as a mask, differ."""
        return {test.name for test in self._tests if (test.differs & groups).any()}

    def differences(self) -> list[tuple[np.ndarray, Node | bool]]:
        """Masks of the doubtful groups, together all of them, each with a condition that is true for the rows that
        only one of the two has; True if it may be any row.
        """
        told = np.stack([part for test in self._tests for part in (test.truth, test.seen)], axis=1)
        found = []
        for row in np.unique(told[self.doubtful], axis=0):
            groups = (told == row).all(axis=1) & self.doubtful
            group = int(groups.argmax())
            (is_there, is_not_there), (is_seen, is_not_seen) = (
                self._condition(self._part, group, seen=seen) for seen in (False, True)
            )
            sides = [
                joined([is_there, is_not_seen], is_and=True),
                joined([is_seen, is_not_there], is_and=True),
            ]
            found.append((groups, joined(sides, is_and=False)))
        return found

    # The filter as parts, with NOT moved down to its tests.

    def _read(self, filter: Any, *, negated: bool) -> _Part:
        match filter:
            case bool() | "true" | "false" | {"type": "true" | "false"}:
                return condition(filter, self._find) is not negated
            case {"type": "and" | "or" as word, "left": left, "right": right}:
                sides = self._read(left, negated=negated), self._read(right, negated=negated)
                return _Join((word == "and") is not negated, *sides)
            case {"type": "not", "child": child}:
                return self._read(child, negated=not negated)
        kind, term = OPPOSITES.get(filter["type"], filter["type"]), filter["term"]
        negated = negated is (kind == filter["type"])
        name = term["term"] if isinstance(term, dict) else term
        column = self._lacking.get(self._find(name).id)
        plain = {**filter, "type": kind}
        if column is None:
            is_false = self._own(plain, not negated)
            return _OfOwn(self._own(plain, negated), joined([is_false, Leaf(name, Op.IS_NULL)], is_and=False))
        test = self._of_lacking(plain, name, column, negated)
        self._tests.append(test)
        return test

    def _own(self, test: Mapping[str, Any], negated: bool) -> Node | bool:
        asked = {"type": "not", "child": test} if negated else test
        return condition(asked, self._find, null_differs=False)

    def _of_lacking(self, test: Mapping[str, Any], name: str, column: Lacking, negated: bool) -> _OfLacking:
        kind = test["type"]
        is_null = column.values.is_null().to_numpy(zero_copy_only=False)
        truth = np.where(is_null, _of_null(kind, negated), self._of_values(test, column, negated))
        if column.is_shown:
            seen = np.where(is_null, _as_none(kind, negated), truth)
        else:
            seen = np.full(self._groups, _as_none(kind, negated))
        return _OfLacking(name, truth.astype(np.int8), seen.astype(np.int8))

    def _of_values(self, test: Mapping[str, Any], column: Lacking, negated: bool) -> np.ndarray:
        node = condition(test, self._find)
        if isinstance(node, bool) or column.type is None:  # a test that is not decided holds for every file
            return np.full(self._groups, _UNKNOWN)
        types = pa.repeat(pa.scalar(column.type.text, pa.string()), self._groups)
        mask = to_mask(_on_bounds(node), _BOUNDS)(pa.record_batch([column.values, types], schema=_BOUNDS))
        truth = mask.fill_null(False).to_numpy(zero_copy_only=False) != negated
        known = mask.is_valid().to_numpy(zero_copy_only=False)
        return np.where(known, np.where(truth, _TRUE, _FALSE), _UNKNOWN)

    # What it says of each group.

    def _truth(self, part: _Part) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Truth in a file with the columns, truth as pyiceberg takes it, and whether they may differ for a row."""
        match part:
            case _OfLacking():
                return part.truth, part.seen, part.differs
            case _Join():
                join = np.minimum if part.is_and else np.maximum
                sides = self._truth(part.left), self._truth(part.right)
                truth, seen = (join(sides[0][at], sides[1][at]) for at in (0, 1))
                is_decided = (truth == seen) & (truth != _UNKNOWN)
                return truth, seen, (sides[0][2] | sides[1][2]) & ~is_decided
        of_all = _UNKNOWN if isinstance(part, _OfOwn) else _TRUE if part else _FALSE
        whole: np.ndarray = np.full(self._groups, of_all, np.int8)
        return whole, whole, np.zeros(self._groups, np.bool_)

    def _condition(self, part: _Part, group: int, *, seen: bool) -> tuple[Node | bool, Node | bool]:
        """Conditions on the columns that the files of a group have: that the part is true, and that it is not."""
        match part:
            case _OfLacking():
                truth = int((part.seen if seen else part.truth)[group])
                return truth != _FALSE, truth != _TRUE
            case _Join():
                left, right = (self._condition(side, group, seen=seen) for side in (part.left, part.right))
                return (
                    joined([left[0], right[0]], is_and=part.is_and),
                    joined([left[1], right[1]], is_and=not part.is_and),
                )
            case _OfOwn():
                return part.is_true, part.is_untrue
        return part, not part


@dataclass(frozen=True)
class _OfLacking:
    """A test of a column that files lack: of each group its truth in a file with it, and its truth to pyiceberg."""

    name: str
    truth: np.ndarray
    seen: np.ndarray

    @property
    def differs(self) -> np.ndarray:
        differs: np.ndarray = self.truth != self.seen
        return differs


@dataclass(frozen=True)
class _OfOwn:
    """A test of a column that files have, and that it is false or unknown."""

    is_true: Node | bool
    is_untrue: Node | bool


@dataclass(frozen=True)
class _Join:
    is_and: bool
    left: _Part
    right: _Part


_Part = bool | _OfLacking | _OfOwn | _Join


def satisfied_by_none(filter: Any, *, negated: bool = False) -> set[str]:
    """Names of the columns with a test that to pyiceberg is true where a file lacks them, but not of nulls in it."""
    match filter:
        case {"type": "and" | "or", "left": left, "right": right}:
            return satisfied_by_none(left, negated=negated) | satisfied_by_none(right, negated=negated)
        case {"type": "not", "child": child}:
            return satisfied_by_none(child, negated=not negated)
        case {"type": str(test), "term": str(name) | {"term": str(name)}}:
            kind = OPPOSITES.get(test, test)
            negated = negated is (kind == test)
            return {name} if _of_null(kind, negated) != _as_none(kind, negated) else set()
    return set()


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
