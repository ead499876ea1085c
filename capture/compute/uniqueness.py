"""Whether a column's live values are distinct: by the hashes of all of them, and by the values where hashes are equal.

±0 is one value and NaN is one; nulls are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capture.compute.kernels import row_hashes
from capture.compute.pieces import divided
from capture.compute.readers import tasks as readers
from capture.connectors.spi import ScanTask
from store.model import logical_types
from store.model.errors import InvalidArgument
from store.model.logical_types import FLOATING, HASHED, TEXTUAL, LogicalType
from store.model.sketches.murmur3 import Hashes

COMPARED: Final = 16
"""Equal hashes whose values are compared: of 10^9 distinct values not even one is expected to share its hash."""


def is_unique(tasks: Iterable[ScanTask], column_id: int, report: Callable[[str], None]) -> bool:
    """True if no value of a column occurs twice in the live rows of some files.

    Args:
        tasks: The files, with the column.
        report: Called with a few words after each part of a file; may raise Cancelled.

    Raises:
        UpstreamError: A file cannot be read.
        InvalidArgument: Values of the column's type do not compare.
    """
    pieces = [piece for task in tasks for piece in divided(task)]
    hashes: list[Hashes] = []
    for done, (values, lt) in enumerate(_values(pieces, column_id), 1):
        found, nulls = row_hashes(values, lt)
        hashes.append(found if nulls is None else found[~nulls])
        report(f"{done} of {len(pieces)} parts of files read")
    repeated = _repeated(hashes)
    if not len(repeated):
        return True
    if len(repeated) > COMPARED:
        return False
    same: list[Any] = []
    for values, lt in _values(pieces, column_id):
        found, nulls = row_hashes(values, lt)
        chosen = np.isin(found, repeated) if nulls is None else np.isin(found, repeated) & ~nulls
        same += map(repr, _comparable(values.filter(pa.array(chosen)), lt).to_pylist())
    return len(set(same)) == len(same)


def _repeated(hashes: list[Hashes]) -> Hashes:
    """The hashes that occur more than once."""
    every = np.sort(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64)
    return np.unique(every[1:][every[1:] == every[:-1]])


def _values(pieces: Iterable[ScanTask], column_id: int) -> Iterator[tuple[pa.ChunkedArray, LogicalType]]:
    """The values of a column in each part of a file, with their type."""
    for piece in pieces:
        wanted = [column for column in piece.columns if column.column_id == column_id]
        if not wanted or (lt := logical_types.parse(wanted[0].logical_type)).kind not in HASHED:
            what = f"values of type {wanted[0].logical_type} do not compare" if wanted else "it was not planned"
            raise InvalidArgument(f'file "{piece.file_path}", column {column_id}: {what}')
        for _, values in readers.read(piece, wanted):
            yield values, lt


def _comparable(values: pa.ChunkedArray, lt: LogicalType) -> pa.ChunkedArray:
    """Values in one form for all files: the column's type, -0.0 as 0.0."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if lt.kind in TEXTUAL:
        return values
    if lt.kind in FLOATING:
        return pc.add(values.cast(pa.float64()), 0.0)
    return values.cast(logical_types.to_arrow(lt), safe=False)
