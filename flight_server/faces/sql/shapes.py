"""Plans shared by statements that differ only in literals, because planning takes longer than execution.

Literals of comparisons become parameters of a plan, and are put back into its SQL, or into the condition of a direct
read if their types suit its columns. Planning anew takes 1 ms, and for DuckDB 2 ms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from flight_server.faces.sql import language, pushdown
from flight_server.faces.sql.plan import Plan
from flight_server.faces.sql.pushdown import Slot
from store.model.predicates.literals import is_readable
from store.model.predicates.tree import leaves_of

MAX_LENGTH: Final = 4096  # longest statement, in characters
_COMPARES: Final = frozenset({TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE})
_ENDS: Final = frozenset(
    {
        TokenType.AND,
        TokenType.OR,
        TokenType.R_PAREN,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.LIMIT,
        TokenType.OFFSET,
        TokenType.UNION,
        TokenType.EXCEPT,
        TokenType.INTERSECT,
        TokenType.SEMICOLON,
    }
)
_NUMBER: Final = re.compile(r"\d{1,18}(\.\d{1,18})?", re.ASCII)


class Literal(NamedTuple):
    """A literal: its value as text, and True if it was quoted."""

    text: str
    quoted: bool


def split(sql: str) -> tuple[str, list[Literal]] | None:
    """Replaces the literals in a statement's comparisons by `?`.

    Returns:
        The new statement, and the literals; None if there are none, or the statement has parameters or is too long.
    """
    if len(sql) > MAX_LENGTH or "?" in sql:
        return None
    try:
        tokens = language.tokens(sql)
    except (SqlglotError, RecursionError):
        return None
    literals, parts, at = [], [], 0
    for before, token, after in zip(tokens, tokens[1:], [*tokens[2:], None], strict=False):
        if before.token_type not in _COMPARES or (after is not None and after.token_type not in _ENDS):
            continue
        written = sql[token.start : token.end + 1]
        quoted = token.token_type is TokenType.STRING and written == f"'{token.text}'"
        if quoted or (token.token_type is TokenType.NUMBER and _NUMBER.fullmatch(written)):
            literals.append(Literal(token.text, quoted))
            parts += [sql[at : token.start], "?"]
            at = token.end + 1
    return ("".join([*parts, sql[at:]]), literals) if literals else None


def filled(plan: Plan, literals: Sequence[Literal]) -> Plan | None:
    """The plan of a statement, from that of its shape; None if it could differ from one of the statement itself."""
    if len(plan.parameters) != len(literals):
        return None
    if plan.direct is None:
        texts = [f"'{literal.text}'" if literal.quoted else literal.text for literal in literals]
        return replace(plan, parameters=(), sql=language.with_literals(plan.sql, texts))
    (source,) = plan.sources
    values: list[Any] = [value for leaf in leaves_of(source.node) for value in leaf.values]
    slots = [value for value in values if isinstance(value, Slot)]
    if len(slots) != len(literals):
        return None
    if not all(_suits(literals[slot.number], slot.field.type) for slot in slots):
        return None
    node = pushdown.bind(source.node, [literal.text for literal in literals])
    return replace(plan, parameters=(), sources=(replace(source, node=node),))


def _suits(literal: Literal, type_: pa.DataType) -> bool:
    """True if a column of a type can be compared with a literal as it is written: text with quoted ones, numbers with
    those that they can hold."""
    if literal.quoted:
        return bool(pa.types.is_string(type_))
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    return bool(is_number and is_readable(literal.text, type_))
