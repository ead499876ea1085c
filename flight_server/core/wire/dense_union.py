"""Dense unions, which Arrow cannot make from Python values by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa


def dense_union(values: Iterable[Any], kind: Callable[[Any], int], type: pa.DenseUnionType) -> pa.UnionArray:
    """The values as a union: `kind` gives the index of a value's child."""
    kinds: list[int] = []
    offsets: list[int] = []
    children: list[list[Any]] = [[] for _ in type]
    for value in values:
        kinds.append(kind(value))
        offsets.append(len(children[kinds[-1]]))
        children[kinds[-1]].append(value)
    arrays = [pa.array(child, field.type) for child, field in zip(children, type, strict=True)]
    return pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()), arrays, [field.name for field in type]
    )
