"""A check that the bytes of sketches are valid for their type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from store.model.columns import FREQUENT_ITEMS, KLL, THETA
from store.model.errors import InvalidArgument
from store.model.sketches.frequent_items import read_frequent
from store.model.sketches.kll import read_kll
from store.model.sketches.theta import read_theta

_READ: Final[dict[str, Callable[[bytes], Any]]] = {
    THETA: read_theta,
    KLL: read_kll,
    FREQUENT_ITEMS: read_frequent,
}


def first_unreadable(types: pa.Array | pa.ChunkedArray, data: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """The first invalid sketch of the project's own types: its row and the reason; None if all are valid."""
    for row, (type, sketch) in enumerate(zip(types.to_pylist(), data.to_pylist(), strict=True)):
        if type in _READ:
            try:
                _READ[type](sketch)
            except InvalidArgument as error:
                return row, str(error).removeprefix("data: ")
    return None
