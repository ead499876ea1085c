"""Predicate trees: agreement of SQL form, Arrow form and a simple model; edge cases; refusals."""

import base64
import math
import operator
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store.model.errors import InvalidArgument
from store.model.predicates.arrow import to_arrow
from store.model.predicates.literals import typed_literal
from store.model.predicates.sql import to_sql
from store.model.predicates.tree import And, Leaf, Op, Or, check, equal_values, parse, parse_predicates

BIG = 2**53 + 1
INSTANT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "j": pa.int32(),
        "f": pa.float64(),
        "b": pa.bool_(),
        "s": pa.string(),
        "t": INSTANT,
        "x": pa.binary(),
        "l": pa.list_(pa.int64()),
    }
)


@pytest.fixture(scope="module")
def duck():
    connection = duckdb.connect()
    yield connection
    connection.close()


def matching_rows(duck, tree, table):
    """Numbers of the rows that match the tree; the two forms must agree."""
    node = parse(tree)
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    arrow = numbered.take(to_arrow(node, table.schema)(numbered))["row"].to_pylist()
    text, parameters = to_sql(node, table.schema, lambda name: f'"{name}"')
    duck.register("numbered", numbered)
    found = duck.execute(f"SELECT row FROM numbered WHERE {text} ORDER BY row", parameters).fetchall()
    duck.unregister("numbered")
    assert [row for (row,) in found] == arrow, text
    return arrow


def leaf(column, op, *values):
    return {"column": column, "op": op} | ({"values": list(values)} if values else {})


def one(name, *values):
    return pa.table({name: pa.array(values, SCHEMA.field(name).type)})


# Agreement.

INTS = [None, 0, 7, -1, BIG, BIG - 1, 2**63 - 1, -(2**63)]
FLOATS = [None, 0.0, -0.0, 0.3, 0.1 + 0.2, 1e300, math.nan, math.inf, -math.inf, 5e-324]
TEXTS = [None, "", "a", "A", "é", "e\u0301", "\uffff", "😀", "NaN", "true", "1", "it's", "a\x00", "%"]
TIMES = [None, *(datetime(2026, 2, 26, 12, 34, 56, us, UTC) for us in (0, 1, 500_000)), datetime(1, 1, 1, tzinfo=UTC)]
BYTES = [None, b"", b"\x00", b"\x00\x7f\xff", b"\x00\x80", b"\xff"]
ROW = st.tuples(
    *(
        st.sampled_from(values)
        for values in (
            INTS,
            [None, 0, 7, -(2**31)],
            FLOATS,
            [None, True, False],
            TEXTS,
            TIMES,
            BYTES,
            [None, [], [1, None]],
        )
    )
)
LITERALS = {
    "i": [
        *INTS,
        "007",
        " 12 ",
        "+7",
        "seven",
        "1.5",
        7.0,
        6.5,
        -0.0,
        True,
        "9223372036854775808",
        10**30,
        1e300,
        2.0**53,
        2.0**63,
        "-1e-999999999999999999999",
        "1e999999999",
        "NaN",
        "-Infinity",
        "9007199254740992.5",
    ],
    "j": [None, 0, 7, 7.0, 0.5, "-2147483648", "-2147483648.5", 2**31, "x"],
    "f": [*FLOATS, "NaN", "nan", "Infinity", "-0.0", "0.30", "1e2", "", "1_0", 10**400, True],
    "b": [None, True, False, "T", "f", "TRUE", "false", "1", 1, "yes"],
    "s": [*TEXTS, 1, True, 1.5, "\ud800"],
    "t": [
        None,
        "2026-02-26T12:34:56Z",
        "2026-02-26T13:34:56.500+01:00",
        "2026-02-26T12:34:56",
        "0001-01-01T00:00:00Z",
        "2026-02-26T12:34:56.0000010Z",
        "2026-02-26T12:34:56.0000001Z",
        "yesterday",
        5,
    ],
    "x": [None, "", "AA==", "AH//", "AIA=", "?", "AH//\n", "AB=="],
    "l": [1, None, "[]"],
    "none": [1, None],
}


