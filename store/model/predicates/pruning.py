"""Conditions on the rows of a table, decided for whole files by counts and bounds (`stats.file_columns`).

Two questions are kept apart. *May* a row of the file satisfy the condition? Only a definite no skips the file. Do *all*
rows satisfy it? Only a definite yes says so: in a file without nulls and NaN, that no row may satisfy the opposite. For
one comparison of a column x with a literal v, in a file whose values are enclosed by low and high:

| | may |
|---|---|
| x = v | low <= v and v <= high |
| x <> v | low < v or high > v |
| x < v | low < v |
| x in list | the least member that is not below low is not above high |
| x not in list | not (low = high, a member) |
| x is null | null_count > 0; all are if null_count = row_count |

**Three values.** A comparison with null is unknown, and so is its negation: a null row makes no comparison true and no
comparison's negation true. So NOT moves down to the comparisons first (x < v becomes x >= v), AND and OR change places
below it, and both questions are combined by plain AND and OR. A file of nulls alone may satisfy no comparison; a file
with one null does not satisfy any as a whole.

**Buckets.** Where a file's partition has the bucket of a column, x = v and x in list need one of the literals' buckets.

**NaN.** Readers disagree: some order NaN above every number, to others it compares with nothing, so that NOT (x > v) is
true for it. A file with a NaN may satisfy x > v, x >= v, x <> v and every negated comparison, and none as a whole. A
literal NaN is not decided.

**Not known.** A row that is missing or not PRUNING, a missing bound, or one of another kind than the column's type (the
column was widened since) leaves a comparison undecided: the file may satisfy it, and not as a whole. A FLOAT compares
with the literal as readers with either precision do: as the nearest float and as the nearest double. An INT or DECIMAL
compares with a literal that is no integer by value, and as a double, of which an INT beyond 2^53 and a DECIMAL of more
than 15 digits have the same one as their neighbours. A time between two microseconds is both of them, because readers
without nanoseconds cut or round it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from store.model.freshness import prunes_sql
from store.model.logical_types import FLOATING, Kind, LogicalType
from store.model.predicates import bounds, buckets, float_ranges
from store.model.predicates.bounds import KEYS, kind_sql
from store.model.predicates.buckets import Bucket
from store.model.predicates.literals import Scalar
from store.model.predicates.plain_conditions import (
    AnyOf,
    Column,
    Comparison,
    Constant,
    Every,
    Plain,
    comparisons,
    equalities,
    plain,
)
from store.model.predicates.sql import key_sql, list_sql
from store.model.predicates.tree import Leaf, Node, Op, resolve

NO_STATISTICS: Final = "NO_STATISTICS"
NOT_PRUNING: Final = "NOT_PRUNING"
UNSUPPORTED: Final = "UNSUPPORTED_CONDITION"
_BELOW: Final = frozenset({Op.LT, Op.LTE})


@dataclass(frozen=True)
class Facts:
    """The facts of one column in each file that a condition needs.

    Attributes:
        is_typed: A condition on a row `s`, never null: it is of the column's type.
        selected: Name → SQL over the rows `s`, for each comparison `m…` (may; null: undecided) and `a…` (all; null:
            no). In place of `{w}` and `{d}` come conditions: the row is PRUNING, and also of the column's type.
        low: The sort key of the low bound, for lookups in sorted lists; empty if there are none.
        lookups: Joins with these lists.
        parameters: Parameters of `selected` and `lookups`, in the order of their `?`.
    """

    is_typed: str
    selected: Mapping[str, str]
    low: str
    lookups: str
    parameters: Sequence[Any]

    @property
    def prunes(self) -> str:
        """A condition on a row `s`, never null: it is PRUNING and of the column's type, so that it decides."""
        return f"{prunes_sql('s')} AND {self.is_typed}"

    def sqls(self, id: int, *, certain: bool = False) -> dict[str, str]:
        """Name → SQL over rows `s` with a column `w`: of the facts, and `w…`, that the row is PRUNING.

        Args:
            certain: `prunes` is true for all of them, so they need no `w`: it would take most of the time.
        """
        w, d = ("TRUE", "TRUE") if certain else ("s.w", f"(s.w AND {self.is_typed})")
        return {f"w{id}": w} | {name: sql.format(w=w, d=d) for name, sql in self.selected.items()}


