"""Whole numbers and decimals compared with floating literals, against the rows that DuckDB and pyarrow select."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.model.logical_types import parse
from store.model.predicates import bounds, buckets, plain_conditions
from store.model.predicates.plain_conditions import Column
from store.model.predicates.pruning import facts_sql, of_files
from store.model.predicates.tree import Leaf, Not, Op
from tests.store.model.bounds.forms import text_of

TYPES = ("INT", "DECIMAL(38,19)", "DECIMAL(38,2)", "DECIMAL(18,4)", "DECIMAL(10,2)")
ARROW = {Op.EQ: "equal", Op.NEQ: "not_equal", Op.LT: "less", Op.LTE: "less_equal", Op.GT: "greater"}
ARROW |= {Op.GTE: "greater_equal"}
SQL = {Op.EQ: "=", Op.NEQ: "<>", Op.LT: "<", Op.LTE: "<=", Op.GT: ">", Op.GTE: ">="}


LONG_TENTH = Decimal.from_float(0.1)  # a bit more, and the same double


def unit_of(type: str) -> Decimal:
    return Decimal(1).scaleb(-(parse(type).scale or 0))


@st.composite
def values_of(draw, type):
    """A value of a type, mostly where doubles are as far apart as values, or farther."""
    if type == "INT":
        near = draw(st.sampled_from([0, 100, 2**53, 2**54, 2**60, 2**63 - 1024]))
        return max(-(2**63), min(2**63 - 1, draw(st.sampled_from([-1, 1])) * near + draw(st.integers(-1100, 1100))))
    lt = parse(type)
    digits = draw(st.integers(1, lt.precision))
    whole = draw(st.integers(-(10**digits) + 1, 10**digits - 1))
    return Decimal(whole).scaleb(-lt.scale)


@st.composite
def literals_near(draw, value):
    """A floating literal at or near a value, and how it is written in SQL."""
    double = float(value)
    for _ in range(draw(st.integers(0, 2))):
        double = math.nextafter(double, draw(st.sampled_from([-math.inf, math.inf])))
    return draw(st.sampled_from([double, Decimal(repr(double)), Decimal(double)]))


def doubled(literal) -> str:
    """The literal of a DOUBLE in SQL."""
    return (
        f"{literal:E}"
        if isinstance(literal, Decimal)
        else f"{literal!r}e0"
        if "e" not in repr(literal)
        else repr(literal)
    )


@st.composite
def cases(draw):
    type = draw(st.sampled_from(TYPES))
    first = draw(values_of(type))
    steps = st.integers(-3, 3).map(lambda count: count * (1 if type == "INT" else unit_of(type)))
    with localcontext(prec=80):
        limit = 2**63 - 1 if type == "INT" else Decimal(10 ** parse(type).precision - 1) * unit_of(type)
        rows = [first, *(max(-limit, min(limit, first + step)) for step in draw(st.lists(steps, max_size=2)))]
    op = draw(st.sampled_from([*SQL, Op.BETWEEN, Op.IN]))
    count = {Op.BETWEEN: 2, Op.IN: draw(st.sampled_from([1, 2, plain_conditions.MAX_LISTED + 1]))}.get(op, 1)
    given = tuple(draw(literals_near(draw(st.sampled_from(rows)))) for _ in range(count))
    leaf = Leaf("x", op, given)
    return type, rows, leaf, draw(st.booleans())


@pytest.fixture(scope="module")
def database():
    with duckdb.connect() as connection:
        yield connection


def decided(database, type, rows, node):
    """May a row satisfy it, and do all."""
    lt = parse(type)
    condition = of_files(node, lambda name: Column(1, name, lt))
    row = {
        "file_path": "f",
        "column_id": 1,
        "logical_type": type,
        "row_count": len(rows),
        "null_count": 0,
        "nan_count": None,
        "min": text_of(min(rows), lt),
        "max": text_of(max(rows), lt),
        "completeness": "COMPLETE",
        "confidence_level": None,
        "row_groups_sampled": None,
    }
    schema = pa.schema([("confidence_level", pa.float64()), ("row_groups_sampled", pa.int64())])
    table = pa.Table.from_pylist([row])
    for field in schema:
        table = table.set_column(table.schema.get_field_index(field.name), field, pa.nulls(1, field.type))
    database.register("facts", table)
    if not condition.columns:
        return database.execute(f"SELECT {condition.may}, {condition.all}").fetchall()[0]
    ((_, facts),) = condition.columns.items()
    sql = facts_sql(condition.columns, "FROM facts s WHERE TRUE")
    return database.execute(
        f"SELECT {condition.may}, {condition.all} FROM ({sql}) f", list(facts.parameters)
    ).fetchall()[0]


def by_duckdb(database, type, rows, leaf, negated, written):
    """Which rows DuckDB selects."""
    kind = pa.int64() if type == "INT" else pa.decimal128(parse(type).precision, parse(type).scale)
    database.register("rows", pa.table({"x": pa.array(rows, kind)}))
    texts = [written(value) for value in leaf.values]
    match leaf.op:
        case Op.BETWEEN:
            condition = f"x BETWEEN {texts[0]} AND {texts[1]}"
        case Op.IN:
            condition = f"x IN ({', '.join(texts)})"
        case _:
            condition = f"x {SQL[leaf.op]} {texts[0]}"
    sql = f"SELECT {'NOT ' if negated else ''}({condition}) FROM rows"
    return [truth for (truth,) in database.execute(sql).fetchall()]


def by_pyarrow(type, rows, leaf, negated):
    """Which rows pyarrow selects, which compares with doubles; integers are made doubles before, as it refuses some."""
    lt = parse(type)
    values = pa.array(map(float, rows)) if type == "INT" else pa.array(rows, pa.decimal128(lt.precision, lt.scale))

    def compared(op, literal):
        return pc.call_function(ARROW[op], [values, pa.scalar(float(literal), pa.float64())])

    match leaf.op:
        case Op.BETWEEN:
            found = pc.and_(compared(Op.GTE, leaf.values[0]), compared(Op.LTE, leaf.values[1]))
        case Op.IN:
            found = pa.array([False] * len(rows))
            for literal in leaf.values:
                found = pc.or_(found, compared(Op.EQ, literal))
        case _:
            found = compared(leaf.op, leaf.values[0])
    return (pc.invert(found) if negated else found).to_pylist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(case=cases())
def test_no_row_is_lost_to_a_reader_that_compares_doubles(database, case):
    type, rows, leaf, negated = case
    may, all_ = decided(database, type, rows, Not(leaf) if negated else leaf)
    readers = {
        "DuckDB, doubles": by_duckdb(database, type, rows, leaf, negated, doubled),
    }
    if all(isinstance(value, float) for value in leaf.values):
        readers["pyarrow"] = by_pyarrow(type, rows, leaf, negated)
    if type == "INT" or max(len(Decimal(value).as_tuple().digits) for value in leaf.values) <= 18:
        readers["DuckDB, decimals"] = by_duckdb(
            database,
            type,
            rows,
            leaf,
            negated,
            lambda value: f"{Decimal(repr(value) if isinstance(value, float) else value):f}",
        )
    for reader, truths in readers.items():
        assert may or True not in truths, f"a row is true to {reader}: {truths}"
        assert not all_ or all(truths), f"not every row is true to {reader}: {truths}"


@pytest.mark.parametrize(
    ("type", "low", "high", "leaf", "expected"),
    [
        ("INT", 5, 9, Leaf("x", Op.LT, (5.0,)), (False, False)),
        ("INT", 5, 9, Leaf("x", Op.LTE, (9.0,)), (True, True)),
        ("INT", 2**53 - 2, 2**53 - 1, Leaf("x", Op.EQ, (float(2**53),)), (False, False)),
        ("INT", 2**53 + 1, 2**53 + 1, Leaf("x", Op.EQ, (2**53,)), (False, False)),
        ("INT", 2**53 + 1, 2**53 + 1, Leaf("x", Op.EQ, (float(2**53),)), (True, False)),
        ("INT", 2**53 + 1, 2**53 + 1, Leaf("x", Op.GT, (float(2**53),)), (True, False)),
        ("INT", 2**53 + 1, 2**53 + 1, Leaf("x", Op.EQ, (str(2**53),)), (False, False)),
        ("INT", 2**63 - 1, 2**63 - 1, Leaf("x", Op.GTE, (2**63,)), (True, False)),
        ("DECIMAL(10,2)", Decimal("1.00"), Decimal("1.50"), Leaf("x", Op.LTE, (Decimal("1.5"),)), (True, True)),
        ("DECIMAL(10,2)", Decimal("1.00"), Decimal("1.50"), Leaf("x", Op.LTE, (1.5,)), (True, False)),
        ("DECIMAL(10,2)", Decimal("1.00"), Decimal("1.49"), Leaf("x", Op.LTE, (1.5,)), (True, True)),
        ("DECIMAL(10,2)", Decimal("1.51"), Decimal("1.60"), Leaf("x", Op.LTE, (1.5,)), (False, False)),
        ("DECIMAL(10,2)", Decimal("0.10"), Decimal("0.10"), Leaf("x", Op.EQ, (LONG_TENTH,)), (True, False)),
        ("DECIMAL(38,19)", Decimal(7), Decimal(8), Leaf("x", Op.LTE, (9.5,)), (True, True)),
    ],
)
def test_literals_are_as_sharp_as_readers_agree(database, type, low, high, leaf, expected):
    assert decided(database, type, [low, high], leaf) == expected


def test_literal_that_is_several_values_has_no_bucket():
    assert buckets.hash_of(float(2**53), parse("INT")) is None
    assert buckets.hash_of(2**53, parse("INT")) is not None
    assert buckets.hash_of(100.0, parse("INT")) is not None
    assert bounds.readings(math.inf, parse("INT")) == ["Infinity"]
