"""Puts: rows of one flight and a mode, the counts returned, and the keys that identify rows."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.model.columns import COSMETIC
from store.model.errors import Conflict, InvalidArgument
from store.model.schemas import FLIGHTS
from store.model.targets import TargetKind

Codes: TypeAlias = npt.NDArray[np.int64]

# Flight → the stored columns that, with table and snapshot, identify a record. `file_sketches` are the rows of
# stats.sketches about files, which are stored by span, as rows of files are.
IDENTITY = {name: flight.identity for name, flight in FLIGHTS.items() if flight.writable} | {
    "stats.sketches": ("storage_id", "role"),  # of one column at most
    "file_sketches": ("storage_id", "column_id", "role"),
}
FAMILY_OF: Final = {
    "stats.files": "stats.files",
    "stats.file_columns": "stats.file_columns",
    "stats.sketches": "file_sketches",
}
"""Flight → the family that its rows of files are of."""

MANY_ROWS: Final = 122_880
"""Rows of one table and family that are stored in pieces; fewer are stored by one transaction."""

# Kind → its flight, in the order of storage ids: column-…, composite-…, expression-…, file-…, table.
FLIGHT_OF = {
    TargetKind.COLUMN: "stats.columns",
    TargetKind.COLUMN_GROUP: "stats.column_groups",
    TargetKind.EXPRESSION: "stats.expressions",
    TargetKind.FILE: "stats.files",
    TargetKind.TABLE: "stats.tables",
}
_SKETCH_COSMETIC = frozenset({"captured_at"})
_SLICE_ROWS = 65_536
_DENSE = 1 << 24  # integers within such a range are numbers already


class PutMode(StrEnum):
    """Treatment of targets that are stored already."""

    CREATE = "create"  # other content for a stored target is a conflict
    UPSERT = "upsert"
    REPLACE_SNAPSHOT = "replace_snapshot"
    FILL = "fill"
    """Stores missing records only, for results that a capture was not asked for; and those whose engine has stored them
    when it took the writer of their bounds for known and does not now, or the reverse (UNCONFIRMED)."""
    CAPTURE = "capture"  # upsert, but a PARTIAL record does not replace a COMPLETE one of its snapshot and target


class Counts(NamedTuple):
    """The effect of a put, in records."""

    received: int = 0
    created: int = 0
    unchanged: int = 0
    replaced: int = 0

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]  # of numbers, not of tuples
        return Counts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Put:
    """Rows of one flight for any number of tables and snapshots; `rows` have the key columns of the flight."""

    flight: str
    rows: pa.Table
    mode: PutMode = PutMode.CREATE

    @property
    def num_rows(self) -> int:
        """The number of its rows."""
        return int(self.rows.num_rows)


@dataclass(frozen=True, slots=True)
class Listing:
    """The listing of a snapshot's files: all of them, or only changes from a base.

    Attributes:
        mark: Digest of the listed files and their statistics.
        base_snapshot_id: Snapshot whose stored listing this one continues; None for a complete listing.
        removed: Paths of files of the base that are gone or changed.
    """

    snapshot_id: int
    mark: str
    base_snapshot_id: int | None = None
    base_mark: str = ""
    removed: tuple[str, ...] = ()


def cosmetic(flight: str) -> frozenset[str]:
    """The columns that are not part of a row's content."""
    return _SKETCH_COSMETIC if flight.endswith("sketches") else COSMETIC


def digest(puts: Sequence[Put]) -> str:
    """SHA-256 of the puts' rows and modes, independent of how the rows were split into batches."""
    sink = _Hash()
    for put in puts:
        sink.write(f"{put.flight}\0{put.mode}\0{put.rows.schema.names}\0{put.rows.num_rows}\0".encode())
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), put.rows.schema) as writer:
            for start in range(0, put.rows.num_rows, _SLICE_ROWS):
                writer.write_table(put.rows.slice(start, _SLICE_ROWS).combine_chunks())
    return sink.hash.hexdigest()


class _Hash(io.RawIOBase):
    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return memoryview(data).nbytes


def codes(rows: pa.Table, names: Sequence[str]) -> Codes:
    """Group codes: two rows have the same number exactly if they agree in all the columns.

    Args:
        names: Columns to compare; nulls are equal.

    Returns:
        int64, of shape (rows,), in no meaningful order.
    """
    total: Codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        numbers, count = _numbers(rows[name])
        if count > 1:  # catalog, schema and table usually have one value
            total = total * count + numbers
            if int(total.max(initial=0)) >= 2**38:  # room for the next column
                total = np.unique(total, return_inverse=True)[1].astype(np.int64)
    return total