def facts_sql(columns: Mapping[int, Facts], rows: str, certain: Collection[int] = ()) -> str:
    """The query of `file_path` and the facts of columns in each file.

    Args:
        columns: Column id → facts: one, or several without lookups.
        rows: FROM and WHERE clauses of the rows of these columns, one for each of them and file.
        certain: Columns of which `prunes` is true for all rows.
    """
    more = "" if columns.keys() <= set(certain) else f", {prunes_sql('s')} AS w"
    selected = {id: facts.sqls(id, certain=id in certain) for id, facts in columns.items()}
    if len(columns) > 1:
        chosen = (
            f"bool_or(CASE WHEN s.column_id = {int(id)} THEN {sql} END) AS {name}"
            for id, sqls in selected.items()
            for name, sql in sqls.items()
        )
        return f"SELECT s.file_path, {', '.join(chosen)} FROM (SELECT s.*{more} {rows}) s GROUP BY s.file_path"
    ((id, facts),) = columns.items()
    more += f", {facts.low} AS low" if facts.low else ""
    keyed = f"FROM (SELECT s.*{more} {rows}) s{facts.lookups}" if more else rows
    return f"SELECT s.file_path, {', '.join(f'{sql} AS {name}' for name, sql in selected[id].items())} {keyed}"


@dataclass(frozen=True)
class FileCondition:
    """A condition as SQL over the facts of columns; `WHERE` never sees a null.

    Attributes:
        columns: Column id → its facts.
        may: A row may satisfy the condition.
        known: The same, undecided comparisons counted as not satisfied.
        all: Every row satisfies it.
        reason: Why its first undecided comparison is undecided.
    """

    columns: Mapping[int, Facts]
    may: str
    known: str
    all: str
    reason: str
    _tree: Plain
    _numbers: Mapping[Comparison, int]
    buckets: Mapping[Comparison, str]
    """Comparison → a condition on the file `f`, see `predicates.buckets`."""

    @property
    def tree(self) -> Plain:
        """The condition without NOT, BETWEEN and short INs."""
        return self._tree

    @property
    def tests(self) -> Mapping[Comparison, int]:
        """Comparison → its number in the names of facts."""
        return self._numbers

    def equalities(self) -> list[tuple[Column, tuple[Scalar, ...]]]:
        """Columns and literals one of which every row that satisfies the condition has in the column."""
        return list(equalities(self._tree))

    def groups(self, among: Collection[int]) -> list[dict[int, Facts]]:
        """The facts of some columns, those that one query answers together (`facts_sql`)."""
        chosen = {id: facts for id, facts in self.columns.items() if id in among}
        plain = {id: facts for id, facts in chosen.items() if not facts.lookups}
        return [*({id: facts} for id, facts in chosen.items() if facts.lookups), *([plain] if plain else [])]

    def in_ranges(self, row: str) -> str:
        """SQL, never null, that is false only where `may` is, or would be if no bound were undecided; all comparisons
        are of one column.

        Args:
            row: Name of a row of the column, of its type, with the columns of `predicates.float_ranges`.
        """
        return _in_ranges(self._tree, row)

    def may_by(self, columns: Collection[int]) -> str:
        """`may` by buckets and the comparisons of some columns, all others counted as undecided."""
        return _joined(self._tree, self._numbers, "m", "TRUE", self.buckets, columns)


def undecided() -> FileCondition:
    """A condition that no file's rows can decide, because they are not those that readers see."""
    return FileCondition({}, "TRUE", "FALSE", "FALSE", f"'{NOT_PRUNING}'", Constant.UNDECIDED, {}, {})


