"""`AnswerRequest`: a query that statistics may answer, of the action `answer`.

SELECT count(*) | count(column) | min(column) | max(column) [[AS] name], … FROM catalog.schema.table [WHERE condition]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flight_server.client.conditions.sql import MAX_BYTES
from flight_server.client.conditions.words import Words
from flight_server.planning.plan_request import condition_of
from store.model.errors import InvalidArgument
from store.model.names import join_name, quote, split_name
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
        table: Name of the table; it may leave out the catalog, and the schema.
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
        raise InvalidArgument(f"the query is longer than {MAX_BYTES} bytes", code="BAD_SQL", hint=_FORM)
    words = Words("the query", sql, _FORM)
    words.expect("SELECT")
    items = [_item(words)]
    while words.accept(","):
        items.append(_item(words))
    words.expect("FROM")
    table = _table(words)
    node = None
    if words.accept("WHERE"):
        node = condition_of(words.rest())
    else:
        words.end("WHERE or the end")
    if len(names := {item.name for item in items}) < len(items):
        raise words.refusal(f"{len(items)} results have {len(names)} names; name them by AS")
    return AnswerRequest(table, tuple(items), node)


def _item(words: Words) -> Item:
    function = words.part("count, min or max").text.lower()
    if function not in FUNCTIONS:
        raise words.refusal(f'"{function[:50]}" is not answered by statistics')
    words.expect("(")
    column = None if function == "count" and words.accept("*") else words.part("the name of a column").text
    words.expect(")")
    name = f"{function}({'*' if column is None else column})"
    if words.accept("AS") or not words.are_at(",", "FROM"):
        name = words.part("a name").text
    return Item(function, column, name)


def _table(words: Words) -> str:
    parts = [part.text for part in words.name("a table")]
    if len(parts) < 3:
        return ".".join(quote(part) if set('".').intersection(part) else part for part in parts)
    return join_name(*split_name(join_name(parts[0], ".".join(parts[1:-1]), parts[-1])))
