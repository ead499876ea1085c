"""pyarrow expressions as filter trees that select the same rows."""

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.client.conditions.arrow_expressions import compared_columns, from_expression, weakened
from store.model.predicates.arrow import to_arrow
from store.model.predicates.tree import parse

f = pc.field


def leaf(column, op, *values):
    return {"column": column, "op": op} | ({"values": list(values)} if values else {})


NOON = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
TREES = [
    (f("a") == 1, leaf("a", "EQ", 1)),
    (f("a") != pa.scalar(7, pa.uint8()), leaf("a", "NEQ", 7)),
    (f("a") < 0.5, leaf("a", "LT", 0.5)),
    (f("a") <= pa.scalar(0.1, pa.float32()), leaf("a", "LTE", 0.10000000149011612)),
    (f("a") >= -math.inf, leaf("a", "GTE", -math.inf)),
    (pc.scalar(5) < f("a"), leaf("a", "GT", 5)),
    (f("a") == True, leaf("a", "EQ", True)),  # noqa: E712
    (f("a") == pa.scalar(None), leaf("a", "EQ", None)),
    (f("a") == 2**63 - 1, leaf("a", "EQ", 2**63 - 1)),
    (f("a") == Decimal("1.50"), leaf("a", "EQ", Decimal("1.50"))),
    (f("a") == 'it\'s "x"\n)', leaf("a", "EQ", 'it\'s "x"\n)')),
    (f("a") == "", leaf("a", "EQ", "")),
    (f("a") == b"x\x00", leaf("a", "EQ", "eAA=")),
    (f('odd) "name"') == 1, leaf('odd) "name"', "EQ", 1)),
    (f("") == 1, leaf("", "EQ", 1)),
    (f("a.b") == 1, leaf("a.b", "EQ", 1)),
    (f("a") == NOON, leaf("a", "EQ", "2026-01-31T12:00:00.500000Z")),
    (f("a") == NOON.astimezone(timezone(timedelta(hours=2))), leaf("a", "EQ", "2026-01-31T12:00:00.500000Z")),
    (f("a") == pa.scalar(-1, pa.timestamp("s", "UTC")), leaf("a", "EQ", "1969-12-31T23:59:59Z")),
    (f("a") == pa.scalar(-1000, pa.timestamp("ns", "UTC")), leaf("a", "EQ", "1969-12-31T23:59:59.999999Z")),
    (f("a").is_null(), leaf("a", "IS_NULL")),
    (f("a").is_valid(), leaf("a", "IS_NOT_NULL")),
    (~f("a").is_null(), {"not": leaf("a", "IS_NULL")}),
    (f("a").isin([1, 2]), {"and": [leaf("a", "IS_NOT_NULL"), leaf("a", "IN", 1, 2)]}),
    (f("a").isin([1, None]), {"or": [leaf("a", "IS_NULL"), leaf("a", "IN", 1)]}),
    (f("a").isin([None]), leaf("a", "IS_NULL")),
    (f("a").isin(pa.array([], pa.int64())), {"and": [leaf("a", "IS_NULL"), leaf("a", "IS_NOT_NULL")]}),
    (f("a").isin(["x, y", '"']), {"and": [leaf("a", "IS_NOT_NULL"), leaf("a", "IN", "x, y", '"')]}),
    (f("a").isin([NOON]), {"and": [leaf("a", "IS_NOT_NULL"), leaf("a", "IN", "2026-01-31T12:00:00.500000Z")]}),
    ((f("a") == 1) & (f("b") == 2) & (f("c") == 3), {"and": [leaf(c, "EQ", i) for i, c in enumerate("abc", 1)]}),
    (
        (f("a") == 1) & ((f("b") == 2) | (f("c") == 3)),
        {"and": [leaf("a", "EQ", 1), {"or": [leaf("b", "EQ", 2), leaf("c", "EQ", 3)]}]},
    ),
]


@pytest.mark.parametrize(("expression", "tree"), TREES, ids=lambda part: str(part)[:60])
def test_expression_becomes_a_filter_tree(expression, tree):
    assert from_expression(expression) == tree
    parse(tree)