def _numbers(column: pa.ChunkedArray) -> tuple[Codes, int]:
    """A number for each value of a column, equal for equal values, and an exclusive upper bound, at most 2^25."""
    if pa.types.is_integer(column.type) and len(column) and not column.null_count:
        values = column.to_numpy()
        low = values.min()
        if (span := int(values.max()) - int(low)) < _DENSE:  # a fifth of the cost of a dictionary for few rows
            return (values - low).astype(np.int64), span + 1
    if pa.types.is_list(column.type):
        column = _texts(column)
    if is_constant(column):
        return np.zeros(len(column), np.int64), 1
    coded = (
        column.chunk(0).dictionary_encode() if column.num_chunks == 1 else column.dictionary_encode().combine_chunks()
    )
    count = len(coded.dictionary)
    if column.null_count:
        return coded.indices.fill_null(count).to_numpy(zero_copy_only=False).astype(np.int64), count + 1
    return coded.indices.to_numpy().astype(np.int64), count


def is_constant(column: pa.ChunkedArray) -> bool:
    """True if a column has values and no nulls, and all are equal."""
    if not len(column) or column.null_count:
        return False
    first, last = column[0], column[-1]
    return bool(first.equals(last) and pc.all(pc.equal(column, first)).as_py())


def first_of_each(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Index of the first row (int64) of each combination of values in some columns, ascending."""
    return pa.array(np.sort(np.unique(codes(rows, names), return_index=True)[1]))


def _texts(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists as strings that are equal exactly if the lists are."""
    if pa.types.is_nested(lists.type.value_type):
        values = (None if value is None else json.dumps(value) for value in lists.to_pylist())
        return pa.chunked_array([pa.array(values, pa.string())])
    return pc.binary_join(lists.cast(pa.list_(pa.string())), ",")


def once(flight: str, name_of: Callable[[int], str], rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows without duplicates: the first of equal rows for one target.

    Args:
        name_of: Row index → full name of the row's table, for messages.

    Raises:
        InvalidArgument: Two different rows for one target.
    """
    numbers = codes(rows, keys)
    if (numbers[1:] > numbers[:-1]).all():  # rows of captures are sorted: no duplicates
        return rows
    distinct, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    if len(distinct) == len(numbers):
        return rows
    content = [name for name in rows.column_names if name not in cosmetic(flight) and name not in keys]
    whole = codes(rows, content)
    differs = whole != whole[first[places]]
    if differs.any():
        at = int(np.argmax(differs))
        raise two_rows(flight, name_of(at), {key: rows[key][at].as_py() for key in keys if key != "table_key"})
    return rows.take(pa.array(np.sort(first)))


def two_rows(flight: str, full_name: str, target: dict[str, Any]) -> InvalidArgument:
    """The error of a put with two different rows for a target, which is given by its key columns."""
    return InvalidArgument(
        f'{flight}: two different rows for one target of "{full_name}": {shown(target)}', hint="send each target once"
    )


def contradicts(flight: str, full_name: str, keys: Sequence[str], old: dict[str, Any], new: dict[str, Any]) -> Conflict:
    """The Conflict of a row with the stored one, with the first field that differs.

    Args:
        new: The row of the put by column name.
    """
    content = [name for name in old if name not in cosmetic(flight) and name not in keys]
    differing = next((name for name in content if new.get(name) != old[name]), "content")
    return Conflict(
        f'{flight}: "{full_name}" already has another record for {shown({key: new[key] for key in keys})}: '
        f"{differing} is {shown(old.get(differing))}, in the put it is {shown(new.get(differing))}",
        hint='put with mode "upsert" or "replace_snapshot" to replace it',
        params={"table": full_name, "field": differing},
    )


def shown(value: object) -> str:
    """A value shortened for messages."""
    if isinstance(value, dict):
        return ", ".join(f"{k}={shown(v)}" for k, v in value.items()) or "the table"
    text = repr(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= 100 else text[:100] + "…"


def one_place(table_key: int, snapshot_id: int) -> pa.Table:
    """A table of one place, with the columns `table_key` and `snapshot_id`."""
    return pa.table({"table_key": [table_key], "snapshot_id": [snapshot_id]})


def snapshots_of(rows: pa.Table) -> pa.Table:
    """The distinct snapshots of rows: table_key, snapshot_id, and the first schema_hash that is not null, if any."""
    place = ["table_key", "snapshot_id"]
    if "schema_hash" not in rows.column_names:
        rows = rows.append_column("schema_hash", pa.nulls(rows.num_rows, pa.string()))
        return rows.select([*place, "schema_hash"]).take(first_of_each(rows, place))
    rows = rows.select([*place, "schema_hash"])
    seen = rows.take(first_of_each(rows, place))
    if seen["schema_hash"].null_count:
        seen = rows.group_by(place, use_threads=False).aggregate([("schema_hash", "first")])
        seen = seen.rename_columns({"schema_hash_first": "schema_hash"})
    return seen
