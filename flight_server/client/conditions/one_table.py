"""Decomposition of conditions: the name of the one table, the values of an indexed column, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    if not set(schema.names).issuperset(NAMES):
        return TableCondition(None)
    names: dict[str, set[str]] = {}
    indexed: Leaf | None = None
    rest: list[Node] = []
    for part in _conjuncts(node):
        leaf = part if isinstance(part, Leaf) and part.op in (Op.EQ, Op.IN) else None
        column = None if leaf is None else _column_of(leaf)
        if column in NAMES:
            kept = tree.equal_values(part, column) or set()
            names[column] = names[column] & kept if column in names else kept
        elif indexed is None and column in INDEXED and column in schema.names:
            indexed = leaf
        else:
            rest.append(part)
    name = _name(node, names)
    if name is None:
        return TableCondition(None)
    left = _all(rest)
    remaining = None if left is None else to_arrow(left, schema)
    if indexed is None:
        return TableCondition(name, kept=remaining)
    return TableCondition(name, _column_of(indexed), _values(indexed, schema), remaining)


def _column_of(leaf: Leaf) -> str:
    """The name of a leaf's column as the schema writes it."""
    return leaf.column.strip().lower()


def _values(leaf: Leaf, schema: pa.Schema) -> tuple[Any, ...]:
    """The values that a leaf compares with, of its column's type, without those that the type does not have."""
    type_ = schema.field(_column_of(leaf)).type
    typed = (literals.typed_literal(value, type_) for value in leaf.values)
    return tuple(dict.fromkeys(value for value in typed if value is not None))


def _name(node: Node | None, names: Mapping[str, set[str]]) -> tuple[str, str, str] | None:
    """The name of the one table that a condition is about; None if it is not about exactly one.

    Args:
        names: Values of the parts of the name, by column, as far as single terms determine them.
    """
    # other terms may determine a part too, such as an Or of equal names
    parts = [names[name] if name in names else tree.equal_values(node, name) or set() for name in NAMES]
    if not all(len(part) == 1 for part in parts):
        return None
    catalog, schema, table = (next(iter(part)) for part in parts)
    return catalog, schema, table


def _all(parts: Sequence[Node]) -> Node | None:
    return And(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None


def _conjuncts(node: Node | None) -> Iterator[Node]:
    if isinstance(node, And):
        for child in node.children:
            yield from _conjuncts(child)
    elif node is not None:
        yield node
