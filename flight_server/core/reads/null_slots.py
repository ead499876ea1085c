"""The bytes under NULLs.

DuckDB leaves what was in its memory in the slots of NULLs, such as pieces of names of tables that a caller may not see,
and Arrow sends those bytes with the values. A caller of all tables learns nothing from them; for other callers they are
set to zero.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_INTEGERS: Final = {32: pa.int32(), 64: pa.int64()}  # by width in bits


def zeroed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch, of any types, with zeros in the slots of NULLs."""
    columns = [_zeroed(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


def _zeroed(column: pa.Array) -> pa.Array:
    type_ = column.type
    if not pa.types.is_nested(type_) and (column.null_count == 0 or not _is_fixed_width(type_)):
        return column
    if pa.types.is_primitive(type_) and type_.bit_width in _INTEGERS:
        integers = column.view(_INTEGERS[type_.bit_width])  # six times as fast as `take`
        values = pc.fill_null(integers, 0).to_numpy()
        return pa.array(values, integers.type, mask=column.is_null().to_numpy(zero_copy_only=False)).view(type_)
    return column.take(pa.array(np.arange(len(column))))  # a copy with zeros for NULLs


def _is_fixed_width(type_: pa.DataType) -> bool:
    try:
        return bool(type_.bit_width)
    except ValueError:  # the type has no width
        return False