REJECTED = [
    (f("a"), "alone"),
    (~f("a"), "alone"),
    (pc.scalar(True), "alone"),
    (f("a") == f("b"), "compares"),
    (pc.scalar(1) == pc.scalar(1), "column"),
    (f("a") + 1 == 2, "add"),
    (f("a").cast("int64") == 1, "cast"),
    (f("a").is_null(nan_is_null=True), "nan_is_null"),
    (f("a").is_nan(), "is_nan"),
    (f("a", "b") == 1, "nested"),
    (f(0) == 1, "read"),
    (pc.match_substring(f("a"), "x"), "match_substring"),
    (f("a") == datetime(2026, 1, 31), "zone"),
    (f("a").isin([datetime(2026, 1, 31)]), "zone"),
    (f("a") == pa.scalar(1, pa.timestamp("ns", "UTC")), "microsecond"),
    (f("a") == pa.scalar(2**60, pa.timestamp("s", "UTC")), "years"),
    (f("a") == pa.scalar(1, pa.time64("us")), "time"),
    (f("a") == pa.scalar([1]), "list"),
    ("a = 1", "str"),
]


@pytest.mark.parametrize(("expression", "mention"), REJECTED, ids=lambda part: str(part)[:60])
def test_unsupported_expression_is_rejected(expression, mention):
    with pytest.raises(ValueError, match=mention):
        from_expression(expression)


def test_compared_columns_are_those_of_comparisons_and_lists():
    expression = (
        (f("a") > 1) & (pc.starts_with(f("b"), "x") | ~f("c").isin(["y"])) & (f("d") + 1 == 2) & f("e").is_null()
    )
    assert compared_columns(expression) == {"a", "c"}


def test_long_chains_stay_flat():
    expression = f("a") == 0
    for i in range(1, 1000):
        expression = expression | (f("a") == i)
    tree = from_expression(expression)
    assert len(tree["or"]) == 1000
    parse(tree)
    tree = from_expression(f("a").isin(list(range(60_000))))
    assert len(tree["and"][1]["values"]) == 60_000


TABLE = pa.table({"i": [None, 0, 1, 2, 3], "s": ["a", None, "b", "", "a"]})
LEAVES = st.one_of(
    st.builds(
        lambda op, v: op(f("i"), v),
        st.sampled_from([pc.equal, pc.not_equal, pc.less, pc.greater_equal]),
        st.sampled_from([0, 2, 5]),
    ),
    st.builds(lambda v: f("s") == v, st.sampled_from(["a", "", "z"])),
    st.builds(lambda v: f("i").isin(pa.array(v, pa.int64())), st.lists(st.sampled_from([None, 0, 1, 2]), max_size=3)),
    st.sampled_from([f("i").is_null(), f("s").is_valid()]),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda e: st.one_of(st.builds(lambda a, b: a & b, e, e), st.builds(lambda a, b: a | b, e, e), e.map(lambda a: ~a)),
)


@given(EXPRESSIONS)
def test_tree_selects_the_same_rows_as_the_expression(expression):
    tree = from_expression(expression)
    assert TABLE.take(to_arrow(parse(tree), TABLE.schema)(TABLE)).equals(TABLE.filter(expression))


LIKE = pc.starts_with(f("a"), "x")
WEAKENED = [
    (f("a") == 1, leaf("a", "EQ", 1)),
    (LIKE, None),
    (LIKE & (f("b") == 1), leaf("b", "EQ", 1)),
    ((f("b") == 1) & (LIKE & (f("c") < 2)), {"and": [leaf("b", "EQ", 1), leaf("c", "LT", 2)]}),
    (LIKE | (f("b") == 1), None),
    (~(LIKE & (f("b") == 1)), None),
    ((f("c") < 2) & ~(LIKE & (f("b") == 1)), leaf("c", "LT", 2)),
    (f("a"), None),
]


@pytest.mark.parametrize(("expression", "tree"), WEAKENED)
def test_weakened_keeps_the_supported_parts_of_a_conjunction(expression, tree):
    assert weakened(expression) == tree


def test_if_else_of_duckdb_becomes_in():
    null = pa.scalar(None, pa.bool_())
    assert from_expression(pc.if_else(f("a").is_valid(), f("a").isin([1, 2]), null)) == leaf("a", "IN", 1, 2)
    for unsupported in (pc.if_else(f("a").is_valid(), f("a") > 1, False), pc.if_else(f("a") > 1, f("a") > 1, null)):
        with pytest.raises(ValueError, match="if_else"):
            from_expression(unsupported)
