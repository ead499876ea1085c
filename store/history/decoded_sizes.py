"""The size of a column once it is cast to plain values: a few bytes of some types stand for gigabytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WIDTH = 8  # bytes of a number, of an offset, or of a slot that is null


def decoded_bytes(array: pa.Array) -> int:
    """Estimates the bytes that an array takes once it has plain values; those of plain texts are not counted.

    Args:
        array: A validated array of a type that `store.history.casts.castable` takes. Nulls have no buffers, a
        dictionary or a
            view repeats one text in any number of rows.
    """
    is_, type, size = pa.types, array.type, _WIDTH * len(array)
    if is_.is_dictionary(type):
        lengths = _lengths(array.dictionary)
        if lengths is None:
            return len(array) * (_WIDTH + decoded_bytes(array.dictionary))
        return size + (pc.sum(pa.array(lengths).take(array.indices)).as_py() or 0)
    if is_.is_string_view(type) or is_.is_binary_view(type):
        return size + int(_view_lengths(array).sum())
    if is_.is_fixed_size_list(type):
        start = array.offset * type.list_size
        return size + decoded_bytes(array.values.slice(start, len(array) * type.list_size))
    if is_.is_list(type) or is_.is_large_list(type):
        start, end = (array.offsets[at].as_py() for at in (0, -1))
        return size + decoded_bytes(array.values.slice(start, end - start))
    if is_.is_struct(type):
        return size + sum(decoded_bytes(array.field(number)) for number in range(type.num_fields))
    return size


def _lengths(texts: pa.Array) -> np.ndarray | None:
    """The bytes of each text; None for other types."""
    is_, type = pa.types, texts.type
    if is_.is_string_view(type) or is_.is_binary_view(type):
        return _view_lengths(texts)
    if is_.is_string(type) or is_.is_large_string(type) or is_.is_binary(type) or is_.is_large_binary(type):
        lengths: np.ndarray = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths
    return None


def _view_lengths(views: pa.Array) -> np.ndarray:
    """The bytes of each text of a view: the first of its four integers; of nulls too, which may be any number."""
    if len(views) == 0:
        return np.zeros(0, np.int64)
    numbers = np.frombuffer(views.buffers()[1], np.int32)[: 4 * (views.offset + len(views))]
    lengths: np.ndarray = numbers[4 * views.offset :: 4].astype(np.int64)
    if views.null_count:
        lengths[views.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths
