"""Values of columns in data files: leaves by their paths, and the rows that equality deletes remove by their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.connectors.file_columns import alike
from capture.connectors.spi import EqualityDelete, ScanColumn
from store.duckdb.lru import LruCache
from store.model.logical_types import parse, to_arrow
from store.model.names import column_parts, dotted_name

CACHED_KEYS: Final = 4  # cached sets of deleted keys, shared by files of the same age

Mask: TypeAlias = npt.NDArray[np.bool_]


def leaf(table: pa.Table, path: str) -> pa.ChunkedArray:
    """A column or struct leaf by the key of its path, one value per row; null where an enclosing struct is null.

    A dotted path that is not a key matches the column with that dotted name.

    Raises:
        KeyError: The column does not exist.
    """

    def top(name: str) -> pa.ChunkedArray | None:  # not a dict of all columns, which a wide table would make for each
        places = table.schema.get_all_field_indices(name)
        return table.column(places[-1]) if places else None

    column = _below(top, column_parts(path))
    if column is None:
        raise KeyError(f'the file has no column "{dotted_name(path)}"')
    return column


def _below(column_of: Callable[[str], pa.ChunkedArray | None], parts: tuple[str, ...]) -> pa.ChunkedArray | None:
    """The column at a path; a column name with dots matches several parts."""
    for count in range(1, len(parts) + 1):
        column = column_of(".".join(parts[:count]))
        if column is None:
            continue
        if count == len(parts):
            return column
        if pa.types.is_struct(column.type):
            names = [column.type.field(i).name for i in range(column.type.num_fields)]
            inside = _below(dict(zip(names, column.flatten(), strict=True)).get, parts[count:])
            if inside is not None:
                return inside
    return None


def plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unwraps extension types, and casts string and binary views, for which Arrow lacks kernels, by a copy."""
    while isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(values.type) else values


class DeletedKeys:
    """Finds the rows that equality deletes remove; keeps the keys of the last delete files.

    Args:
        open_file: Opens a delete file by its path.
    """

    def __init__(self, open_file: Callable[[str], Any]):
        self._open_file = open_file
        self._keys: LruCache[tuple[str, ...], list[pa.ChunkedArray]] = LruCache(CACHED_KEYS)

    def mask(self, deletes: Sequence[EqualityDelete], rows: int, column_of: Callable[[str], pa.ChunkedArray]) -> Mask:
        """Mask of the rows that equal a row of a delete file in all its columns.

        Args:
            rows: Number of rows of the data file.
            column_of: Returns a column of the data file, by the key of its path.
        """
        gone: Mask = np.zeros(rows, np.bool_)
        for group in alike(deletes, lambda delete: frozenset(column.column_id for column, _ in delete.columns)):
            columns = sorted((column for column, _ in group[0].columns), key=lambda column: column.column_id)
            gone |= matching([_values(column, rows, column_of) for column in columns], self._read(group))
        return gone

    def _read(self, deletes: Sequence[EqualityDelete]) -> list[pa.ChunkedArray]:
        """The keys of delete files of the same columns, one per column in the order of their ids."""
        name = tuple(sorted(delete.path for delete in deletes))
        keys = self._keys.get(name)
        if keys is None:
            parts = [self._read_file(delete) for delete in deletes]
            keys = [pa.chunked_array(c for part in each for c in part.chunks) for each in zip(*parts, strict=True)]
            self._keys.put(name, keys)
        return keys

    def _read_file(self, delete: EqualityDelete) -> list[pa.ChunkedArray]:
        columns = sorted(delete.columns, key=lambda pair: pair[0].column_id)
        with self._open_file(delete.path) as source, pq.ParquetFile(source, pre_buffer=False) as file:
            table = file.read([dotted_name(path) for _, path in columns], use_threads=False)
        return [_conformed(leaf(table, path), column) for column, path in columns]


def matching(keys: Sequence[pa.ChunkedArray], deleted: Sequence[pa.ChunkedArray]) -> Mask:
    """Mask of the rows of `keys` that are among the rows of `deleted`.

    Null equals null, and NaN equals NaN; -0.0 does not equal 0.0, as in Iceberg's Java library.
    """
    rows: npt.NDArray[np.int64] = np.zeros(len(keys[0]), np.int64)
    matches: Mask = np.ones(len(keys[0]), np.bool_)
    gone: npt.NDArray[np.int64] = np.zeros(len(deleted[0]), np.int64)
    for key, values in zip(keys, deleted, strict=True):
        distinct = values.unique()
        code = pc.index_in(key, value_set=distinct).fill_null(-1).to_numpy(zero_copy_only=False)
        gone_code = pc.index_in(values, value_set=distinct).to_numpy(zero_copy_only=False)
        matches &= code >= 0
        # Combine with the codes of earlier columns and make dense again, so that codes do not overflow.
        distinct_gone, gone = np.unique(gone * len(distinct) + gone_code, return_inverse=True)
        pair = rows * len(distinct) + code
        rows = np.minimum(np.searchsorted(distinct_gone, pair), max(len(distinct_gone) - 1, 0)).astype(np.int64)
        matches &= distinct_gone[rows] == pair if len(distinct_gone) else False
    return matches


def _values(column: ScanColumn, rows: int, column_of: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
    if column.path is not None:
        return _conformed(column_of(column.path), column)
    constant = pa.nulls(1) if column.constant is None else column.constant
    return _conformed(pa.chunked_array([constant.take(pa.array(np.zeros(rows, np.int64)))]), column)


def _conformed(values: pa.ChunkedArray, column: ScanColumn) -> pa.ChunkedArray:
    """The values in the column's type, so that equal ones are; those with nanoseconds keep them."""
    values = plain(values)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values if getattr(values.type, "unit", "") == "ns" else values.cast(to_arrow(parse(column.logical_type)))
