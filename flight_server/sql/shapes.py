"""Plans shared by statements that differ only in literals, because planning takes longer than execution.

Literals of comparisons become parameters, if the plan compares each of them with a column of a suitable type, so that
it reads the same rows as a plan with the literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from flight_server.sql import language
from flight_server.sql.plan import Plan
from flight_server.sql.pushdown import Slot
from store.model.predicates.literals import is_readable
from store.model.predicates.tree import And, Leaf, Node, Not, Or

MAX_LENGTH: Final = 4096  # longest statement, in characters
_COMPARES: Final = frozenset({TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE})
_ENDS: Final = frozenset({
    TokenType.AND, TokenType.OR, TokenType.R_PAREN, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY,
    TokenType.LIMIT, TokenType.OFFSET, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.SEMICOLON,
})  # fmt: skip
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


def values_for(plan: Plan, literals: Sequence[Literal]) -> tuple[Any, ...] | None:
    """The values of a plan's parameters for literals.

    Args:
        plan: The plan of the statement with parameters.
        literals: The literals that `split` returned.

    Returns:
        The values; None if the plan with these values could differ from one with the literals.
    """
    fields: dict[int, list[pa.Field]] = {}
    for source in plan.sources:
        for slot in _slots(source.node):
            fields.setdefault(slot.number, []).append(slot.field)
    if len(plan.parameters) != len(literals) or len(fields) != len(literals):
        return None
    values: list[Any] = []
    for number, literal in enumerate(literals):
        for field in fields[number]:
            type_ = field.type
            is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
            if not (pa.types.is_string(type_) if literal.quoted else is_number and is_readable(literal.text, type_)):
                return None
        if not literal.quoted and plan.direct is None:
            if not literal.text.isdecimal():
                return None  # DuckDB would read the literal as a decimal, not as a float
            values.append(int(literal.text))
        else:
            values.append(literal.text)
    return tuple(values)


def _slots(node: Node | None) -> Iterator[Slot]:
    match node:
        case Leaf():
            values: Sequence[Any] = node.values
            yield from (value for value in values if isinstance(value, Slot))
        case Not(child):
            yield from _slots(child)
        case And(children) | Or(children):
            for child in children:
                yield from _slots(child)
