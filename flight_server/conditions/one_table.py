"""Decomposition of conditions: the name of the one table, the values of an indexed column, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from store.model.predicates import literals, tree
from store.model.predicates.arrow import to_arrow
from store.model.predicates.tree import And, Leaf, Node, Op

INDEXED: Final = ("column_id", "column_name", "file_path")
NAMES: Final = ("table_catalog", "table_schema", "table_name")


@dataclass(frozen=True)
class TableCondition:
    """A decomposed condition.

    Attributes:
        name: Catalog, schema and name of the table; None if the condition is not about exactly one table.
        column: Indexed column that must equal one of `values`; None if there is none.
        values: Values of that column, of its type.
        kept: Returns the indices of the rows of a batch that satisfy the rest of the condition; None if there is none.
    """

    name: tuple[str, str, str] | None
    column: str | None = None
    values: tuple[Any, ...] = ()
    kept: Callable[[pa.RecordBatch], pa.Array] | None = field(default=None, compare=False)


def plan(node: Node | None, schema: pa.Schema) -> TableCondition:
    """Decomposes a condition on a flight's rows."""
    columns = set(schema.names)
    if not columns.issuperset(NAMES):
        return TableCondition(None)
    names: dict[str, set[str]] = {}
    column, values, rest = None, (), []  # type: str | None, tuple[Any, ...], list[Node]
    for part in _conjuncts(node):
        leaf = part if isinstance(part, Leaf) and part.op in (Op.EQ, Op.IN) else None
        column_name = leaf.column.strip().lower() if leaf is not None else ""
        if column_name in NAMES:
            kept = tree.equal_values(part, column_name) or set()
            names[column_name] = names[column_name] & kept if column_name in names else kept
            continue
        if leaf is not None and column is None and column_name in INDEXED and column_name in columns:
            type_ = schema.field(column_name).type
            typed = (literals.typed_literal(value, type_) for value in leaf.values)
            column, values = column_name, tuple(dict.fromkeys(value for value in typed if value is not None))
        else:
            rest.append(part)
    # other terms may determine the name too, such as an Or of equal names
    parts = [names[name] if name in names else tree.equal_values(node, name) for name in NAMES]
    if not all(part is not None and len(part) == 1 for part in parts):
        return TableCondition(None)
    left = _all(rest)
    remaining = None if left is None else to_arrow(left, schema)
    name = tuple(next(iter(part or ())) for part in parts)
    return TableCondition(name, column, values, remaining)  # type: ignore[arg-type]


def _all(parts: Sequence[Node]) -> Node | None:
    return And(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None


def _conjuncts(node: Node | None) -> Iterator[Node]:
    if isinstance(node, And):
        for child in node.children:
            yield from _conjuncts(child)
    elif node is not None:
        yield node
