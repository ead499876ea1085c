"""Conditions decided for whole files, against brute force over the files' rows; which comparisons stay undecided."""

import math
import operator
import struct
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.model.logical_types import parse
from store.model.predicates import file_counts, plain_conditions
from store.model.predicates.file_counts import ColumnCounts, FileDecisions
from store.model.predicates.float_ranges import ENDLESS, HIGH, LOW, with_ranges
from store.model.predicates.plain_conditions import Column, plain
from store.model.predicates.pruning import facts_sql, of_files
from store.model.predicates.tree import And, BadLiteral, Leaf, Not, Op, Or
from store.model.schemas import FLIGHTS
from tests.store.model.bounds.forms import text_of

START = datetime(2026, 1, 1)


def single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


# Column name → logical type, values of rows, literals of conditions.
VALUES = {
    "int": ("INT", [-(2**53) - 1, -3, 0, 1, 2, 3, 2**53, 2**53 + 1, 2**63 - 1], [1.5, 2.0, "3", 2**70, -(2**70)]),
    "double": ("DOUBLE", [-2.5, -0.0, 0.0, 0.1, 1.0, 3.0, math.inf, -math.inf, math.nan], [1, "0.1", 2**53 + 1]),
    "float": ("FLOAT", [-2.5, -0.0, single(0.1), 1.0, single(16777217.0), math.nan], [0.1, 16777217, 1e-50, 1e39]),
    "decimal": ("DECIMAL(10,2)", [Decimal("-1.50"), Decimal(0), Decimal("9.99"), Decimal(10)], [9, "-1.5", 9.995]),
    "text": ("STRING", ["", "a", "ab", "b", "é", "\uffff", "😀"], []),
    "flag": ("BOOLEAN", [False, True], []),
    "day": ("DATE", [date(1969, 12, 31), date(2026, 1, 1), date(2026, 1, 31)], []),
    "moment": ("TIMESTAMP", [START, START + timedelta(microseconds=1), START + timedelta(days=30)], []),
}
COLUMNS = {name: Column(at, name, parse(type)) for at, (name, (type, *_)) in enumerate(VALUES.items(), 1)}


