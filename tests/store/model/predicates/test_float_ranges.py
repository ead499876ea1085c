"""Ranges of floats enclose the bounds of every type, and a comparison with them leaves out no file with a match."""

import math
import operator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from store.model import bounds
from store.model.logical_types import parse
from store.model.predicates.float_ranges import HIGH, LOW, may_sql, with_ranges
from store.model.predicates.tree import Op

EPOCH = datetime(1970, 1, 1)
INTS = st.integers(-(2**63), 2**63 - 1)
TYPES = {
    "INT": st.one_of(INTS, st.integers(-100, 100), st.integers(2**24 - 3, 2**24 + 3)),
    "FLOAT": st.floats(width=32, allow_nan=False),
    "DOUBLE": st.floats(allow_nan=False),
    "DECIMAL(38,10)": st.decimals(allow_nan=False, allow_infinity=False, places=10).filter(lambda d: abs(d) < 10**28),
    "DECIMAL(76,0)": st.integers(-(10**76) + 1, 10**76 - 1).map(Decimal),
    "DATE": st.dates(),
    "TIME": st.times(),
    "TIMESTAMP": st.datetimes(),
}


def number(value) -> Fraction | float:
    """A value in the order of its type, exactly."""
    match value:
        case datetime():
            return Fraction((value - EPOCH) // timedelta(microseconds=1))
        case date():
            return Fraction((value - EPOCH.date()).days)
        case time():
            return number(datetime.combine(EPOCH.date(), value))
        case float() if math.isinf(value):
            return value
    return Fraction(value)


def text(value, type: str) -> str:
    given = value.isoformat() if isinstance(value, date | datetime | time) else str(value).replace("inf", "Infinity")
    found = bounds.canonical(given, parse(type))
    assert found is not None
    return found


def rows(low, high, type: str, nan_count: int | None = 0) -> pa.Table:
    columns = {"logical_type": [type], "min": [low], "max": [high], "nan_count": pa.array([nan_count], pa.int64())}
    return pa.table(columns)


def ends(table: pa.Table) -> tuple[float, float]:
    found = with_ranges(table)
    if LOW not in found.column_names:
        return -math.inf, math.inf
    assert found.select([LOW, HIGH]).schema == pa.schema([(LOW, pa.float32()), (HIGH, pa.float32())])
    return found[LOW][0].as_py(), found[HIGH][0].as_py()


BOUNDS = st.sampled_from(list(TYPES)).flatmap(
    lambda type: st.tuples(st.just(type), st.tuples(TYPES[type], TYPES[type]).map(sorted), TYPES[type])
)
COMPARES = {Op.LT: operator.lt, Op.LTE: operator.le, Op.GT: operator.gt, Op.GTE: operator.ge, Op.EQ: operator.eq}


@given(BOUNDS)
@example(("INT", [2**24 + 1, 2**63 - 1], 0))
@example(("DOUBLE", [-math.inf, math.inf], 0.0))
@example(("DOUBLE", [-0.0, 5e-324], 1e-300))
@example(("DOUBLE", [1e300, math.inf], -1e300))
@example(("FLOAT", [-3.4028234663852886e38, 1.401298464324817e-45], 0.1))
@example(("DECIMAL(76,0)", [Decimal(1 - 10**76), Decimal(10**76 - 1)], Decimal(0)))
def test_ranges_enclose_bounds(given_bounds):
    type, (low, high), _ = given_bounds
    least, greatest = ends(rows(text(low, type), text(high, type), type))
    assert least <= number(low)
    assert number(high) <= greatest
    if all(abs(number(end)) < 1e38 for end in (low, high)):  # to be of use they must be near, too
        for end, found in ((low, least), (high, greatest)):
            assert abs(Fraction(found) - number(end)) <= 2 * Fraction(float(np.spacing(np.float32(abs(found)))))


@given(BOUNDS, st.sampled_from(list(COMPARES)), st.booleans())
@example(("INT", [2**24 + 1, 2**24 + 1], 2**24 + 1), Op.EQ, False)
@example(("INT", [2**53, 2**53 + 1], 2**53 + 1), Op.GT, False)
def test_a_value_within_bounds_is_found(given_bounds, op, is_low):
    """If the least or the greatest value satisfies a comparison, the range does."""
    type, (low, high), literal = given_bounds
    value = number(low if is_low else high)
    assume(COMPARES[op](value, number(literal)))
    table = with_ranges(rows(text(low, type), text(high, type), type))
    assume(LOW in table.column_names)
    written = literal if isinstance(literal, int | float) else text(literal, type)
    sql = f"SELECT {may_sql(op, [written], parse(type), 's')} FROM s"
    with duckdb.connect() as connection:
        connection.register("s", table)
        assert connection.execute(sql).fetchall() == [(True,)]


def test_a_value_far_outside_of_bounds_is_not():
    table = with_ranges(rows("10", "20", "INT"))
    with duckdb.connect() as connection:
        connection.register("s", table)
        for op, value, truth in (
            (Op.EQ, [9], False),
            (Op.EQ, [10], True),
            (Op.GT, [21], False),
            (Op.LT, [9], False),
            (Op.IN, [1, 30], True),
            (Op.IN, [1, 2, 3], False),
            (Op.NEQ, [10], True),
            (Op.EQ, [10**400], True),
        ):
            ((found,),) = connection.execute(f"SELECT {may_sql(op, value, parse('INT'), 's')} FROM s").fetchall()
            assert found is truth, (op, value)


@pytest.mark.parametrize(
    "table",
    [
        rows("1.0", "2.0", "DOUBLE", 1),
        rows("1.0", "2.0", "DOUBLE", None),
        rows("NaN", "NaN", "DOUBLE"),
        rows(None, None, "INT"),
        rows("a", "b", "STRING"),
        rows("false", "true", "BOOLEAN"),
        rows("no number", "no number", "INT"),
        rows("1", "2", "INT").set_column(0, "logical_type", pa.nulls(1, pa.string())),
        rows("1.0", "2.0", "DOUBLE").drop_columns(["nan_count"]),
    ],
)
def test_ranges_without_a_known_end_have_none(table):
    assert ends(table) == (-math.inf, math.inf)


def test_rows_of_many_types_keep_their_order():
    types = ["INT", "STRING", "INT", "DATE", None]
    lows = ["5", "a", "-7", "1970-01-02", "1"]
    found = with_ranges(pa.table({"logical_type": types, "min": lows, "max": lows}))
    assert [round(low) if math.isfinite(low) else None for low in found[LOW].to_pylist()] == [5, None, -7, 1, None]
    assert found.drop_columns([LOW, HIGH]).equals(pa.table({"logical_type": types, "min": lows, "max": lows}))


def test_other_rows_stay_as_they_are():
    files = pa.table({"file_path": ["f"]})
    assert with_ranges(files) is files
    assert with_ranges(pa.table({"logical_type": pa.array([], pa.string()), "min": [], "max": []})).num_rows == 0