@st.composite
def leaves(draw):
    column = draw(st.sampled_from(list(LITERALS)))
    op = draw(st.sampled_from(list(Op)))
    count = {"BETWEEN": 2, "IS_NULL": 0, "IS_NOT_NULL": 0}.get(op, 1)
    if op is Op.IN:
        count = draw(st.sampled_from([1, 2, 3, 70]))
    values = [draw(st.sampled_from(LITERALS[column])) for _ in range(count)]
    return leaf(draw(st.sampled_from([column, f" {column.upper()}"])), str(op), *values)


TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(lambda trees: {"and": trees}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda trees: {"or": trees}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda tree: {"not": tree}, inner),
    ),
    max_leaves=6,
)


COMPARES = {
    "EQ": operator.eq,
    "NEQ": operator.ne,
    "LT": operator.lt,
    "LTE": operator.le,
    "GT": operator.gt,
    "GTE": operator.ge,
}


def by_value(literal, _type):
    """Literal of an integer column as a number that Python compares with integers exactly."""
    if literal is None or isinstance(literal, bool):
        return None
    text = str(literal).strip().lower()
    if text in ("nan", "infinity", "-infinity"):
        return float(text)
    if "e" in text and len(text.partition("e")[2]) > 4:
        return {"-1e-999999999999999999999": Fraction(-1, 2), "1e999999999": math.inf}[text]
    try:
        return Fraction(text)
    except ValueError:
        return None


def model(tree, row):
    """Naive reference evaluation of a tree for one row: true, false or None."""
    if "not" in tree:
        inner = model(tree["not"], row)
        return None if inner is None else not inner
    for word, decides in (("and", False), ("or", True)):
        if word in tree:
            inner = [model(child, row) for child in tree[word]]
            return decides if decides in inner else None if None in inner else not decides
    name, op = tree["column"].strip().lower(), tree["op"]
    if name not in row:
        return None
    value = row[name]
    if op in ("IS_NULL", "IS_NOT_NULL"):
        return (value is None) == (op == "IS_NULL")
    read = by_value if pa.types.is_integer(SCHEMA.field(name).type) else typed_literal
    literals = [read(literal, SCHEMA.field(name).type) for literal in tree["values"]]
    if name == "t" and value is not None:
        value = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if value is None:
        return None
    if op == "IN":
        return any(value == v for v in literals if v is not None) or (None if None in literals else False)
    if None in literals:
        return None
    if op == "BETWEEN":
        return literals[0] <= value <= literals[1]
    return COMPARES[op](value, literals[0])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(TREES, st.lists(ROW, max_size=12))