def written(value):
    """A value as a literal of JSON."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value


LITERALS = {
    name: st.sampled_from([None, *(written(value) for value in values if value == value), *more])
    for name, (_, values, more) in VALUES.items()
}


@st.composite
def leaves(draw):
    name = draw(st.sampled_from(list(VALUES)))
    op = draw(st.sampled_from(list(Op)))
    literal = LITERALS[name]
    match op:
        case Op.IS_NULL | Op.IS_NOT_NULL:
            return Leaf(name, op)
        case Op.IN:
            few, many = st.lists(literal, min_size=1, max_size=4), st.lists(literal, min_size=1, max_size=12)
            members = draw(st.one_of(few, many))
            # enough equal members to be looked up in a list
            return Leaf(name, op, tuple(members * (plain_conditions.MAX_LISTED if draw(st.booleans()) else 1)))
        case Op.BETWEEN:
            return Leaf(name, op, (draw(literal), draw(literal)))
    return Leaf(name, op, (draw(literal),))


TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(Not),
        *(st.lists(inner, min_size=1, max_size=3).map(lambda c, join=join: join(tuple(c))) for join in (And, Or)),
    ),
    max_leaves=5,
)
ROWS = st.lists(
    st.fixed_dictionaries({name: st.sampled_from([None, *values]) for name, (_, values, _) in VALUES.items()}),
    min_size=1,
    max_size=3,
)


@dataclass(frozen=True)
class Reader:
    """Readers differ in NaN, and in the precision with which they compare a FLOAT with a literal."""

    nan_is_greatest: bool
    floats_as_double: bool

    def value(self, name, literal):
        """A literal as a value of the column."""
        kind = VALUES[name][0]
        if literal is None:
            return None
        if kind == "INT" or kind.startswith("DECIMAL"):
            return Decimal(str(literal))
        if kind == "DOUBLE":
            return float(literal)
        if kind == "FLOAT":
            if self.floats_as_double:
                return float(literal)
            return math.inf if abs(float(literal)) > 3.5e38 else single(float(literal))
        return {"DATE": date.fromisoformat, "TIMESTAMP": datetime.fromisoformat}.get(kind, lambda same: same)(literal)

    def compare(self, name, op, value, literal):
        if value is None or literal is None:
            return None
        other = self.value(name, literal)
        if isinstance(value, float) and math.isnan(value):
            return op in (Op.NEQ, Op.GT, Op.GTE) if self.nan_is_greatest else op is Op.NEQ
        if isinstance(value, str):
            value, other = value.encode(), other.encode()
        if VALUES[name][0] == "INT" or VALUES[name][0].startswith("DECIMAL"):
            value = Decimal(value)
        compares = {
            Op.EQ: operator.eq,
            Op.NEQ: operator.ne,
            Op.LT: operator.lt,
            Op.LTE: operator.le,
            Op.GT: operator.gt,
            Op.GTE: operator.ge,
        }
        return compares[op](value, other)

    def truth(self, node, row):
        match node:
            case Not(child):
                inner = self.truth(child, row)
                return None if inner is None else not inner
            case And(children):
                return every(self.truth(child, row) for child in children)
            case Or(children):
                return some(self.truth(child, row) for child in children)
        value = row[node.column]
        match node.op:
            case Op.IS_NULL:
                return value is None
            case Op.IS_NOT_NULL:
                return value is not None
            case Op.IN:
                return some(self.compare(node.column, Op.EQ, value, literal) for literal in node.values)
            case Op.BETWEEN:
                low, high = node.values
                return every(
                    [self.compare(node.column, Op.GTE, value, low), self.compare(node.column, Op.LTE, value, high)]
                )
        return self.compare(node.column, node.op, value, node.values[0])


def every(truths):
    truths = list(truths)
    return False if False in truths else None if None in truths else True


def some(truths):
    truths = list(truths)
    return True if True in truths else None if None in truths else False


READERS = [Reader(greatest, double) for greatest in (True, False) for double in (True, False)]


def facts(name, values, lacking=frozenset()):
    """The row of `stats.file_columns` of a column with these values; `lacking` names what is not known or usable."""
    column, (logical, *_) = COLUMNS[name], VALUES[name]
    present = [value for value in values if value is not None and value == value]
    lt = column.type
    row = {
        "file_path": "f",
        "column_id": column.id,
        "column_name": name,
        "logical_type": logical,
        "row_count": len(values),
        "null_count": values.count(None),
        "nan_count": None,
        "min": text_of(min(present), lt) if present else None,
        "max": text_of(max(present), lt) if present else None,
        "completeness": "COMPLETE",
    }
    if logical in ("FLOAT", "DOUBLE"):
        row["nan_count"] = sum(value is not None and value != value for value in values)
    if "sample" in lacking:
        row["completeness"] = "PARTIAL"
    if "type" in lacking:
        row["logical_type"] = "INTERVAL"
    return row | {key: None for key in lacking if key in ("min", "max", "null_count", "nan_count")}


NAMES = (
    "file_path",
    "column_id",
    "column_name",
    "logical_type",
    "row_count",
    "null_count",
    "nan_count",
    "min",
    "max",
    "ndv",
    "completeness",
    "confidence_level",
    "row_groups_sampled",
)
SCHEMA = pa.schema([FLIGHTS["stats.file_columns"].schema.field(name) for name in NAMES])


def decided_in_memory(node, rows):
    """The decisions of one file with these rows of `stats.file_columns`."""
    stored = {row["column_id"]: row for row in rows}
    counts = {
        column.id: ColumnCounts.of(pa.Table.from_pylist([stored.get(column.id, {})], SCHEMA), column.type)
        for column in COLUMNS.values()
    }
    of_file = max((row["row_count"] for row in rows), default=file_counts.UNKNOWN)
    return FileDecisions(plain(node, COLUMNS.__getitem__), np.array([of_file]), counts)


@pytest.fixture(scope="module")
def decide():
    with duckdb.connect() as database:

        def decided(node, rows):
            """May a row satisfy it, is that known, do all, and the reason."""
            condition = of_files(node, COLUMNS.__getitem__)
            table = pa.Table.from_pylist(rows, SCHEMA)
            database.register("rows", table)

            def answers(certain):
                joins, parameters = "", []
                for at, group in enumerate(condition.groups(condition.columns)):
                    sql = facts_sql(group, f"FROM rows s WHERE s.column_id IN ({', '.join(map(str, group))})", certain)
                    joins += f" LEFT JOIN ({sql}) c{at} ON c{at}.file_path = f.file_path"
                    parameters += [value for column in group.values() for value in column.parameters]
                return database.execute(
                    f"SELECT {condition.may}, {condition.known}, {condition.all}, {condition.reason}"
                    f" FROM (SELECT 'f' AS file_path) f{joins}",
                    parameters,
                ).fetchall()[0]

            found = answers(())
            if certain := {
                id
                for id, column in condition.columns.items()
                if database.execute(f"FROM rows s WHERE s.column_id = {id} AND {column.prunes}").fetchall()
            }:
                assert answers(certain) == found
                if len(condition.columns) == 1:  # then a plan looks at ranges of floats first
                    ranged = with_ranges(table)
                    ends = "" if LOW in ranged.column_names else f", {ENDLESS[LOW]} AS {LOW}, {ENDLESS[HIGH]} AS {HIGH}"
                    database.register("ranged", ranged)
                    sql = f"SELECT {condition.in_ranges('s')} FROM (SELECT *{ends} FROM ranged) s WHERE column_id = ?"
                    ((is_in,),) = database.execute(sql, list(certain)).fetchall()
                    assert is_in or (is_in is False and not found[0])
            arrays = decided_in_memory(node, rows)
            assert (arrays.may[0], arrays.all[0]) == (found[0], found[2])
            return found

        yield decided


LACKING = st.frozensets(st.sampled_from(["min", "max", "null_count", "nan_count", "sample", "type", "row"]), max_size=2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=TREES,
    rows=ROWS,
    lacking=st.fixed_dictionaries(dict.fromkeys(VALUES, st.one_of(st.just(frozenset()), LACKING))),
)
def test_no_file_with_a_matching_row_is_skipped(decide, tree, rows, lacking):
    stored = [facts(name, [row[name] for row in rows], lacking[name]) for name in VALUES if "row" not in lacking[name]]
    may, known, all_, _ = decide(tree, stored)
    assert None not in (may, known, all_)
    assert may or not known
    for reader in READERS:
        truths = [reader.truth(tree, row) for row in rows]
        assert may or True not in truths, f"a row is true to {reader}"
        assert not all_ or all(truths), f"not every row is true to {reader}: {truths}"
    assert may or not all_
    numbers = decided_in_memory(tree, stored).numbers()
    for reader in READERS if stored else ():
        count = [reader.truth(tree, row) for row in rows].count(True)
        assert numbers.low[0] <= count <= numbers.high[0], f"{count} rows are true to {reader}"
    assert 0 <= numbers.low[0] <= numbers.guess[0] <= numbers.high[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(leaf=leaves(), data=st.data())
def test_one_value_is_decided_exactly(decide, leaf, data):
    """Of a file in which all rows have the same value, everything is known, and both answers are the same."""
    value = data.draw(st.sampled_from(VALUES[leaf.column][1]))
    if isinstance(value, float) and (math.isnan(value) or VALUES[leaf.column][0] == "FLOAT"):
        return
    may, known, all_, _ = decide(leaf, [facts(leaf.column, [value, value])])
    truth = READERS[0].truth(leaf, {leaf.column: value})
    assert may == known == all_ == (truth is True)
    numbers = decided_in_memory(leaf, [facts(leaf.column, [value, value])]).numbers()
    assert numbers.low[0] == numbers.high[0] == (2 if truth else 0)


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ("row", "NO_STATISTICS"),
        ("max", "NO_STATISTICS"),
        ("type", "NO_STATISTICS"),
        ("sample", "NOT_PRUNING"),
    ],
)
def test_why_a_comparison_is_undecided(decide, lacking, reason):
    rows = [] if lacking == "row" else [facts("int", [1, 2], frozenset([lacking]))]
    assert decide(Leaf("int", Op.GT, (3,)), rows) == (True, False, False, reason)


def test_a_float_with_unknown_nans_is_undecided(decide):
    assert decide(Leaf("double", Op.LT, (-9,)), [facts("double", [1.0], frozenset(["nan_count"]))]) == (
        True,
        False,
        False,
        "NOT_PRUNING",
    )


def test_conditions_that_bounds_cannot_decide(decide):
    rows = [facts("double", [1.0, 2.0])]
    assert decide(Leaf("double", Op.GT, (math.nan,)), rows) == (True, False, False, "UNSUPPORTED_CONDITION")
    list_ = Column(99, "list", parse("ARRAY"))
    condition = of_files(Leaf("list", Op.EQ, ("x",)), lambda _: list_)
    assert (condition.may, condition.known, condition.all) == ("TRUE", "FALSE", "FALSE")


def test_a_bound_that_is_nan_decides_nothing(decide):
    row = facts("double", [1.0, 2.0]) | {"max": "NaN", "nan_count": 0}
    assert decide(Leaf("double", Op.GT, (5,)), [row])[0]
    assert decide(Leaf("double", Op.LT, (5,)), [row | {"min": "NaN"}])[0]


@pytest.mark.parametrize("count", [1, plain_conditions.MAX_LISTED + 1])
def test_nanoseconds_are_within_bounds_of_microseconds(decide, count):
    """A file of one value, 788 ns after the start; its bounds are rounded outwards."""
    row = facts("moment", [START, START + timedelta(microseconds=1)])
    members = tuple(f"2026-01-01T00:00:00.{nanoseconds:09}" for nanoseconds in range(788, 788 + count))
    within = Leaf("moment", Op.IN, members)
    assert decide(within, [row])[::2] == decide(Not(within), [row])[::2] == (True, False)


@pytest.mark.parametrize(("op", "undecided"), [(Op.EQ, (1, 2)), (Op.IN, (1, 2)), (Op.GTE, (1,)), (Op.LTE, (2,))])
def test_literal_between_two_microseconds_is_both(decide, op, undecided):
    """Some readers cut it to microseconds, others round it."""
    leaf = Leaf("moment", op, ("2026-01-01T00:00:00.0000015",))
    for microseconds in range(4):
        row = facts("moment", [START + timedelta(microseconds=microseconds)])
        if microseconds in undecided:
            assert decide(leaf, [row])[::2] == decide(Not(leaf), [row])[::2] == (True, False)
        else:
            assert decide(leaf, [row])[0] is not decide(Not(leaf), [row])[0]


def test_only_the_given_columns_skip():
    node = And((Leaf("int", Op.EQ, (1,)), Leaf("text", Op.EQ, ("a",))))
    by_text = of_files(node, COLUMNS.__getitem__).may_by({COLUMNS["text"].id})
    assert "m1" in by_text and "m0" not in by_text


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        ("int", "abc"),
        ("int", "NaN"),
        ("text", 5),
        ("day", "soon"),
        ("moment", "noon"),
        ("flag", "maybe"),
        ("moment", "2026-01-31T00:00:00+02:00"),
        ("decimal", True),
    ],
)
def test_a_literal_of_another_type_is_refused(column, literal):
    with pytest.raises(BadLiteral, match=column):
        of_files(Leaf(column, Op.EQ, (literal,)), COLUMNS.__getitem__)


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-31 00:00:00", "2026-01-31T00:00:00Z", "2026-01-31T00:00"])
def test_local_times_are_read_as_people_write_them(decide, text):
    row = facts("moment", [datetime(2026, 1, 31)])
    assert decide(Leaf("moment", Op.EQ, (text,)), [row])[:3] == (True, True, True)


def test_counts_by_a_record_of_other_rows_are_not_known():
    row = facts("int", [1, 2])
    for rows in (2, 3, file_counts.UNKNOWN):
        decisions = decided_in_memory(Leaf("int", Op.LT, (3,)), [row])
        found = FileDecisions(decisions.tree, np.array([rows]), decisions.columns).numbers()
        assert (found.high[0], found.guess[0] > 0) == (max(rows, 0), rows > 0)


@pytest.mark.parametrize(("bound", "guess"), [({}, 25), ({"min": None}, 50), ({"completeness": "PARTIAL"}, 50)])
def test_a_guess_is_interpolated_or_a_half(bound, guess):
    row = facts("day", [date(2026, 1, 1)] * 50 + [date(2026, 1, 5)] * 50) | bound
    decisions = decided_in_memory(Leaf("day", Op.LT, ("2026-01-02",)), [row])
    assert decisions.numbers().guess[0] == guess
