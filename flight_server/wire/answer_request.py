"""`AnswerRequest`: a query that statistics may answer, of the action `answer`.

SELECT count(*) | count(column) | min(column) | max(column) [[AS] name], … FROM catalog.schema.table [WHERE condition]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from flight_server.conditions.sql import MAX_BYTES
from flight_server.wire.plan_request import condition_of
from store.model.errors import InvalidArgument
from store.model.names import join_name, split_name
from store.model.predicates.tree import Node

FUNCTIONS: Final = ("count", "min", "max")
_FORM: Final = "write SELECT count(*), count(a), min(a), max(a) FROM catalog.schema.table WHERE condition"


@dataclass(frozen=True)
class Item:
    """An item of the select list.

    Attributes:
        function: count, min or max.
        column: Name of its column; None for `count(*)`.
    """

    function: str
    column: str | None
    name: str


@dataclass(frozen=True)
class AnswerRequest:
    """A validated query.

    Attributes:
        table: Full name of the table.
        items: The select list; no two items have one name.
        node: Condition on the rows; None for all.
    """

    table: str
    items: tuple[Item, ...]
    node: Node | None


def of_sql(sql: str) -> AnswerRequest:
    """Parses a query.

    Raises:
        InvalidArgument: BAD_SQL: the text is not such a query; or its condition is not valid.
    """
    if len(sql.encode("utf-8", "replace")) > MAX_BYTES:
        raise _refusal(f"the query is longer than {MAX_BYTES} bytes")
    # Imported here, because it takes 0.3 s.
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return _Reader(sql, sqlglot.tokenize(sql, dialect="duckdb")).query()
    except SqlglotError:
        raise _refusal("the query cannot be read: a quote may be open") from None


def _refusal(message: str) -> InvalidArgument:
    return InvalidArgument(message, code="BAD_SQL", hint=_FORM)


class _Reader:
    """The words of a query, read from left to right; unquoted words are plain names unless their place says more."""

    def __init__(self, sql: str, words: Sequence[Any]):
        self._sql, self._words, self._at = sql, words, 0

    def query(self) -> AnswerRequest:
        self._expect("SELECT", "SELECT")
        items = [self._item()]
        while self._accept("COMMA"):
            items.append(self._item())
        self._expect("FROM", "FROM or a comma")
        table = self._table()
        node = None
        if self._accept("WHERE"):
            start = self._words[self._at - 1].end + 1
            last = self._words[-1]
            end = last.start if last.token_type.name == "SEMICOLON" else len(self._sql)
            node = condition_of(self._sql[start:end])
        elif not (self._next is None or (self._accept("SEMICOLON") and self._next is None)):
            raise self._unexpected("WHERE or the end")
        if len(names := {item.name for item in items}) < len(items):
            raise _refusal(f"{len(items)} results have {len(names)} names; name them by AS")
        return AnswerRequest(table, tuple(items), node)

    def _item(self) -> Item:
        function = self._name("count, min or max").lower()
        if function not in FUNCTIONS:
            raise _refusal(f'"{function[:50]}" is not answered by statistics')
        self._expect("L_PAREN", '"("')
        column = None if function == "count" and self._accept("STAR") else self._name("the name of a column")
        self._expect("R_PAREN", '")"')
        name = f"{function}({'*' if column is None else column})"
        if self._accept("ALIAS") or not self._is("COMMA", "FROM"):
            name = self._name("a name")
        return Item(function, column, name)

    def _table(self) -> str:
        parts = [self._name("the name of a table")]
        while self._accept("DOT"):
            parts.append(self._name("the name of a table"))
        if len(parts) < 3:
            raise _refusal(f'"{".".join(parts)[:100]}" is not a full name of a table')
        return join_name(*split_name(join_name(parts[0], ".".join(parts[1:-1]), parts[-1])))

    @property
    def _next(self) -> Any:
        return self._words[self._at] if self._at < len(self._words) else None

    def _is(self, *types: str) -> bool:
        return self._next is not None and self._next.token_type.name in types

    def _accept(self, type: str) -> bool:
        if not self._is(type):
            return False
        self._at += 1
        return True

    def _expect(self, type: str, what: str) -> None:
        if not self._accept(type):
            raise self._unexpected(what)

    def _name(self, what: str) -> str:
        word = self._next
        kind = "" if word is None else word.token_type.name
        if word is None or kind == "STRING" or not (kind == "IDENTIFIER" or word.text.isidentifier()):
            raise self._unexpected(what)
        self._at += 1
        return str(word.text)

    def _unexpected(self, what: str) -> InvalidArgument:
        found = "its end" if self._next is None else f'"{self._next.text[:50]}"'
        return _refusal(f"the query has {found} where {what} should be")
