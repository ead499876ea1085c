"""SQL conditions: the supported language, and rejection of everything else."""

from decimal import Decimal

import pyarrow as pa
import pytest

from flight_server.client.conditions.sql import parse_where
from store.model.predicates.tree import parse


def leaf(column, op, *values):
    return {"column": column, "op": op} | ({"values": list(values)} if values else {})


ACCEPTED = {
    "a = 1": leaf("a", "EQ", 1),
    "a == 1": leaf("a", "EQ", 1),
    "a <> 'x'": leaf("a", "NEQ", "x"),
    "a != 'it''s'": leaf("a", "NEQ", "it's"),
    "a < -1": leaf("a", "LT", -1),
    "a <= 100.50": leaf("a", "LTE", 100.5),
    "a < -0.1234567890123456789": leaf("a", "LT", Decimal("-0.1234567890123456789")),
    "a > 1e400": leaf("a", "GT", Decimal("1e400")),
    "a >= 9223372036854775808": leaf("a", "GTE", 2**63),
    "5 < a": leaf("a", "GT", 5),
    "'x' >= a": leaf("a", "LTE", "x"),
    "a = TRUE": leaf("a", "EQ", True),
    "a = NULL": leaf("a", "EQ", None),
    "a BETWEEN 2 AND 3": leaf("a", "BETWEEN", 2, 3),
    "a NOT BETWEEN 2 AND 3": {"not": leaf("a", "BETWEEN", 2, 3)},
    "a IN ('x', 2, NULL)": leaf("a", "IN", "x", 2, None),
    "a NOT IN (1)": {"not": leaf("a", "IN", 1)},
    "a IS NULL": leaf("a", "IS_NULL"),
    "a IS NOT NULL": leaf("a", "IS_NOT_NULL"),
    "NOT a IS NULL": leaf("a", "IS_NOT_NULL"),
    "NOT (a >= 'v') AND b = 'k'": {"and": [{"not": leaf("a", "GTE", "v")}, leaf("b", "EQ", "k")]},
    "a = 1 AND b = 2 and c = 3": {"and": [leaf(c, "EQ", i) for i, c in enumerate("abc", 1)]},
    "a = 1 OR b = 2 AND c = 3": {"or": [leaf("a", "EQ", 1), {"and": [leaf("b", "EQ", 2), leaf("c", "EQ", 3)]}]},
    "(a = 1 OR b = 2) AND ((c = 3))": {"and": [{"or": [leaf("a", "EQ", 1), leaf("b", "EQ", 2)]}, leaf("c", "EQ", 3)]},
    '"two words" = 1': leaf("two words", "EQ", 1),
    "t > TIMESTAMP '2026-01-31 12:34:56.5'": leaf("t", "GT", "2026-01-31T12:34:56.5Z"),
    "t > TIMESTAMP '2026-01-31'": leaf("t", "GT", "2026-01-31T00:00Z"),
    "t > timestamptz '2026-01-31T12:34:56+01:00'": leaf("t", "GT", "2026-01-31T12:34:56+01:00"),
    "a = '-- no; comment /* here */ f(x)'": leaf("a", "EQ", "-- no; comment /* here */ f(x)"),
    "a = '\\n\"'": leaf("a", "EQ", '\\n"'),
    "a =\n1": leaf("a", "EQ", 1),
    # columns of the flights that are SQL keywords
    "min = '1' AND max = '2' AND rank = 1 AND count > 2 AND value = 'x'": {
        "and": [
            leaf("min", "EQ", "1"),
            leaf("max", "EQ", "2"),
            leaf("rank", "EQ", 1),
            leaf("count", "GT", 2),
            leaf("value", "EQ", "x"),
        ]
    },
    "lower < 'x' OR upper > 'y' OR format = 'delta' OR role = 'NDV' OR data IS NULL OR mode = 'SYNC'": {
        "or": [
            leaf("lower", "LT", "x"),
            leaf("upper", "GT", "y"),
            leaf("format", "EQ", "delta"),
            leaf("role", "EQ", "NDV"),
            leaf("data", "IS_NULL"),
            leaf("mode", "EQ", "SYNC"),
        ]
    },
}


@pytest.mark.parametrize(("sql", "tree"), ACCEPTED.items(), ids=ACCEPTED)
def test_condition_becomes_a_filter_tree(sql, tree):
    assert parse_where(sql) == tree
    parse(tree)


