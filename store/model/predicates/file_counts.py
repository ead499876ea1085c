"""Conditions decided for whole files whose counts and bounds are in memory: the rules of `pruning`, over arrays.

The SQL of `pruning` suits plans, which read the facts of a condition once. Whoever keeps the facts of many files in
memory decides here, without DuckDB's parser and planner, and gets besides the least and the greatest number of rows of
a file that satisfy each comparison, and a guess between them. A row with a null satisfies none, so that counts of nulls
tell more than whether any row or all rows do: where all values satisfy a comparison, as many rows do as there are
values. `tests/store/model/predicates/test_pruning.py` compares both forms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.model import statistics
from store.model.bounds import sort_keys
from store.model.freshness import COUNTED, prunes_arrow
from store.model.logical_types import FLOATING, Kind, LogicalType
from store.model.predicates import bounds, buckets, row_counts
from store.model.predicates.arrow import leaf_mask
from store.model.predicates.bounds import KEYS
from store.model.predicates.buckets import Bucket
from store.model.predicates.literals import Scalar, literal_text
from store.model.predicates.plain_conditions import AnyOf, Comparison, Constant, Every, Plain, comparisons
from store.model.predicates.pruning import list_members
from store.model.predicates.row_counts import Counts, Guesses, Rows
from store.model.predicates.tree import Leaf, Op, resolve

Mask: TypeAlias = npt.NDArray[np.bool_]

COLUMNS: Final = (
    "completeness",
    "row_groups_sampled",
    "confidence_level",
    "logical_type",
    *statistics.COUNTED,
    "ndv",
    *statistics.SIDES,
)
"""The columns of `stats.file_columns` that `ColumnCounts` is made of."""

UNKNOWN: Final = -1
"""In place of a count that is not known."""

_BELOW: Final = frozenset({Op.LT, Op.LTE})
_OF_NULLS: Final = frozenset({Op.IS_NULL, Op.IS_NOT_NULL})
_NUMBERS: Final = frozenset({Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL})
_MOMENTS: Final = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
_FEW_VALUES: Final = 10  # distinct values of a file, if they are not known
_MICROS: Final = 1_000_000
_DAYS: Final = 86_400  # seconds


@dataclass(frozen=True)
class Truth:
    """A condition on each of many files: true, false, or neither where it is not known."""

    yes: Mask
    no: Mask

    def __invert__(self) -> Truth:
        return Truth(self.no, self.yes)

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.yes & other.yes, self.no | other.no)

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.yes | other.yes, self.no & other.no)

    def where(self, decided: Mask) -> Truth:
        """The same, not known elsewhere."""
        return Truth(self.yes & decided, self.no & decided)


@dataclass(frozen=True)
class ColumnCounts:
    """Counts and bounds of one column in each of some files; counts that are not known are `UNKNOWN`.

    Attributes:
        type: Its type in the schema of the snapshot; None if not known.
        rows, nulls, nans: Rows that the record is of, and nulls and NaN among them.
        distinct: Distinct values; NaN if not known.
        counted: The counts are sure.
        prunes: The bounds and counts are such that a planner may skip the file by them.
        typed: The bounds are of the column's type.
        low, high: Sort keys of the bounds, null where there are none of the column's type.
        places: The bounds as numbers, for interpolation alone; NaN where not known. None if the type has no such.
    """

    type: LogicalType | None
    rows: Counts
    nulls: Counts
    nans: Counts
    distinct: Guesses
    counted: Mask
    prunes: Mask
    typed: Mask
    low: pa.Array
    high: pa.Array
    places: tuple[Guesses, Guesses] | None

    @classmethod
    def of(cls, rows: pa.Table, type: LogicalType | None) -> ColumnCounts:
        """The counts and bounds of rows of `stats.file_columns`.

        Args:
            rows: A row for each file with at least `COLUMNS`; all null where there is no record.
        """
        rows = rows.combine_chunks()
        kind = None if type is None or type.kind not in KEYS else type.kind
        typed = _is_of_kind(rows["logical_type"], kind)
        low, high = (_keys(rows[side], kind, typed) for side in statistics.SIDES)
        row_count, nulls, nans = (rows[name].fill_null(UNKNOWN).to_numpy() for name in statistics.COUNTED)
        return cls(
            type,
            row_count,
            nulls,
            nans,
            rows["ndv"].cast(pa.float64()).fill_null(math.nan).to_numpy(),
            _mask(COUNTED.arrow(rows)),
            _mask(prunes_arrow(rows)),
            typed,
            low,
            high,
            None if kind is None else _places(kind, rows, low, high, typed),
        )

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        arrays = (self.rows, self.nulls, self.nans, self.distinct, self.counted, self.prunes, self.typed)
        keys = self.low.nbytes + self.high.nbytes
        return sum(each.nbytes for each in (*arrays, *(self.places or ()))) + int(keys)

    @property
    def is_floating(self) -> bool:
        """True if values may be NaN."""
        return self.type is not None and self.type.kind in FLOATING

    @cached_property
    def has_only_nulls(self) -> Mask:
        """Mask of the files all rows of which are null."""
        return (self.nulls >= self.rows) & (self.nulls >= 0) & (self.rows >= 0)

    @cached_property
    def values(self) -> Counts:
        """Rows without a null; `UNKNOWN` where that is not sure."""
        return np.where(self.counted & (self.rows >= 0) & (self.nulls >= 0), self.rows - self.nulls, UNKNOWN)


def _mask(values: pa.ChunkedArray | pa.Array) -> Mask:
    return values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)


def _is_of_kind(types: pa.ChunkedArray, kind: Kind | None) -> Mask:
    """Mask of the rows of a kind, as `bounds.kind_sql`; all rows if there is none."""
    if kind is None:
        return np.ones(len(types), np.bool_)
    plain = [] if kind is Kind.DECIMAL else [str(kind)]
    sized = kind in (Kind.DECIMAL, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
    distinct = pc.unique(types).to_pylist()
    own = [each for each in distinct if each in plain or (sized and each and each.startswith(f"{kind}("))]
    return _mask(pc.is_in(types, pa.array(own, pa.string())))


def _keys(texts: pa.ChunkedArray, kind: Kind | None, typed: Mask) -> pa.Array:
    """The sort keys of bounds, null for those of other kinds and where a bound NaN says nothing of the numbers."""
    if kind is None:
        return pa.nulls(len(texts), pa.string())
    known = pa.array(typed)
    if kind in FLOATING:
        known = pc.and_(known, pc.not_equal(texts, "NaN").combine_chunks())
    found = KEYS[kind].of(pc.if_else(known, texts, None).combine_chunks())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _places(kind: Kind, rows: pa.Table, low: pa.Array, high: pa.Array, typed: Mask) -> tuple[Guesses, Guesses] | None:
    """The bounds as numbers; moments as seconds since 1970. None if the kind has no such."""
    if kind not in _NUMBERS | _MOMENTS:
        return None
    keys = [low, high]
    if kind in (Kind.DECIMAL, Kind.DATE):  # their keys are texts
        keys = [pc.if_else(pa.array(typed), rows[side], None).combine_chunks() for side in statistics.SIDES]
        keys = keys if kind is Kind.DECIMAL else [sort_keys(days, LogicalType(kind)) for days in keys]
    unit = _DAYS if kind is Kind.DATE else 1 if kind in _NUMBERS else 1 / _MICROS
    found = [pc.cast(each, pa.float64(), safe=False).fill_null(math.nan).to_numpy() * unit for each in keys]
    return found[0], found[1]


@dataclass(frozen=True)
class Decided:
    """A comparison, decided for each of many files.

    Attributes:
        may: False where no row of the file satisfies it.
        all: True where every row does.
        rows: Numbers of rows that do.
    """

    may: Mask
    all: Mask
    rows: Rows


@dataclass(frozen=True)
class FileDecisions:
    """A condition, decided for each of many files.

    Args:
        tree: The condition (`plain_conditions.plain`).
        rows: Rows of each file, `UNKNOWN` where not known.
        columns: The counts and bounds of the columns of the condition, by their ids.
        partitions: Field with a bucket transform → its bucket in each file, `UNKNOWN` where the file has none of it.
        fields: Column id → its partition fields of that kind.
    """

    tree: Plain
    rows: Counts
    columns: Mapping[int, ColumnCounts]
    partitions: Mapping[Bucket, Counts] = field(default_factory=dict)
    fields: Mapping[int, Sequence[Bucket]] = field(default_factory=dict)

    @cached_property
    def may(self) -> Mask:
        """Mask of the files a row of which may satisfy the condition."""
        return self._joined(self.tree, is_all=False)

    @cached_property
    def all(self) -> Mask:
        """Mask of the files every row of which satisfies it."""
        return self._joined(self.tree, is_all=True)

    def numbers(self) -> Rows:
        """The numbers of rows of each file that satisfy the condition; of a file whose rows are not known, 0."""
        rows = np.maximum(self.rows, 0)
        values = {id: _known(counts.values, self._is_same(counts), rows) for id, counts in self.columns.items()}
        found = row_counts.satisfying(self.tree, rows, lambda test: self._decided[test].rows, values)
        return Rows(np.where(self.all, rows, found.low), found.high, np.where(self.all, rows, found.guess))

    def _joined(self, node: Plain, *, is_all: bool) -> Mask:
        match node:
            case Every(children) | AnyOf(children):
                join = np.logical_and if isinstance(node, Every) else np.logical_or
                found: Mask = join.reduce([self._joined(child, is_all=is_all) for child in children])
                return found
            case Comparison():
                return self._decided[node].all if is_all else self._decided[node].may & self._in_bucket(node)
        return np.full(len(self.rows), node is Constant.UNDECIDED and not is_all)

    @cached_property
    def _decided(self) -> dict[Comparison, Decided]:
        return {test: self._decide(test) for test in comparisons(self.tree)}

    def _is_same(self, counts: ColumnCounts) -> Mask:
        """Mask of the files whose record of a column is of as many rows as the file."""
        return (counts.rows == self.rows) & (self.rows >= 0)

    def _in_bucket(self, test: Comparison) -> Mask:
        """Mask of the files whose partition may have one of the values of a comparison."""
        found: Mask = np.ones(len(self.rows), np.bool_)
        if (test.op is not Op.EQ and (test.op is not Op.IN or test.negated)) or test.column.type is None:
            return found
        hashes = [buckets.hash_of(value, test.column.type) for value in test.values]
        if None in hashes:
            return found
        for each in self.fields.get(test.column.id, ()):
            own = self.partitions[each]
            kept = [hash % each.count for hash in hashes if hash is not None]
            found &= (own == UNKNOWN) | np.isin(own, kept)
        return found

    def _decide(self, test: Comparison) -> Decided:
        counts, rows = self.columns[test.column.id], np.maximum(self.rows, 0)
        same = self._is_same(counts)
        if test.op in _OF_NULLS:
            return _of_nulls(test.op is Op.IS_NULL, counts, same, rows)
        decides = counts.prunes & counts.typed
        never = _may(counts, test).no & decides
        always = _may(counts, test.opposite).no & decides
        true_for_nan = test.may_take_nan
        nans = np.maximum(counts.nans, 0) if counts.is_floating else np.zeros(len(rows), np.int64)
        only_nulls = decides & counts.has_only_nulls
        values, most_nans = counts.values, nans if true_for_nan else 0
        most = np.where(never, most_nans, values - np.where(decides & (not true_for_nan), nans, 0))
        low = _known(np.where(always, values - nans, 0), same & (values >= 0), np.zeros_like(rows))
        high = _known(most, same & (never | (values >= 0)), rows)
        guess = np.where(same & (values >= 0), _share(counts, test) * values, (low + high) / 2)
        may = ~(only_nulls | (never & ~(true_for_nan & (nans > 0))))
        return Decided(may, always & (counts.nulls == 0) & (nans == 0), Rows(low, high, guess))


def _known(numbers: Counts, known: Mask, others: Counts) -> Counts:
    """Numbers where they are known, and others in their place."""
    return np.where(known & (numbers != UNKNOWN), numbers, others)


def _of_nulls(is_null: bool, counts: ColumnCounts, same: Mask, rows: Counts) -> Decided:
    """The decision of IS NULL, or IS NOT NULL."""
    none, only = counts.prunes & (counts.nulls == 0), counts.prunes & counts.has_only_nulls
    found = np.where(counts.counted, counts.nulls, UNKNOWN) if is_null else counts.values
    low, high = (_known(found, same, others) for others in (np.zeros_like(rows), rows))
    numbers = Rows(low, high, (low + high) / 2)
    return Decided(~none, only, numbers) if is_null else Decided(~only, none, numbers)


def _may(counts: ColumnCounts, test: Comparison) -> Truth:
    """Decides whether a value between the bounds of each file may satisfy a comparison."""
    if test.op is Op.IN:
        return ~_is_member(counts, test) if test.negated else _contains_member(counts, test)
    (value,) = test.values
    if test.op is Op.EQ:
        return _compared(counts, "low", Op.LTE, value) & _compared(counts, "high", Op.GTE, value)
    if test.op is Op.NEQ:
        return _compared(counts, "low", Op.LT, value) | _compared(counts, "high", Op.GT, value)
    return _compared(counts, "low" if test.op in _BELOW else "high", test.op, value)


def _compared(counts: ColumnCounts, side: str, op: Op, value: Scalar) -> Truth:
    """True if the comparison of a bound holds for any reading of the literal."""
    assert counts.type is not None
    keys: pa.Array = getattr(counts, side)
    readings = bounds.readings(value, counts.type)
    reading = max(readings) if op in _BELOW else min(readings)
    leaf = resolve(Leaf(side, op, (reading,)), {side: pa.field(side, KEYS[counts.type.kind].type)})
    if leaf is None:
        return _truth(pa.nulls(len(keys), pa.bool_()))
    return _truth(leaf_mask(leaf)(pa.record_batch([keys], [side])))


def _truth(values: pa.Array) -> Truth:
    if not values.null_count:
        yes = _mask(values)
        return Truth(yes, ~yes)
    return Truth(_mask(values.fill_null(False)), ~_mask(values.fill_null(True)))


def _least_member(counts: ColumnCounts, test: Comparison) -> tuple[pa.Array, Mask]:
    """The least member of a list that is not below the low bound of each file, and a mask of the files without one."""
    assert counts.type is not None
    members = pa.array(list_members(test.values, counts.type), KEYS[counts.type.kind].type)
    known = _mask(counts.low.is_valid())
    found = np.searchsorted(_comparable(members), _comparable(counts.low.drop_null()))
    at: Counts = np.zeros(len(known), np.int64)
    at[known] = found
    beyond = known & (at == len(members))
    return members.take(pa.array(at, mask=beyond | ~known)), beyond


def _comparable(keys: pa.Array) -> npt.NDArray[Any]:
    """Keys as an array that NumPy orders as Arrow does."""
    return np.array(keys.to_pylist(), object) if _is_text(keys.type) else keys.to_numpy(zero_copy_only=False)


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_binary(type))


def _contains_member(counts: ColumnCounts, test: Comparison) -> Truth:
    least, beyond = _least_member(counts, test)
    inside = _truth(pc.less_equal(least, counts.high))
    return Truth(inside.yes, inside.no | beyond)


def _is_member(counts: ColumnCounts, test: Comparison) -> Truth:
    """True if all values are equal, to a member."""
    if counts.type is not None and counts.type.kind is Kind.FLOAT:  # equal to one reading of a literal, or the other
        return Truth(np.zeros(len(counts.rows), np.bool_), np.ones(len(counts.rows), np.bool_))
    least, beyond = _least_member(counts, test)
    equal = pc.and_kleene(pc.less_equal(least, counts.low), pc.less_equal(counts.high, counts.low))
    found = _truth(equal)
    return Truth(found.yes & ~beyond, found.no | beyond)


# Guesses.


def _share(counts: ColumnCounts, test: Comparison) -> Guesses:
    """A guess of the part of each file's values that satisfy a comparison, from 0 to 1."""
    if test.op in (Op.EQ, Op.NEQ, Op.IN):
        distinct = np.where(np.isnan(counts.distinct), _FEW_VALUES, counts.distinct)
        equal = np.minimum(1, len(test.values) / np.maximum(1, distinct))
        return 1 - equal if test.op is Op.NEQ or (test.op is Op.IN and test.negated) else equal
    assert counts.type is not None
    number = _number_of(test.values[0], counts.type.kind)
    if counts.places is None or number is None:
        return np.full(len(counts.rows), 0.5)
    low, high = counts.places
    with np.errstate(all="ignore"):
        below = np.clip((number - low) / np.where(high == low, math.nan, high - low), 0, 1)
    below = np.where(np.isnan(below), 0.5, below)
    return below if test.op in _BELOW else 1 - below


def _number_of(value: Scalar, kind: Kind) -> float | None:
    """A literal as the number that stands for bounds of a kind; None if it is not a finite one."""
    text = (literal_text(value) or "").strip()
    try:
        if kind in _MOMENTS:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
