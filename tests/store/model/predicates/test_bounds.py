"""Conditions on min and max: agreement of SQL, Arrow and an oracle for each logical type; readings of literals."""

import base64
import itertools
import math
import operator
import re
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store.model.logical_types import Kind, parse
from store.model.predicates.arrow import to_arrow, to_mask
from store.model.predicates.sql import to_sql
from store.model.predicates.tree import And, Leaf, Node, Not, Op, Or

SCHEMA = pa.schema({"logical_type": pa.string(), "min": pa.string(), "max": pa.string()})
LONG = "9" * 76
ROWS = {
    "INT": ["0", "9", "10", "-1", "-10", "9007199254740993", "9223372036854775807", "-9223372036854775808"],
    "FLOAT": ["0", "9.0", "0.1", "1.6777216E7", "3.4E38", "1.4E-45", "-2.5", "NaN", "Infinity", "-Infinity"],
    "DOUBLE": [
        "0",
        "9.0",
        "0.1",
        "0.30000000000000004",
        "9.007199254740992E15",
        "4.9E-324",
        "-2.5",
        "NaN",
        "Infinity",
        "-Infinity",
    ],
    "DECIMAL(10,2)": ["0", "9", "10", "-1", "-1.5", "-1.51", "-10", "9.99", "0.01", "-0.01"],
    "DECIMAL(38,0)": ["9" * 38, "-" + "9" * 38, "1" + "0" * 37, "9"],
    "DECIMAL(76,38)": ["9" * 38 + "." + "9" * 38, "-" + "9" * 38 + "." + "9" * 38, "0." + "0" * 37 + "1", "9"],
    "DECIMAL(76,0)": [LONG, f"-{LONG}", "9007199254740993"],
    "STRING": ["", "9", "10", "-1", "a", "Z", "é", "\uffff", "😀", "2026-01-31", "true", "AA==", "NaN", "0.1"],
    "BINARY": ["", "AA==", "fw==", "gA==", "/w==", "AGE=", "true"],
    "UUID": [
        "00000000-0000-0000-0000-000000000001",
        "7f000000-0000-0000-0000-000000000000",
        "80000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ],
    "BOOLEAN": ["true", "false"],
    "DATE": ["0000-02-29", "0001-01-01", "1969-12-31", "1970-01-10", "2026-01-31", "9999-12-31"],
    "TIME": ["00:00:00", "09:00:00", "09:00:00.1", "10:00:00", "23:59:59.999999"],
    "TIME(3)": ["09:00:00.000", "09:00:00.100"],
    "TIMESTAMP": [
        "0000-01-01T00:00:00",
        "1969-12-31T23:59:59.999999",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00.1",
        "9999-12-31T23:59:59.999999",
    ],
    "TIMESTAMP(3)": ["2026-01-31T12:00:00.000", "2026-01-31T12:00:00.100", "1969-12-31T23:59:59.999"],
    "TIMESTAMPTZ": [
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00.100Z",
        "9999-12-31T23:59:59.999999Z",
    ],
    "TIMESTAMPTZ(0)": ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"],
    "INTERVAL": ["P1D", "9"],
    "JSON": [],
    None: ["9", "a"],
}
NUMBERS = [
    0,
    9,
    10,
    -2,
    9.0,
    8.5,
    -2.5,
    0.1,
    0.30000000000000004,
    1e300,
    -1e300,
    2**53 + 1,
    2.0**53,
    2**63,
    10**76,
    -(10**76),
    1e-300,
    -1e-300,
    3.4e38,
    16777217,
    Decimal("1E-400"),
    Decimal("-1E+999999999"),
    Decimal("9007199254740992.5"),
    Decimal("9" * 38 + "." + "9" * 38),
    math.inf,
    -math.inf,
]
TEXTS = [
    *sorted({text for texts in ROWS.values() for text in texts}),
    " 9 ",
    "+9",
    "09",
    "9.0",
    "8.5",
    "1e1",
    "0.10",
    "-1.505",
    "1e999999999",
    "seven",
    "TRUE",
    "f",
    "tRuE",
    "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
    "AB==",
    "AA",
    "2026-1-31",
    "2026-02-30",
    "10000-01-01",
    "-0001-01-01",
    "19000",
    "09:00",
    "09:00:00.1000000",
    "24:00:00",
    "09:00:00.1000001",
    "2026-01-31T12:00:00.1000001",
    "2026-01-31T12:00",
    "2026-01-31 12:00:00",
    "2026-01-31T14:00:00+02:00",
    "2026-01-31T12:00:00.1000001Z",
    "2026-01-31T10:30:00-01:30",
    "9999-12-31T23:59:59.9999999Z",
    "\ud800",
    "a\x00",
]
LITERALS = [*NUMBERS, *TEXTS, True, False, None]


# The oracle.

MICROSECOND = timedelta(microseconds=1)
CLOCK = r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?"


def clock(match, at=0):
    hour, minute, second, fraction = match.groups()[at : at + 4]
    whole = (int(hour) * 60 + int(minute)) * 60 + int(second or 0)
    return whole * 10**6 + Fraction(int((fraction or "0").ljust(9, "0")), 1000)


def day(text):
    """Days since 1970; Python's calendar begins with year 1, and year 0 has 366 days."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        return None
    try:
        if text.startswith("0000"):
            return (date.fromisoformat("2000" + text[4:]) - date(2000, 1, 1)).days - 719_528
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        return None


def number(text, names):
    text = text.strip()
    if re.fullmatch(r"[+-]?(NaN|Infinity)", text):
        return float(text) if names else None
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        return None
    exponent = text.lower().partition("e")[2]
    if len(exponent) > 5:
        return {"-": -1, "+": 1}[text[0] if text[0] in "+-" else "+"] * math.inf
    return Fraction(text)


@cache
def value(text, kind):
    """The value of a text of a kind; None if it is not one."""
    match kind:
        case "INT" | "DECIMAL":
            return number(text, False)
        case "FLOAT" | "DOUBLE":
            read = number(text, True)
            single = np.float32 if kind == "FLOAT" else float
            with np.errstate(over="ignore"):
                return None if read is None else float(single(text.strip()))
        case "STRING":
            return None if "\ud800" in text else [ord(character) for character in text]
        case "UUID":
            return (
                uuid.UUID(text).int
                if re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text)
                else None
            )
        case "BINARY":
            fine = re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", text)
            return base64.b64decode(text) if fine else None
        case "BOOLEAN":
            return {"true": 1, "t": 1, "false": 0, "f": 0}.get(text.lower())
        case "DATE":
            return int(text) if re.fullmatch(r"[+-]?\d{1,8}", text, re.ASCII) else day(text)
        case "TIME":
            match = re.fullmatch(CLOCK, text, re.ASCII)
            return None if match is None else clock(match)
        case "TIMESTAMP" | "TIMESTAMPTZ":
            match = re.fullmatch(rf"(\d{{4}}-\d\d-\d\d)T{CLOCK}(Z|[+-]\d\d:\d\d)?", text, re.ASCII)
            if match is None or day(match[1]) is None or (match[6] is None) == (kind == "TIMESTAMPTZ"):
                return None
            shift = 0
            if match[6] not in (None, "Z"):
                hours, minutes = map(int, match[6][1:].split(":"))
                shift = (hours * 60 + minutes) * 60 * 10**6 * (-1 if match[6][0] == "-" else 1)
            return day(match[1]) * 86_400 * 10**6 + clock(match, 1) - shift
    return None


@lru_cache(None, typed=True)  # False is not 0
def literal_value(literal, kind):
    if isinstance(literal, str):
        return value(literal, kind)
    if isinstance(literal, bool):
        return int(literal) if kind == "BOOLEAN" else None
    if literal is None or kind not in ("INT", "FLOAT", "DOUBLE", "DECIMAL"):
        return None
    if kind in ("FLOAT", "DOUBLE"):
        return value(str(literal).replace("inf", "Infinity"), kind)
    if isinstance(literal, Decimal) and abs(literal.adjusted()) > 1000:
        return math.copysign(math.inf, literal)
    return literal if literal in (math.inf, -math.inf) else Fraction(str(literal))


COMPARES = {
    Op.EQ: operator.eq,
    Op.NEQ: operator.ne,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
}


def oracle(node, row):
    match node:
        case Not(child):
            inner = oracle(child, row)
            return None if inner is None else not inner
        case And(children) | Or(children):
            decides = isinstance(node, Or)
            inner = [oracle(child, row) for child in children]
            return decides if decides in inner else None if None in inner else not decides
    text = row[node.column]
    if node.op in (Op.IS_NULL, Op.IS_NOT_NULL):
        return (text is None) == (node.op is Op.IS_NULL)
    if text is None or row["logical_type"] is None:
        return None
    kind = row["logical_type"].partition("(")[0]
    bound, literals = value(text, kind), [literal_value(literal, kind) for literal in node.values]
    known = [literal for literal in literals if literal is not None]
    if bound is None or not known:
        return None
    if node.op is Op.IN:
        return bound in known or (None if None in literals else False)
    if None in literals:
        return None
    if node.op is Op.BETWEEN:
        return known[0] <= bound <= known[1]
    return COMPARES[node.op](bound, known[0])


def rows_of(*rows):
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return pa.record_batch([pa.array(column, pa.string()) for column in columns], SCHEMA)


ALL = rows_of(
    *(
        (kind, text, other)
        for kind, texts in ROWS.items()
        for text, other in zip([*texts, None], [None, *texts], strict=True)
    )
)


@pytest.fixture(scope="module")
def duck():
    with duckdb.connect() as connection:
        yield connection


def matching_rows(duck, node: Node, batch=ALL):
    """Numbers of the rows that match; the two forms must agree."""
    arrow = to_arrow(node, SCHEMA)(batch).to_pylist()
    text, parameters = to_sql(node, SCHEMA, lambda name: f's."{name}"')
    numbered = pa.Table.from_batches([batch]).append_column("row", pa.array(range(batch.num_rows)))
    duck.register("numbered", numbered)
    found = duck.execute(f"SELECT row FROM numbered s WHERE {text} ORDER BY row", parameters).fetchall()
    duck.unregister("numbered")
    assert [row for (row,) in found] == arrow, text
    return arrow


def expected_rows(node, batch=ALL):
    return [at for at, row in enumerate(batch.to_pylist()) if oracle(node, row)]


# Agreement.


ONE = [(literal,) for literal in LITERALS]
PAIRS = [(low, high) for texts in ROWS.values() for low, high in zip(texts, [*texts[1:], *texts[:1]], strict=True)]


@pytest.mark.parametrize(("op", "values"), [*((op, ONE) for op in COMPARES), (Op.BETWEEN, PAIRS)])
def test_each_type_is_compared_with_each_literal_by_value(duck, op, values):
    nodes = [Leaf("min", op, given) for given in values]
    forms = [to_sql(node, SCHEMA, lambda name: f's."{name}"') for node in nodes]
    batch = pa.Table.from_batches([ALL])  # noqa: F841  DuckDB finds it by its name
    chosen = ", ".join(text for text, _ in forms)
    rows = duck.execute(f"SELECT {chosen} FROM batch s", [p for _, given in forms for p in given]).fetchall()
    given = ALL.to_pylist()
    for node, by_sql in zip(nodes, zip(*rows, strict=True), strict=True):
        expected = [oracle(node, row) for row in given]
        assert list(by_sql) == expected, node
        assert to_mask(node, SCHEMA)(ALL).to_pylist() == expected, node


LEAVES = st.builds(
    lambda column, op, values: Leaf(
        column, op, tuple(values[: {Op.BETWEEN: 2, Op.IS_NULL: 0, Op.IS_NOT_NULL: 0, Op.IN: 5}.get(op, 1)])
    ),
    st.sampled_from(["min", "max"]),
    st.sampled_from(list(Op)),
    st.lists(st.sampled_from(LITERALS), min_size=5, max_size=5),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: And(tuple(nodes))),
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: Or(tuple(nodes))),
        inner.map(Not),
    ),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(TREES)
@example(Leaf("min", Op.IN, (9, "a", None)))
@example(Not(Leaf("min", Op.IN, (9, "seven"))))
@example(Leaf("max", Op.IN, tuple(NUMBERS * 3)))
@example(Not(Leaf("max", Op.IN, tuple(TEXTS[:70]))))
@example(Not(Leaf("min", Op.BETWEEN, ("a", 5))))
def test_sql_and_arrow_agree_with_the_oracle(duck, tree):
    assert matching_rows(duck, tree) == expected_rows(tree)


def test_sort_keys_of_sql_and_arrow_are_equal_and_ordered_by_value(duck):
    from store.model.predicates.bounds import KEYS

    digits = ["0", "1", "9", "12", "99", "0.5", "0.05", "0.51", "12.5", "12.05", LONG, "0." + LONG, "1" + "0" * 75]
    decimals = [*digits, *(f"-{text}" for text in digits[1:])]
    for name, texts in [*ROWS.items(), ("DECIMAL(76,0)", decimals)]:
        if name is None or (key := KEYS.get(parse(name).kind)) is None:
            continue
        column = pa.array([*texts, None], pa.string())
        duck.register("bounds", pa.table({"text": column}))
        by_sql = duck.sql(f"SELECT {key.sql.format('text')} AS key FROM bounds").to_arrow_table()["key"]
        duck.unregister("bounds")
        by_arrow = key.of(column)
        assert by_arrow.type == by_sql.type == key.type, name
        assert str(by_arrow.to_pylist()) == str(by_sql.to_pylist()), name
        kind = name.partition("(")[0]
        pairs = [(k, value(text, kind)) for k, text in zip(by_arrow.to_pylist(), texts, strict=False) if text != "NaN"]
        for (a, left), (b, right) in itertools.product(pairs, pairs):
            assert ((a < b), (a == b)) == ((left < right), (left == right)), (name, a, b)


def test_there_is_a_sort_key_for_each_ordered_kind():
    from store.model.logical_types import UNORDERED
    from store.model.predicates.bounds import KEYS

    assert KEYS.keys() == set(Kind) - UNORDERED


# Examples.

BOUNDS = [
    ("INT", "9"),
    ("INT", "10"),
    ("INT", "-1"),
    ("STRING", "9"),
    ("STRING", "10"),
    ("DATE", "2026-01-31"),
    ("DOUBLE", "10.0"),
    ("TIMESTAMPTZ", "2026-01-31T00:00:00Z"),
    (None, "10"),
]


@pytest.mark.parametrize(
    ("op", "values", "kept"),
    [
        (Op.GT, (9,), ["10", "10.0"]),
        (Op.LT, (-0.5,), ["-1"]),
        (Op.EQ, (10.0,), ["10", "10.0"]),
        (Op.GT, ("9",), ["10", "2026-01-31", "10.0"]),
        (Op.LTE, ("010",), ["9", "10", "-1", "10.0"]),
        (Op.GTE, ("2026-01-31",), ["9", "2026-01-31"]),
        (Op.EQ, ("2026-01-31T01:00:00+01:00",), ["2026-01-31T00:00:00Z"]),
    ],
)
def test_numbers_suit_numeric_types_and_texts_those_that_read_them(duck, op, values, kept):
    batch = rows_of(*((kind, text, None) for kind, text in BOUNDS))
    rows = matching_rows(duck, Leaf(" MIN ", op, values), batch)
    assert [BOUNDS[row][1] for row in rows] == kept


def test_bounds_compare_as_text_where_a_statement_says_so(duck):
    batch = rows_of(*((kind, text, None) for kind, text in BOUNDS))
    rows = matching_rows(duck, Leaf("min", Op.LT, ("2",), as_text=True), batch)
    assert [BOUNDS[row][1] for row in rows] == ["10", "-1", "10", "10.0", "10"]


def test_instants_are_read_in_utc_whatever_the_session_says(duck):
    duck.execute("SET TimeZone = 'Asia/Tokyo'")
    batch = rows_of(("TIMESTAMPTZ", "2026-01-31T12:00:00Z", None))
    assert matching_rows(duck, Leaf("min", Op.EQ, ("2026-01-31T13:00:00+01:00",)), batch) == [0]
    assert datetime.fromisoformat("2026-01-31T13:00:00+01:00").time() == time(13)
