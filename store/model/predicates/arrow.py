"""Predicate trees as Arrow kernels over record batches; `tree` defines their meaning.

Kernels are called one by one, because on a few rows the set-up of `Table.filter` takes thirty times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.model.logical_types import Kind
from store.model.predicates.bounds import KEYS, TYPE_COLUMN, rows_by_kind
from store.model.predicates.tree import And, Node, Not, Op, Or, ResolvedLeaf, fields_of, resolve, resolve_bound

Mask: TypeAlias = Callable[[pa.RecordBatch], Any]
"""Function from a batch to one boolean per row, or one scalar for all rows; null if unknown."""


@cache
def _unknown() -> pa.Scalar:
    """A null boolean, created on first use: the first scalar that pyarrow creates imports pandas, which is slow."""
    return pa.scalar(None, pa.bool_())


def to_arrow(node: Node, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
    """A function from a batch to the ascending indices (uint64) of the rows for which the predicate is true."""
    mask = to_mask(node, schema)
    return lambda batch: pc.indices_nonzero(mask(batch))


def to_mask(node: Node, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
    """A function from a batch to the predicate's value for each row, a boolean, null if unknown."""
    mask = _mask(node, fields_of(schema))

    def truth(batch: pa.RecordBatch) -> pa.Array:
        values = mask(batch)
        return pa.repeat(values, batch.num_rows) if isinstance(values, pa.Scalar) else values

    return truth


def _mask(node: Node, fields: Mapping[str, pa.Field]) -> Mask:
    match node:
        case And(children) | Or(children):
            join, empty = (pc.and_kleene, True) if isinstance(node, And) else (pc.or_kleene, False)
            masks = [_mask(child, fields) for child in children]
            if not masks:
                return lambda _: pa.scalar(empty)
            return lambda batch: reduce(join, (mask(batch) for mask in masks))
        case Not(child):
            inner = _mask(child, fields)
            return lambda batch: pc.invert(inner(batch))
    if (by_kind := resolve_bound(node, fields)) is not None:
        return _bound_mask({kind: (leaf, leaf_mask(leaf)) for kind, leaf in by_kind.items()}, fields)
    leaf = resolve(node, fields)
    return leaf_mask(leaf) if leaf else lambda _: _unknown()


def _bound_mask(by_kind: Mapping[Kind, tuple[ResolvedLeaf, Mask]], fields: Mapping[str, pa.Field]) -> Mask:
    type_column = fields[TYPE_COLUMN].name

    def mask(batch: pa.RecordBatch) -> pa.Array:
        found, known = np.zeros(batch.num_rows, np.bool_), np.zeros(batch.num_rows, np.bool_)
        for kind, rows in rows_by_kind(batch[type_column]).items():
            if kind in by_kind:
                leaf, compare = by_kind[kind]
                name = leaf.field.name
                keys = KEYS[kind].of(batch[name].take(pa.array(rows)))
                part = compare(pa.record_batch([keys], [name]))
                found[rows] = part.fill_null(False).to_numpy(zero_copy_only=False)
                known[rows] = part.is_valid().to_numpy(zero_copy_only=False)
        return pa.array(found, mask=~known)

    return mask


def leaf_mask(leaf: ResolvedLeaf) -> Mask:
    """A function from a batch with the leaf's column to its value for each row, null if unknown."""
    name, type = leaf.field.name, leaf.field.type
    match leaf.op:
        case Op.IS_NULL:
            return lambda batch: pc.is_null(batch[name])
        case Op.IS_NOT_NULL:
            return lambda batch: pc.is_valid(batch[name])
        case Op.IN:
            members = pa.array([*leaf.values, *(-v for v in leaf.values if v == 0 and isinstance(v, float))], type)
            return lambda batch: _is_in(batch[name], members, leaf.unread)
        case Op.BETWEEN:
            low, high = (pa.scalar(value, type) for value in leaf.values)
            return lambda batch: pc.and_kleene(pc.greater_equal(batch[name], low), pc.less_equal(batch[name], high))
    value, compare = pa.scalar(leaf.values[0], type), _KERNELS[leaf.op]
    return lambda batch: compare(batch[name], value)


_KERNELS: Final[Mapping[Op, Callable[..., Any]]] = {
    Op.EQ: pc.equal,
    Op.NEQ: pc.not_equal,
    Op.LT: pc.less,
    Op.LTE: pc.less_equal,
    Op.GT: pc.greater,
    Op.GTE: pc.greater_equal,
}


def _is_in(column: pa.Array, members: pa.Array, unread: bool) -> pa.Array:
    contained = pc.if_else(pc.is_valid(column), pc.is_in(column, members), _unknown())
    return pc.or_kleene(contained, _unknown()) if unread else contained
