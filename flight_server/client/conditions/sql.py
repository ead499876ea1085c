"""Translation of SQL conditions (`--where`) to filter trees: parsed by sqlglot, restricted to an allowlist.

    column = | <> | < | <= | > | >= literal (or reversed), [NOT] BETWEEN, [NOT] IN (literals), IS [NOT] NULL,
    AND, OR, NOT and parentheses

A literal is a number, 'text', TRUE, FALSE, NULL, or TIMESTAMP '…', which is UTC if it has no zone. Anything else, such
as functions, LIKE, casts, subqueries, comments or a semicolon, is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from flight_server.client.conditions.exact_json import exact
from flight_server.client.conditions.literals import FLIPPED, chained

MAX_BYTES: Final = 64 * 1024
_LANGUAGE: Final = "a condition compares columns with literals: =, <>, <, <=, >, >=, BETWEEN, IN, IS NULL, AND, OR, NOT"
_BEFORE_PARENTHESIS: Final = frozenset({"", "AND", "OR", "NOT", "IN", "BETWEEN"})
_TIMESTAMP: Final = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?))?"
    r" ?(?P<zone>Z|[+-]\d{2}(?::?\d{2})?)?",
    re.ASCII,
)


def parse_where(sql: str) -> dict[str, Any]:
    """The filter tree of a SQL condition.

    Raises:
        pa.ArrowInvalid: The text is not a condition, or uses SQL that is not allowed.
    """
    if len(sql.encode("utf-8", "replace")) > MAX_BYTES:
        raise _refusal(f"longer than {MAX_BYTES} bytes")
    # Imported here, because it takes 0.3 s.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.tokens import TokenType

    refused = {
        TokenType.SEMICOLON: "a semicolon",
        TokenType.DCOLON: "a cast",
        TokenType.PARAMETER: '"@"',
        TokenType.PLACEHOLDER: "a placeholder",
    }
    try:
        # Tokens first, because the parser drops comments and does not distinguish a cast from a TIMESTAMP literal.
        before = ""
        for token in sqlglot.tokenize(sql, dialect="duckdb"):
            if token.comments:
                raise _outside("a comment")
            if token.token_type in refused:
                raise _outside(refused[token.token_type])
            if token.token_type is TokenType.L_PAREN and before not in _BEFORE_PARENTHESIS:
                raise _outside(f'the function "{before[:50]}"')
            literal = token.token_type in (TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER)
            before = "" if literal or not token.text.isidentifier() else token.text.upper()
        condition = sqlglot.parse_one(sql, into=exp.Condition, dialect="duckdb")
        return tree_of(condition, _leaf, lambda node: _outside(_shown(node)))
    except SqlglotError as error:
        raise _refusal(f"{_mistake(error)}", hint=_LANGUAGE) from None
    except RecursionError:
        raise _refusal("nested too deep") from None


def _refusal(message: str, hint: str = "") -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"[INVALID_ARGUMENT] condition: {message}{'; ' if hint else ''}{hint}")


def _outside(what: str) -> pa.ArrowInvalid:
    return _refusal(f"{what} is not supported in a condition", hint=_LANGUAGE)


def _mistake(error: Exception) -> str:
    place = place_of(error)
    if place is None:
        return "cannot be read, a quote or parenthesis may be open"
    word, where = place
    is_name = word.isidentifier() and word.upper() not in _BEFORE_PARENTHESIS
    return f"cannot be read at {where}" + (f'; a column of this name is written "{word}"' if is_name else "")


def place_of(error: Exception) -> tuple[str, str] | None:
    """The word that SQLGlot cannot read, and the text that tells where it begins; None if it is at no word."""
    found = next(iter(getattr(error, "errors", [])), None)
    if not found or not found.get("highlight"):
        return None
    word = found["highlight"]
    column = max(1, found["col"] - len(word) + 1)  # SQLGlot counts to the end of the word
    return word, f'"{word[:50]}" (line {found["line"]}, column {column})'


def tree_of(
    node: Any, leaf: Callable[[Any, str, Sequence[Any]], dict[str, Any]], refuse: Callable[[Any], Exception]
) -> dict[str, Any]:
    """The filter tree of a condition that sqlglot parsed.

    Args:
        leaf: Makes a leaf: what is compared, the operator, and the literals. A column alone has no operator.
        refuse: The error for a part that has no tree.
    """
    from sqlglot import exp

    def part(inner: Any) -> dict[str, Any]:
        return tree_of(inner, leaf, refuse)

    def only(*names: str) -> list[Any]:
        return _only(node, names, refuse)

    match node:
        case exp.Paren():
            return part(*only("this"))
        case exp.And() | exp.Or():
            return {"and" if isinstance(node, exp.And) else "or": [part(term) for term in chained(node)]}
        case exp.Not():
            tree = part(*only("this"))
            return tree | {"op": "IS_NOT_NULL"} if tree.get("op") == "IS_NULL" else {"not": tree}
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            op = type(node).__name__
            left, right = only("this", "expression")
            if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
                return leaf(right, FLIPPED[op], [left])
            return leaf(left, op, [right])
        case exp.Between():
            column, low, high = only("this", "low", "high")
            return leaf(column, "BETWEEN", [low, high])
        case exp.In():
            column, values = only("this", "expressions")
            return leaf(column, "IN", values)
        case exp.Is() if isinstance(node.expression, exp.Null):
            return leaf(only("this", "expression")[0], "IS_NULL", [])
        case exp.Column():
            return leaf(node, "", [])
    raise refuse(node)


def _only(node: Any, names: Sequence[str], refuse: Callable[[Any], Exception]) -> list[Any]:
    """These parts of a node; refuses a node with others, as an unknown option must not be ignored silently."""
    others = any(value for name, value in node.args.items() if name not in names)
    if others or any(node.args.get(name) is None for name in names):
        raise refuse(node)
    return [node.args[name] for name in names]


def _leaf(column: Any, op: str, literals: Sequence[Any]) -> dict[str, Any]:
    from sqlglot import exp

    if not op:
        raise _refusal(f"{_shown(column)} alone is not a condition", hint="compare it, as in = TRUE")
    if op == "IN" and not literals:
        raise _refusal("IN needs at least one literal")
    if not isinstance(column, exp.Column):
        raise _refusal(f"{_shown(column)} is not a column", hint=_LANGUAGE)
    if not isinstance(column.this, exp.Identifier) or column.args.get("table"):
        raise _refusal(f"{_shown(column)} is qualified", hint='name the column alone; a field of a struct is "a.b"')
    leaf: dict[str, Any] = {"column": column.name, "op": op}
    return leaf | {"values": [_value(literal) for literal in literals]} if literals else leaf


def _value(node: Any) -> str | int | float | Decimal | bool | None:
    from sqlglot import exp

    match node:
        case exp.Literal():
            return str(node.this) if node.is_string else _number(str(node.this))
        case exp.Neg(this=exp.Literal(is_string=False)):
            return _number(f"-{node.this.this}")
        case exp.Boolean():
            return bool(node.this)
        case exp.Null():
            return None
        case exp.Cast(this=exp.Literal(is_string=True)) if node.to.this in (
            exp.DataType.Type.TIMESTAMP,
            exp.DataType.Type.TIMESTAMPNTZ,
            exp.DataType.Type.TIMESTAMPTZ,
        ):
            return _timestamp(node.this.this)
        case exp.Column():
            raise _refusal(f"{_shown(node)} is a column, not a literal", hint="text must be in single quotes")
    raise _outside(_shown(node))


def _number(text: str) -> int | float | Decimal:
    """An integer, a decimal, or with an exponent a double, as the engines read them."""
    if len(text) < 40 and text.lstrip("-").isdigit():
        return int(text)
    if "e" in text.lower():
        return float(text) if math.isfinite(float(text)) else exact(text)
    return Decimal(text)


def _timestamp(text: str) -> str:
    match = _TIMESTAMP.fullmatch(text.strip())
    if not match:
        raise _refusal(f"TIMESTAMP '{text[:50]}' is not a timestamp", hint="write TIMESTAMP '2026-01-31 12:34:56Z'")
    return f"{match['date']}T{match['time'] or '00:00'}{match['zone'] or 'Z'}"


def _shown(node: Any) -> str:
    text = node.sql(dialect="duckdb")
    return f'"{text if len(text) <= 60 else text[:60] + "…"}"'
