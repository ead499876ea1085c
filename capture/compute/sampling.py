"""Selection of the row groups of a sample, in an order that any budget can cut.

All rows of a table, in file order, form a line. Points on the line select row groups: each point selects the one it
falls into, unless it is selected already. So the probability of a row group is proportional to its rows, and every
prefix of the order is a sample of the whole table. Random points give a random sample. Evenly spreading points, over
files ordered by partition and bounds, give a sample spread over the values. Footers are read on demand; a file of a
format without row groups counts as one.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import NativeStats, ScanTask
from capture.connectors.task_readers import footer
from capture.spec import Budget
from store.model import bounds
from store.model.logical_types import Kind, LogicalType
from store.model.names import dotted_name

_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_MISSES: Final = 64  # consecutive points without a new row group, after which the rest is taken in order


@dataclass(frozen=True, slots=True)
class _Unit:
    """A row group, or a whole file (`group` is None) if the file is not read by row groups."""

    file: int
    group: int | None
    rows: int
    size_bytes: int


class Draw:
    """Draws the row groups of a sample, as tasks, until the budget of rows or bytes is spent.

    Args:
        tasks: The files in the order of the line.
        points: Endless iterator of numbers in [0, 1).
        budget: The limits; the caller enforces seconds.
    """

    def __init__(self, tasks: Sequence[ScanTask], points: Iterator[float], budget: Budget):
        self.rows = 0
        self.size_bytes = 0
        self.ended_by = ""  # the limit that was reached
        self.budget = budget
        self._tasks, self._points = tasks, points
        self._units = self._order()
        self._layouts: dict[int, list[_Unit]] = {}

    @property
    def rows_at_most(self) -> int:
        """Upper limit of the rows of the whole sample."""
        total = sum(task.row_count for task in self._tasks)
        return total if self.budget.max_rows is None else min(total, max(self.budget.max_rows, self.rows))

    def take(self, count: int | None = None, until: float = math.inf) -> list[ScanTask]:
        """Draws the next row groups, as one task per file that is limited to them.

        The very first row group is drawn whatever the budget, so a sample is never empty.

        Args:
            count: Maximum number of row groups; None: all within the budget.
            until: Reading of `time.monotonic()` at which to stop drawing, because reading footers may be slow.
        """
        chosen: dict[int, list[int | None]] = {}
        for unit in itertools.islice(self._units, count):
            if self.rows and (spent := self._would_spend(unit)):
                self.ended_by = spent
                self._units = iter(())
                break
            self.rows += unit.rows
            self.size_bytes += unit.size_bytes
            chosen.setdefault(unit.file, []).append(unit.group)
            if time.monotonic() >= until:
                break
        return [_task_of(self._tasks[file], groups) for file, groups in chosen.items()]

    def _would_spend(self, unit: _Unit) -> str:
        limits = (
            ("rows", self.budget.max_rows, self.rows + unit.rows),
            ("bytes", self.budget.max_bytes, self.size_bytes + unit.size_bytes),
        )
        return next((name for name, limit, needed in limits if limit is not None and needed > limit), "")

    def _order(self) -> Iterator[_Unit]:
        starts = [0, *itertools.accumulate(task.row_count for task in self._tasks)]
        total, taken, misses = starts[-1], set(), 0
        while total and misses < _MISSES:
            position = next(self._points) * total
            file = bisect.bisect_right(starts, position) - 1
            unit = self._at(file, (position - starts[file]) / self._tasks[file].row_count)
            misses += 1
            if unit not in taken:
                misses = 0
                taken.add(unit)
                yield unit
        for file in range(len(self._tasks)):
            yield from (unit for unit in self._layout(file) if unit not in taken)

    def _at(self, file: int, share: float) -> _Unit:
        """The row group that contains the row at a position (0 to 1) of a file."""
        units = self._layout(file)
        ends = list(itertools.accumulate(unit.rows for unit in units))
        return units[min(bisect.bisect_right(ends, share * ends[-1]), len(units) - 1)]

    def _layout(self, file: int) -> list[_Unit]:
        if file not in self._layouts:
            self._layouts[file] = _row_groups(file, self._tasks[file])
        return self._layouts[file]


def random_points(seed: str) -> Iterator[float]:
    """Yields pseudorandom numbers in [0, 1), reproducible by the seed, without end."""
    chance = random.Random(seed)  # noqa: S311  repeatable, no secret
    while True:
        yield chance.random()


def spread_points() -> Iterator[float]:
    """Yields fractional parts of multiples of the golden ratio, without end: each falls into one of the widest gaps
    between earlier points."""
    for number in itertools.count():
        yield (0.5 + number * _GOLDEN) % 1.0


def _lower_bounds(
    tasks: Sequence[ScanTask], native: NativeStats, column_ids: Iterable[int]
) -> dict[int, list[str | None]]:
    """The lower bounds of columns in the files of tasks, in their order; None where they are unknown."""
    places = {task.file_path: at for at, task in enumerate(tasks)}
    lows: dict[int, list[str | None]] = {column_id: [None] * len(tasks) for column_id in column_ids}
    for table in native.file_columns():
        for path, column_id, low in zip(
            *(table[n].to_pylist() for n in ("file_path", "column_id", "min")), strict=True
        ):
            if column_id in lows and path in places:
                lows[column_id][places[path]] = low
    return lows


def by_metadata(tasks: Sequence[ScanTask], native: NativeStats, types: dict[int, LogicalType]) -> list[ScanTask]:
    """Sorts files by partition, then by lower bounds of that column of `types` that has the most distinct ones."""
    partitions = dict(zip(*(native.files[n].to_pylist() for n in ("file_path", "partition_data_json")), strict=True))
    best, most = _ranks([None] * len(tasks), LogicalType(Kind.INT)), 1
    for column_id, minima in _lower_bounds(tasks, native, types).items():
        ranks = _ranks(minima, types[column_id])
        if (apart := len(np.unique(ranks))) > most:
            best, most = ranks, apart
    values = [_partition(partitions.get(task.file_path)) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda at: (values[at], int(best[at]), tasks[at].file_path))
    return [tasks[at] for at in order]


def _ranks(texts: Sequence[str | None], lt: LogicalType) -> npt.NDArray[np.int64]:
    """Dense ranks of bounds in the order of their type; missing bounds come last."""
    if not lt.orderable or not any(text is not None for text in texts):
        return np.zeros(len(texts), np.int64)
    keys = bounds.sort_keys(pa.array(texts, pa.string()), lt)
    ranks = pc.rank(keys, sort_keys="ascending", tiebreaker="dense")  # nulls last
    return np.asarray(ranks.to_numpy(), np.int64)


def _partition(text: str | None) -> str:
    """Partition values as text, to group equal partitions."""
    return json.dumps(json.loads(text), sort_keys=True) if text else ""


def _task_of(task: ScanTask, groups: Sequence[int | None]) -> ScanTask:
    chosen = [group for group in groups if group is not None]
    return replace(task, arguments={**task.arguments, "row_groups": sorted(chosen)}) if chosen else task


def _row_groups(file: int, task: ScanTask) -> list[_Unit]:
    """The row groups of a file, with the bytes of the task's columns; the whole file if it cannot be opened, so that
    the scan reports the error."""
    whole = [_Unit(file, None, task.row_count, task.size_bytes)]
    if (of_file := footer(task)) is None:
        return whole
    metadata = of_file.metadata
    paths = {dotted_name(column.path) for column in task.columns if column.path is not None}
    wanted = [at for at in range(metadata.num_columns) if metadata.schema.column(at).path in paths]
    units = []
    for number in range(metadata.num_row_groups):
        size = sum(chunk.total_compressed_size for chunk in of_file.chunks(number, wanted))
        units.append(_Unit(file, number, metadata.row_group(number).num_rows, size))
    return units or whole
