"""Comparison of the values of files with what the metadata of their table says of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capture.compute.partial import Partial
from capture.connectors.spi import NativeStats, ScanTask
from capture.spi import TableHandle
from store.model import bounds
from store.model.errors import StatflightError
from store.model.logical_types import LogicalType
from store.model.statistics import COUNTED, SIDES, exactness

log = logging.getLogger("statflight.worker")

_MOST_CELLS: Final = 1_000_000  # files × columns that are compared, of which the metadata is in memory meanwhile
_LOGGED: Final = 5  # contradictions of a column that are logged
_COMPARED: Final = (*COUNTED, *SIDES)
_SHOWN: Final = 60  # characters of a bound in a message


def stated_files(
    table: TableHandle,
    native: NativeStats | None,
    tasks: Sequence[ScanTask],
    column_ids: Sequence[int],
    notes: list[str],
) -> StatedFiles | None:
    """Reads what a scan of columns that are no containers is to be compared with, from `native` if that is read; None
    if there is nothing to compare. `notes` receive the reason if there are too many files and columns, or the metadata
    cannot be read."""
    cells = len(tasks) * len(column_ids)
    if not cells or not table.connector.states_files:
        return None
    if cells > _MOST_CELLS:
        notes.append(f"not compared with metadata: {cells:,} columns of files are more than {_MOST_CELLS:,}")
        return None
    try:
        names = frozenset(table.names[i] for i in column_ids)
        return StatedFiles(native or table.native_stats(names), tasks, column_ids)
    except StatflightError as error:
        notes.append(f"not compared with metadata: {error}")
        return None


def summary(contradictions: Sequence[str]) -> str:
    """Summary of the contradictions of a column, for people."""
    others = f" (and {len(contradictions) - 1} more files)" if len(contradictions) > 1 else ""
    return f"the metadata contradicts the data, so that nothing may be skipped by it: {contradictions[0]}{others}"


def warn(table: TableHandle, contradictions: Mapping[Any, Sequence[str]]) -> None:
    """Logs the contradictions of the files of each column."""
    name = f"{table.catalog}.{table.schema}.{table.name}"
    for of_column in contradictions.values():
        for contradiction in of_column[:_LOGGED]:
            log.warning("%s: %s", name, contradiction)
        if len(of_column) > _LOGGED:
            log.warning("%s: and %d more files contradict the metadata so", name, len(of_column) - _LOGGED)


class StatedFiles:
    """The statistics of some columns and files that the metadata of their table has.

    Attributes:
        native: All that the metadata says of the table.
    """

    def __init__(self, native: NativeStats, tasks: Iterable[ScanTask], column_ids: Sequence[int]):
        self.native = native
        paths = list(dict.fromkeys(task.file_path for task in tasks))
        self._files = {path: at for at, path in enumerate(paths)}
        self._columns = {column_id: at for at, column_id in enumerate(column_ids)}
        of_files, of_columns = pa.array(paths, pa.string()), pa.array(column_ids, pa.int64())
        tables = []
        for part in native.file_columns():
            places = pc.index_in(part["file_path"], of_files), pc.index_in(part["column_id"], of_columns)
            rows = pa.table([*places, *(part[name] for name in _COMPARED)], ["file", "column", *_COMPARED])
            if any(place.null_count for place in places):
                rows = rows.filter(pc.and_(pc.is_valid(places[0]), pc.is_valid(places[1])))
            tables.append(rows)
        self._row_of: npt.NDArray[np.int32] = np.full((len(paths), len(column_ids)), -1, np.int32)
        self._values: dict[str, pa.Array] = {}
        if tables:
            found = pa.concat_tables(tables)
            self._row_of[found["file"].to_numpy(), found["column"].to_numpy()] = np.arange(found.num_rows)
            self._values = {name: found[name].combine_chunks() for name in _COMPARED}

    def row_count(self, path: str, column_id: int) -> int | None:
        """The rows of a file by its metadata; None if it does not say."""
        file, column = self._files.get(path), self._columns.get(column_id)
        if file is None or column is None or (row := int(self._row_of[file, column])) < 0:
            return None
        count: int | None = self._values["row_count"][row].as_py()
        return count

    def contradiction(self, path: str, column_id: int, lt: LogicalType, part: Partial, *, whole: bool = True) -> str:
        """The first difference that could make a reader skip rows, or count them wrongly.

        Args:
            whole: The values are all live ones of the file, not a sample of them.

        Returns:
            What the metadata says and what the data says; empty if they agree, or the metadata says nothing.
        """
        file, column = self._files.get(path), self._columns.get(column_id)
        if file is None or column is None or (row := int(self._row_of[file, column])) < 0:
            return ""
        stated = {name: values[row].as_py() for name, values in self._values.items()}
        return _of_counts(stated, part, whole=whole) or _of_bounds(stated, part, lt)


def _of_counts(stated: Mapping[str, Any], part: Partial, *, whole: bool) -> str:
    """The first difference between counts; a sample can only have too many of something."""
    for name in COUNTED:
        expected, found = stated[name], getattr(part, name)
        if expected is None or found is None:
            continue
        if found > expected or (whole and found < expected):
            return f"{name} {expected:,}, the data {'' if whole else 'at least '}{found:,}"
    if whole or None in (stated["row_count"], stated["null_count"]):
        return ""
    values, most = part.row_count - part.null_count, stated["row_count"] - stated["null_count"]
    return f"{most:,} values, the data at least {values:,}" if values > most else ""


def _of_bounds(stated: Mapping[str, Any], part: Partial, lt: LogicalType) -> str:
    """The first bound that excludes a value of the data."""
    if not lt.orderable:
        return ""
    for side in SIDES:
        expected, found = stated[side], getattr(part, side)
        is_exact = getattr(part, exactness(side))  # else rounded outwards
        if expected is None or found is None or found == expected or not is_exact:
            continue
        low, high = (expected, found) if side == "min" else (found, expected)
        if not bounds.is_range(low, high, lt):
            return f"{side} {_shown(expected, lt)}, the data {_shown(found, lt)}"
    return ""


def _shown(bound: Any, lt: LogicalType) -> str:
    text = str(bound)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return json.dumps(text, ensure_ascii=False) if lt.kind == "STRING" else text
