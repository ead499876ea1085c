"""Decomposition of conditions: the name of the one table, the values of an indexed column, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
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
        rest: The rest of the condition; None if there is none.
        schema: The schema of the rows, for `rest`.
        allowed: The catalogs, schemas and names of tables that the condition allows; None for any.
    """

    name: tuple[str, str, str] | None
    column: str | None = None
    values: tuple[Any, ...] = ()
    rest: Node | None = None
    schema: pa.Schema | None = None
    allowed: tuple[Set[str] | None, ...] = (None, None, None)

    @cached_property
    def kept(self) -> Callable[[pa.RecordBatch], pa.Array] | None:
        """Returns the indices of the rows of a batch that satisfy the rest; None if there is none."""
        return None if self.rest is None else to_arrow(self.rest, self.schema)


def plan(node: Node | None, schema: pa.Schema) -> TableCondition:
    """Decomposes a condition on a flight's rows."""
    names, indexed, rest = _parted(node, schema)
    # other terms may determine a part of the name too, such as an Or of equal names
    allowed = tuple(names[name] if name in names else tree.equal_values(node, name) for name in NAMES)
    single = [next(iter(values)) for values in allowed if values is not None and len(values) == 1]
    if len(single) < len(NAMES) or not set(schema.names).issuperset(NAMES):
        return TableCondition(None, allowed=allowed)
    name = single[0], single[1], single[2]
    left = And(tuple(rest)) if len(rest) > 1 else rest[0] if rest else None
    if indexed is None:
        return TableCondition(name, rest=left, schema=schema, allowed=allowed)
    return TableCondition(name, tree.folded(indexed.column), _values(indexed, schema), left, schema, allowed)


def _parted(node: Node | None, schema: pa.Schema) -> tuple[dict[str, Set[str]], Leaf | None, list[Node]]:
    """The values that single terms allow for parts of the name, by column; a term about an indexed column, and all
    other terms."""
    names: dict[str, Set[str]] = {}
    indexed: Leaf | None = None
    rest: list[Node] = []
    for part in _conjuncts(node):
        leaf = part if isinstance(part, Leaf) and part.op in (Op.EQ, Op.IN) else None
        column = None if leaf is None else tree.folded(leaf.column)
        if column in NAMES:
            values = tree.equal_values(part, column) or set()
            names[column] = names[column] & values if column in names else values
        elif indexed is None and column in INDEXED and column in schema.names:
            indexed = leaf
        else:
            rest.append(part)
    return names, indexed, rest


def _values(leaf: Leaf, schema: pa.Schema) -> tuple[Any, ...]:
    """The values that a leaf compares with, of its column's type, without those that the type does not have."""
    type_ = schema.field(tree.folded(leaf.column)).type
    typed = (literals.typed_literal(value, type_) for value in leaf.values)
    return tuple(dict.fromkeys(value for value in typed if value is not None))


def _conjuncts(node: Node | None) -> Iterator[Node]:
    if isinstance(node, And):
        for child in node.children:
            yield from _conjuncts(child)
    elif node is not None:
        yield node
