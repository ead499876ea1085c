"""Files without a key, by the theta sketches that captures of NDV keep of each file's columns.

A sketch has the hashes of a column's values, of all if there are at most 4096 distinct ones, else those below theta. So
a value whose hash is below theta and is not in the sketch is not in the file, in whatever order keys were written. A
sketch counts only beside the row of `stats.file_columns` that the same scan wrote, because it does not tell the type by
which its values were hashed: the row does.

A sketch of few values is as good as a list of them, and so small that those of all files are read: then `region = 'x'`
skips files in which bounds enclose it, in tables of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection
from store.history.file_spans import listed_rows
from store.model import sketches
from store.model.columns import THETA
from store.model.freshness import is_whole_sql
from store.model.logical_types import Kind
from store.model.predicates.buckets import bytes_of
from store.model.predicates.literals import Scalar
from store.model.predicates.plain_conditions import Column
from store.model.sketches.murmur3 import SEED, Hashes
from store.model.sketches.theta import SEED_MARK, read_theta

MAX_FILES: Final = 2_000
"""Most files whose sketches are read for one scan, whatever their size; each has up to 32 KiB."""

FEW_BYTES: Final = 16 + 8 * 64  # of a sketch of 64 values
MAX_FILES_OF_FEW: Final = 200_000
"""Most files whose sketches of few values are read; up to 100 MB."""

_MAX_FEW: Final = 64  # literals that are looked up in each of so many sketches
_ALL_HASHES: Final = pa.array([bytes([longs, 3, 3]) for longs in (1, 2)], pa.binary())
"""First bytes of sketches with all hashes: length of the preamble, version, family."""

_KINDS: Final = frozenset({Kind.INT, Kind.STRING, Kind.BINARY, Kind.UUID})  # hashed by the same bytes as for buckets


def hashes_of(column: Column, values: Sequence[Scalar]) -> Hashes | None:
    """The hashes, ascending, by which sketches know values of a column; None if they do not tell such values apart."""
    if column.type is None or column.type.kind not in _KINDS:
        return None
    wanted = [each for value in values if (each := bytes_of(value, column.type)) is not None]
    if len(wanted) < len(values):
        return None
    return np.unique(np.array([mmh3.hash64(each, SEED, signed=False)[0] >> 1 for each in wanted], np.uint64))


def having(
    files: pa.Table,
    cursor: Connection,
    table_key: int,
    positions: Mapping[str, int],
    column: Column,
    values: Sequence[Scalar],
    slice: str = "TRUE",
) -> pa.Table:
    """The files that may have one of some values in a column.

    Args:
        files: Files, with `file_path`.
        positions: Family of rows → position of the snapshot's listing.
        values: Literals.
        slice: SQL of a condition that is true for rows `s` of these files, perhaps of others.
    """
    if not 0 < files.num_rows <= MAX_FILES_OF_FEW:
        return files
    if not {"file_sketches", "stats.file_columns"} <= positions.keys() or (hashes := hashes_of(column, values)) is None:
        return files
    of_column, is_few = f"s.column_id = {int(column.id)} AND {slice}", files.num_rows <= MAX_FILES
    if not is_few and len(hashes) > _MAX_FEW:
        return files
    size = "TRUE" if is_few else f"octet_length(k.data) <= {FEW_BYTES}"
    stored = query(
        cursor,
        "SELECT k.file_path, k.data, k.params FROM"
        f" (SELECT s.* {listed_rows('file_sketches', table_key, positions['file_sketches'], of_column)}) k JOIN"
        f" (SELECT s.* {listed_rows('stats.file_columns', table_key, positions['stats.file_columns'], of_column)}) s"
        " ON s.file_path = k.file_path AND s.captured_at = k.captured_at"
        f" WHERE k.role = 'NDV' AND k.sketch_type = '{THETA}' AND s.producer = 'ENGINE_COMPUTED'"
        f" AND s.logical_type = ? AND {is_whole_sql('s')} AND {size}"
        + (" AND k.file_path IN (SELECT unnest(?::VARCHAR[]))" if is_few else ""),
        [str(column.type), *([files["file_path"].to_pylist()] if is_few else [])],
    )
    partial = [params for params in pc.unique(stored["params"]).to_pylist() if sketches.is_partial(params)]
    stored = stored.filter(pc.invert(pc.is_in(stored["params"], pa.array(partial, pa.string()))))
    data = stored["data"]
    is_list = pc.and_(
        pc.is_in(pc.binary_slice(data, 0, 3), _ALL_HASHES), pc.equal(pc.binary_slice(data, 6, 8), SEED_MARK)
    )
    is_list = pc.and_(is_list, len(hashes) <= _MAX_FEW)
    lists, others = stored.filter(is_list), stored.filter(pc.invert(is_list))
    found = pa.chunked_array([pa.repeat(False, len(lists))])
    for each in hashes.astype("<u8"):  # bytes that straddle two hashes keep a file in vain, once in 2^50
        found = pc.or_(found, pc.match_substring(lists["data"], each.tobytes()))
    without = lists["file_path"].filter(pc.invert(found)).to_pylist()
    without += [path for path, data, _ in _rows(others) if not _may_have(data, hashes)]
    return files if not without else files.filter(pc.invert(pc.is_in(files["file_path"], pa.array(without))))


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _may_have(data: bytes, hashes: Hashes) -> bool:
    """True unless a theta sketch shows that its values have none of the hashes, which are ascending."""
    state = read_theta(data)
    if len(hashes) and int(hashes[-1]) >= state.theta:
        return True
    if not len(state.hashes):
        return False
    places = np.minimum(np.searchsorted(state.hashes, hashes), len(state.hashes) - 1)
    return bool((state.hashes[places] == hashes).any())