@example({"not": leaf("i", "BETWEEN", "seven", 5)}, [(7,) + (None,) * 7])
@example(leaf("f", "IN", *[0.0] * 70), [(None, None, -0.0) + (None,) * 5])
@example(leaf("f", "IN", -0.0, 1), [(None, None, 0.0) + (None,) * 5])
@example({"not": leaf("f", "IN", "NaN")}, [(None, None, f) + (None,) * 5 for f in FLOATS])
def test_sql_and_arrow_agree_with_the_model(duck, tree, rows):
    columns = [[row[i] for row in rows] for i in range(len(SCHEMA))]
    table = pa.table([pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    expected = [i for i, row in enumerate(rows) if model(tree, dict(zip(SCHEMA.names, row, strict=True)))]
    assert matching_rows(duck, tree, table) == expected


# Edge cases.


def test_nan_equals_no_value_and_has_no_order(duck):
    table = one("f", math.nan, 1.0, None, math.inf)
    for op, kept in [("EQ", []), ("NEQ", [0, 1, 3]), ("LT", []), ("LTE", []), ("GT", []), ("GTE", []), ("IN", [])]:
        assert matching_rows(duck, leaf("f", op, "NaN"), table) == kept, op
    assert matching_rows(duck, leaf("f", "GT", 0), table) == [1, 3]
    assert matching_rows(duck, leaf("f", "GTE", "Infinity"), table) == [3]
    assert matching_rows(duck, leaf("f", "NEQ", 1), table) == [0, 3]
    assert matching_rows(duck, {"not": leaf("f", "GT", 0)}, table) == [0]
    assert matching_rows(duck, {"not": leaf("f", "EQ", "NaN")}, table) == [0, 1, 3]
    assert matching_rows(duck, leaf("f", "BETWEEN", "-Infinity", "Infinity"), table) == [1, 3]


def test_in_lists_of_70_literals_match_for_each_type(duck):
    many = 70
    for name, literals, table in [
        ("i", [*range(many - 1), None], one("i", 5, 500, None)),
        ("j", list(range(many)), one("j", 5, 500, None)),
        ("f", [i / 2 for i in range(many)], one("f", 2.5, math.nan, None)),
        ("s", [f"it's {i}" for i in range(many)], one("s", "it's 5", "x", None)),
        ("x", [base64.b64encode(bytes([i])).decode() for i in range(many)], one("x", b"\x05", b"", None)),
        (
            "t",
            [f"2026-01-01T00:{i % 60:02}:{i // 60:02}Z" for i in range(many)],
            one("t", datetime(2026, 1, 1, 0, 5, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC), None),
        ),
    ]:
        assert matching_rows(duck, leaf(name, "IN", *literals), table) == [0]
        assert matching_rows(duck, {"not": leaf(name, "IN", *literals)}, table) == ([] if None in literals else [1])


def test_trees_at_the_limits_of_size_and_depth_are_evaluated(duck):
    table = one("i", 1, 2, None)
    chain = {"or": [leaf("i", "EQ", i) for i in range(2, 1000)]}
    assert matching_rows(duck, chain, table) == [1]
    assert matching_rows(duck, leaf("i", "IN", *range(2, 65_538)), table) == [1]
    deep = leaf("i", "EQ", 1)
    for _ in range(15):
        deep = {"not": {"not": deep}}
    assert matching_rows(duck, deep, table) == [0]


def test_hostile_text_never_becomes_part_of_the_sql(duck):
    hostile = "x' OR 1=1; DROP TABLE t --"
    text, parameters = to_sql(parse(leaf("s", "EQ", hostile)), SCHEMA, lambda name: f'"{name}"')
    assert parameters == [hostile] and "DROP" not in text
    text, parameters = to_sql(parse(leaf(hostile, "EQ", 1)), SCHEMA, lambda name: f'"{name}"')
    assert parameters == [] and "DROP" not in text


INSTANTS = {
    "2026-02-26T12:34:56Z": True,
    "2026-02-26T12:34Z": True,
    "2026-02-26T14:34:56.000000000+02:00": True,
    "2026-02-26T14:34:56.0000001Z": False,
    "2026-02-26T12:34:56": False,
    "2026-02-26 12:34:56Z": False,
    "2026-02-26T12:34.5Z": False,
    "2026-02-30T12:34:56Z": False,
    "2026-02-26": False,
    "1772109296": False,
}


@pytest.mark.parametrize(("text", "fine"), INSTANTS.items())
def test_instant_literals_are_parsed_or_invalid(text, fine):
    assert (typed_literal(text, INSTANT) is not None) == fine


def test_instant_literals_of_other_zones_are_normalized_to_utc():
    assert typed_literal("2026-02-26T13:34:56+01:00", INSTANT) == typed_literal("2026-02-26T12:34:56Z", INSTANT)
    assert typed_literal("2026-02-26T11:04:56-01:30", INSTANT) == typed_literal("2026-02-26T12:34:56Z", INSTANT)
    assert typed_literal("1969-12-31T23:59:59.999999Z", INSTANT) == -1


def test_integer_literals_must_fit_the_width_of_the_column():
    assert typed_literal("-128", pa.int8()) == -128 and typed_literal("128", pa.int8()) is None
    assert typed_literal("255", pa.uint8()) == 255 and typed_literal("-1", pa.uint8()) is None
    assert typed_literal(2**63 - 1, pa.int64()) == 2**63 - 1 and typed_literal(2**63, pa.int64()) is None
    assert typed_literal("1.0", pa.int64()) == 1 and typed_literal("1.5", pa.int64()) is None
    assert typed_literal("0" * 5000 + "7", pa.int64()) == 7 and typed_literal("9" * 5000, pa.int64()) is None


# Strict checks of literals.

BAD = {
    "i": ["seven", "", True, "0x1"],
    "f": ["many", ""],
    "b": ["yes", "2"],
    "x": ["?"],
    "l": ["[]"],
    "t": ["yesterday", "2026-02-26", "2026-02-30T12:34:56Z", "7"],
}
FINE = {
    "i": [None, 1, 1.5, 10**30, "1.5", "Infinity", " 7 "],
    "f": ["NaN", 1, "1e2"],
    "b": ["T", True, 1, None],
    "x": ["AA==", 1],
    "l": [1, None],
    "s": ["", "seven", 1, True],
    "t": ["2026-02-26T12:34:56Z", "2026-02-26T12:34:56.0000001Z", 5],
}


@pytest.mark.parametrize("column", BAD)
def test_literal_that_cannot_be_parsed_for_the_column_is_refused(column):
    for literal in BAD[column]:
        with pytest.raises(InvalidArgument, match=f"^{column}: ") as refusal:
            check(parse({"not": {"or": [leaf(column, "IN", None, literal)]}}), SCHEMA)
        assert refusal.value.code == "BAD_LITERAL" and f'"{literal}"' in str(refusal.value)


@pytest.mark.parametrize("column", FINE)
def test_numbers_nulls_and_parsable_literals_are_accepted(column):
    check(parse(leaf(column, "IN", *FINE[column])), SCHEMA)


def test_unknown_column_is_refused_with_the_nearest_name():
    for op in ("IS_NULL", "EQ"):
        with pytest.raises(InvalidArgument, match='"row_cuont"; did you mean "row_count"') as refusal:
            check(
                parse({"and": [leaf(" Row_Count", "EQ", 1), leaf("row_cuont", op, *[1] * (op == "EQ"))]}),
                pa.schema({"row_count": pa.int64()}),
            )
        assert refusal.value.code == "UNKNOWN_COLUMN"
    check(None, SCHEMA)


# Refusals.

WRONG = [
    (leaf("ndv", "LIKE", "1"), [*Op, "LIKE"]),
    (leaf("ndv", "eq", "1"), ["eq", "EQ"]),
    (leaf("ndv", "EQ"), ["EQ", "1 value", "got 0"]),
    (leaf("ndv", "EQ", 1, 2), ["got 2"]),
    (leaf("ndv", "BETWEEN", 1), ["BETWEEN", "2 values", "got 1"]),
    (leaf("ndv", "IN"), ["IN", "got 0"]),
    (leaf("ndv", "IS_NULL", 1), ["IS_NULL", "got 1"]),
    ({"column": "ndv"}, ["op", "null"]),
    ({"column": "ndv", "op": ["EQ"]}, ["op", "array"]),
    ({"op": "EQ", "values": [1]}, ["column"]),
    ({"column": "ndv", "op": "EQ", "values": [[1]]}, ["values[0]", "array"]),
    ({"column": "ndv", "op": "EQ", "values": [{"a": 1}]}, ["values[0]", "object"]),
    ({"column": "ndv", "op": "EQ", "values": "1"}, ["values", "text"]),
    ({"column": "ndv", "op": "EQ", "values": None}, ["values", "null"]),
    ({"column": 7, "op": "EQ", "values": [1]}, ["column", "number"]),
    ({"column": "ndv", "op": "EQ", "values": [1], "value": 1}, ['"value"']),
    ({"and": leaf("ndv", "EQ", 1)}, ["and", "object"]),
    ({"and": []}, ["and", "empty"]),
    ({"not": [leaf("ndv", "EQ", 1)]}, ["filter.not", "array"]),
    ({"xor": [leaf("ndv", "EQ", 1)]}, ["xor"]),
    ({"and": [], "or": []}, ["and", "or"]),
    ({}, ["none"]),
    ([], ["array"]),
    ("ndv > 1", ["text"]),
    (None, ["null"]),
    ({"or": [leaf("a", "EQ", 1), {"and": [leaf("a", "EQ")]}]}, ["filter.or[1].and[0]"]),
    ({"or": [leaf("a", "EQ", 1)] * 1024}, ["1024"]),
    (leaf("a", "IN", *range(65_537)), ["65536"]),
    (leaf("a", "EQ", "x" * (2**20 + 1)), ["1048576"]),
    (leaf("a", "EQ", 10**4000), ["1048576"]),
]


@pytest.mark.parametrize(("tree", "mentions"), WRONG, ids=lambda part: str(part)[:60])
def test_a_malformed_tree_is_refused(tree, mentions):
    with pytest.raises(InvalidArgument) as refusal:
        parse(tree)
    assert all(str(word) in str(refusal.value) for word in mentions), str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_tree_deeper_than_32_levels_is_refused():
    tree = leaf("a", "EQ", 1)
    for _ in range(31):
        tree = {"not": tree}
    parse(tree)
    with pytest.raises(InvalidArgument, match="32"):
        parse({"not": tree})


def test_predicates_are_combined_with_and():
    assert parse_predicates([]) is None
    assert parse_predicates([leaf("a", "EQ", 1)]) == Leaf("a", Op.EQ, (1,))
    assert parse_predicates([leaf("a", "EQ", 1), leaf("b", "IS_NULL")]) == And(
        (Leaf("a", Op.EQ, (1,)), Leaf("b", Op.IS_NULL))
    )
    with pytest.raises(InvalidArgument, match=r"predicates\[1\]"):
        parse_predicates([leaf("a", "EQ", 1), 7])
    with pytest.raises(InvalidArgument, match="predicates"):
        parse_predicates({"and": []})


# Values that a tree allows for a column.


def test_equal_values_are_the_values_a_tree_allows_for_a_column():
    def values(tree):
        return equal_values(parse(tree), "s")

    assert values(leaf("s", "EQ", "a")) == {"a"}
    assert values(leaf(" S ", "IN", "a", 1, None)) == {"a", "1"}
    assert values({"and": [leaf("s", "IN", "a", "b"), leaf("s", "IN", "b", "c"), leaf("i", "GT", 1)]}) == {"b"}
    assert values({"or": [leaf("s", "EQ", "a"), leaf("s", "EQ", "b")]}) == {"a", "b"}
    assert values({"or": [leaf("s", "EQ", "a"), leaf("i", "EQ", 1)]}) is None
    assert values({"not": leaf("s", "EQ", "a")}) is None
    assert values(leaf("s", "GT", "a")) is None
    assert equal_values(None, "s") is None
    assert equal_values(Or(()), "s") is None


def test_as_many_predicates_as_conditions_are_taken():
    assert isinstance(parse_predicates([leaf("a", "EQ", 1)] * 1024), And)
    assert isinstance(parse_predicates([leaf("min", "EQ", 1)] * 256), And)
    with pytest.raises(InvalidArgument, match="more than 1024 conditions"):
        parse_predicates([leaf("Min", "EQ", 1)] * 257)
    with pytest.raises(InvalidArgument, match="more than 1024 conditions"):
        parse_predicates([leaf("a", "EQ", 1)] * 4097)
