"""A check that sketches are what their type says, before anything is read from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from store import schemas
from store.errors import InvalidArgument
from store.sketches.frequent_items import read_frequent
from store.sketches.kll import read_kll
from store.sketches.theta import read_theta

_READ: Final[dict[str, Callable[[bytes], Any]]] = {
    schemas.THETA: read_theta,
    schemas.KLL: read_kll,
    schemas.FREQUENT_ITEMS: read_frequent,
}


def first_unreadable(types: pa.Array | pa.ChunkedArray, data: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """The first sketch that is not what its type says: its row and the reason; None where all are.

    Args:
        types: The `sketch_type` of each row; sketches of other types than the project's own are not looked at.
        data: The bytes of each row.
    """
    for row, (type, sketch) in enumerate(zip(types.to_pylist(), data.to_pylist(), strict=True)):
        if type in _READ:
            try:
                _READ[type](sketch)
            except InvalidArgument as trouble:
                return row, str(trouble).removeprefix("data: ")
    return None