def of_files(
    node: Node,
    find: Callable[[str], Column],
    fields: Mapping[int, Sequence[Bucket]] = MappingProxyType({}),
) -> FileCondition:
    """Translates a condition on rows to SQL about files.

    Args:
        find: Name of a column → the column; raises if there is none.
        fields: Column id → partition fields with its buckets. If there are any, the SQL is about a row `f` of
            `stats.files` too.

    Raises:
        BadLiteral: A literal cannot be read as its column's type.
    """
    tree = plain(node, find)
    numbers = {test: at for at, test in enumerate(comparisons(tree))}
    columns = {
        column.id: _facts({at: test for test, at in numbers.items() if test.column == column}, column)
        for column in dict.fromkeys(test.column for test in numbers)
    }
    undecided = "".join(
        f" WHEN m{at} IS NULL THEN CASE WHEN coalesce(w{test.column.id}, TRUE)"
        f" THEN '{NO_STATISTICS}' ELSE '{NOT_PRUNING}' END"
        for test, at in numbers.items()
    )
    within = {
        test: sql
        for test in numbers
        if test.op is Op.EQ or (test.op is Op.IN and not test.negated)
        if test.column.type is not None and test.column.id in fields
        if (sql := buckets.condition(fields[test.column.id], test.values, test.column.type))
    }
    reason = f"CASE{undecided or ' WHEN FALSE THEN NULL'} ELSE '{UNSUPPORTED}' END"
    return FileCondition(
        columns,
        _joined(tree, numbers, "m", "TRUE", within),
        _joined(tree, numbers, "m", "FALSE", within),
        _joined(tree, numbers, "a", "FALSE", {}),
        reason,
        tree,
        numbers,
        within,
    )


def _joined(
    node: Plain,
    numbers: Mapping[Comparison, int],
    fact: str,
    unknown: str,
    within: Mapping[Comparison, str],
    among: Collection[int] | None = None,
) -> str:
    match node:
        case Every(children) | AnyOf(children):
            word = " AND " if isinstance(node, Every) else " OR "
            return f"({word.join(_joined(child, numbers, fact, unknown, within, among) for child in children)})"
        case Comparison(column):
            own = f"coalesce({fact}{numbers[node]}, {unknown})"
            if among is not None and column.id not in among:
                own = unknown
            return f"({own} AND {within[node]})" if node in within else own
    return "FALSE" if node is Constant.NEVER else unknown


def _in_ranges(node: Plain, row: str) -> str:
    match node:
        case Every(children) | AnyOf(children):
            word = " AND " if isinstance(node, Every) else " OR "
            return f"({word.join(_in_ranges(child, row) for child in children)})"
        case Comparison(column, op, values, negated):
            return "TRUE" if op is Op.IN and negated else float_ranges.may_sql(op, values, column.type, row)
    return "FALSE" if node is Constant.NEVER else "TRUE"


# Facts of one column.


def list_members(values: Collection[Scalar], type: LogicalType) -> list[Any]:
    """The members of a list as sort keys of a type, sorted; those that no value equals are left out."""
    readings = {reading for value in values for reading in bounds.readings(value, type)}
    leaf = resolve(Leaf("min", Op.IN, tuple(readings)), {"min": pa.field("min", KEYS[type.kind].type)})
    return sorted(leaf.values) if leaf is not None else []


def _facts(tests: Mapping[int, Comparison], column: Column) -> Facts:
    kind = None if column.type is None else column.type.kind
    is_typed = "TRUE" if kind is None or kind not in KEYS else f"coalesce({kind_sql(kind, 's.logical_type')}, FALSE)"
    bounds_of = _Bounds(column.type)
    selected: dict[str, str] = {}
    parameters: list[Any] = []
    lookups: list[str] = []
    members: list[list[Any]] = []
    for at, test in tests.items():
        decided = "{w}" if test.op in (Op.IS_NULL, Op.IS_NOT_NULL) else "{d}"
        if test.op is Op.IN and column.type is not None:
            lookups.append(
                f" ASOF LEFT JOIN (SELECT {list_sql(KEYS[column.type.kind].type)} AS v) i{at} ON s.low <= i{at}.v"
            )
            members.append(list_members(test.values, column.type))
        selected[f"m{at}"] = f"CASE WHEN {decided} THEN {bounds_of.may(test, at, parameters)} END"
        selected[f"a{at}"] = f"{decided} AND {bounds_of.all(test, at, parameters)}"
    low = bounds_of.key(bounds_of.low) if lookups else ""
    return Facts(is_typed, selected, low, "".join(lookups), [*parameters, *members])


class _Bounds:
    """SQL of comparisons with the bounds of a row."""

    def __init__(self, type: LogicalType | None):
        self.type, self.kind = type, None if type is None else type.kind
        kind = self.kind
        floats = kind in FLOATING  # a bound NaN says nothing of the numbers
        self.low, self.high = (f"nullif(s.{side}, 'NaN')" if floats else f"s.{side}" for side in ("min", "max"))
        self.has_nan = "s.nan_count > 0" if floats else ""  # known of a row that is PRUNING

    def may(self, test: Comparison, at: int, parameters: list[Any]) -> str:
        if test.op is Op.IS_NULL:
            return "s.null_count > 0"
        if test.op is Op.IS_NOT_NULL:
            return "s.null_count < s.row_count"
        nan = self.has_nan and test.may_take_nan
        also = f" WHEN {self.has_nan} THEN TRUE" if nan else ""
        return f"CASE WHEN s.null_count >= s.row_count THEN FALSE{also} ELSE {self._may(test, at, parameters)} END"

    def all(self, test: Comparison, at: int, parameters: list[Any]) -> str:
        if test.op is Op.IS_NULL:
            return "s.null_count >= s.row_count"
        if test.op is Op.IS_NOT_NULL:
            return "s.null_count = 0"
        nan = f" AND NOT {self.has_nan}" if self.has_nan else ""
        return f"s.null_count = 0{nan} AND NOT ({self._may(test.opposite, at, parameters)})"

    def _may(self, test: Comparison, at: int, parameters: list[Any]) -> str:
        if test.op is Op.IN:
            return f"NOT ({self._is_member(at)})" if test.negated else self._contains_member(at)
        (value,) = test.values
        if test.op is Op.EQ:
            low = self._compared(self.low, Op.LTE, value, parameters)
            return f"{low} AND {self._compared(self.high, Op.GTE, value, parameters)}"
        if test.op is Op.NEQ:
            low = self._compared(self.low, Op.LT, value, parameters)
            return f"{low} OR {self._compared(self.high, Op.GT, value, parameters)}"
        return self._compared(self.low if test.op in _BELOW else self.high, test.op, value, parameters)

    def _compared(self, bound: str, op: Op, value: Scalar, parameters: list[Any]) -> str:
        """True if the comparison holds for any reading of the literal."""
        assert self.type is not None
        key, readings = KEYS[self.type.kind], bounds.readings(value, self.type)
        reading = max(readings) if op in _BELOW else min(readings)
        leaf = resolve(Leaf("min", op, (reading,)), {"min": pa.field("min", key.type)})
        return "NULL" if leaf is None else key_sql(leaf, key, bound, parameters)

    # Lookups: `i….v` is the least member that is not below the low bound, whose key is `s.low`.

    def key(self, bound: str) -> str:
        """The sort key of a bound."""
        assert self.kind is not None
        return KEYS[self.kind].sql.format(bound)

    def _contains_member(self, at: int) -> str:
        inside = f"i{at}.v <= {self.key(self.high)}"
        return f"CASE WHEN s.low IS NULL THEN NULL WHEN i{at}.v IS NULL THEN FALSE ELSE {inside} END"

    def _is_member(self, at: int) -> str:
        if self.kind is Kind.FLOAT:  # equal to one reading of a literal, perhaps not to the other
            return "FALSE"
        equal = f"i{at}.v <= s.low AND {self.key(self.high)} <= s.low"
        return f"CASE WHEN s.low IS NULL THEN NULL WHEN i{at}.v IS NULL THEN FALSE ELSE {equal} END"