REJECTED = {
    "": "read",
    "   ": "read",
    "ndv >": ">",
    "a = 1 AND": "AND",
    "(a = 1": "1",
    "a = 'x": "quote",
    "a = 1 b": "b",
    "ndv = 1;": "semicolon",
    "a = 1; DROP TABLE t": "semicolon",
    "1 = 1 --": "comment",
    "a = 1 -- x": "comment",
    "a /* x */ = 1": "comment",
    "-- x\na = 1": "comment",
    "1 = 1": "not a column",
    "ndv LIKE 'x'": "LIKE",
    "ndv NOT LIKE 'x'": "LIKE",
    "a ILIKE 'x'": "ILIKE",
    "a ~ 'x'": "not supported",
    "f(ndv) = 1": "function",
    "lower(a) = 'x'": "function",
    "count(*) = 1": "function",
    "a = now()": "function",
    "a = CAST('2020-01-01' AS TIMESTAMP)": "CAST",
    "a = TRY_CAST('2020-01-01' AS TIMESTAMP)": "CAST",
    "a = '2020-01-01'::TIMESTAMP": "cast",
    "a = DATE '2020-01-01'": "not supported",
    "a = TIMESTAMP 'yesterday'": "TIMESTAMP",
    "a = CURRENT_DATE": "CURRENT_DATE",
    "ndv = (SELECT 1)": "SELECT",
    "a IN (SELECT 1)": "SELECT",
    "EXISTS (SELECT 1)": "EXISTS",
    "a = 1 UNION SELECT 1": "UNION",
    "a = 1 LIMIT 1": "LIMIT",
    "a = 1 ORDER BY a": "ORDER",
    "SELECT 1": "",
    "DROP TABLE t": "",
    "a IN ()": "IN",
    "a = b": "column",
    'a = "b"': "single quotes",
    "t.a = 1": 'qualified; name the column alone; a field of a struct is "a.b"',
    "a + 1 = 2": "a + 1",
    "a = 1 + 1": "1 + 1",
    "-a = 1": "column",
    "a = - - 1": "not supported",
    "a = ?": "placeholder",
    "a = $1": "",
    "a = @b": "@",
    "a = 'x' 'y'": "",
    "a = 'x' || 'y'": "||",
    "a IS TRUE": "IS TRUE",
    "a IS DISTINCT FROM 1": "DISTINCT",
    "a BETWEEN SYMMETRIC 1 AND 2": "not supported",
    "a": "alone",
    "TRUE": "TRUE",
    "a = 1 OR TRUE": "TRUE",
    "CASE WHEN a = 1 THEN TRUE END": "CASE",
    "a = [1]": "",
    "a[1] = 1": "",
    "a = ANY([1])": "function",
    "a = X'00'": "",
    "a = N'x'": "",
    "a = $$x$$": "",
    "a = 1 AND *": "",
    "COLUMNS('x') = 1": "function",
    "a = 1 AND when > 3": 'at "when" (line 1, column 11); a column of this name is written "when"; a condition',
    "b = 1 AND": 'at "AND" (line 1, column 7); a condition',
    "(" * 3000 + "a = 1" + ")" * 3000: "deep",
    "NOT " * 9000 + "a = 1": "deep",
    "a = '" + "x" * 65_536 + "'": "65536",
}


@pytest.mark.parametrize(("sql", "mention"), REJECTED.items(), ids=lambda part: part[:40])
def test_unsupported_condition_is_rejected_with_a_short_reason(sql, mention):
    with pytest.raises(pa.ArrowInvalid, match=r"^\[INVALID_ARGUMENT\] condition: ") as raised:
        parse_where(sql)
    assert mention in str(raised.value), str(raised.value)
    assert len(str(raised.value)) < 500 and "\x1b" not in str(raised.value)


def test_long_condition_becomes_one_flat_array():
    tree = parse_where(" OR ".join(f"a = {i}" for i in range(1000)))
    assert len(tree["or"]) == 1000 and tree["or"][-1] == leaf("a", "EQ", 999)
    parse(tree)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("9007199254740992e0", float), ("-1E3", float), ("1.5", Decimal), ("9007199254740992.0", Decimal), ("12", int)],
)
def test_number_has_the_type_that_engines_read(text, kind):
    (value,) = parse_where(f"a = {text}")["values"]
    assert type(value) is kind and value == kind(text)
