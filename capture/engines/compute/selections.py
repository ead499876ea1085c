"""The files that one pass reads, and the records that follow from them: whole tables, samples and partitions.

Each selection answers the same questions, in the order in which a pass asks them: the tasks it has (`tasks`), how many
rows are read at most (`rows_at_most`), which files are compared with their metadata (`compared`), the answers
(`waves`), and the records of the table (`finish`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from capture.compute import fold, sampling
from capture.compute.file_scan import Answer, Numbered
from capture.compute.stat_rows import Rows
from capture.connectors.spi import NativeStats, ScanTask
from capture.engines.compute.plan import Plan
from capture.engines.compute.runner import Runner
from capture.engines.compute.table_scan import TableScan
from capture.engines.rollup import known_scalars
from capture.spec import Budget, CaptureSpec, Sampling
from store.model.errors import StatflightError

SAMPLE_SHARE: Final = 0.1  # of the rows of a table, in a sample without a budget


def selection_of(spec: CaptureSpec, scan: TableScan, plan: Plan, begun: float, notes: list[str]) -> Whole:
    """The selection that a capture asks for.

    Args:
        begun: Reading of `time.monotonic()` from which seconds of a budget count.
        notes: Receive what people should know about the selection.
    """
    if not scan.sampled:
        selection = Partitions if spec.partitions else Whole
        return selection(scan, plan.tasks, plan.tasks, None)
    native = _metadata(scan, notes)
    if not scan.rows_total:  # nothing to choose from
        return Whole(scan, plan.tasks, plan.tasks, native)
    draw = _draw(spec, scan, plan.tasks, native, notes)
    if draw.budget.max_seconds is None:
        return Sample(scan, plan.tasks, draw.take(), native, draw)
    return TimedSample(scan, plan.tasks, [], native, draw, begun + draw.budget.max_seconds)


@dataclass
class Whole:
    """All files of a table.

    Attributes:
        files: All live files of the table, or of its partitions.
        tasks: Those of them that are read or reused.
        native: The native statistics, if they are read already.
    """

    scan: TableScan
    files: list[ScanTask]
    tasks: list[ScanTask]
    native: NativeStats | None

    @property
    def ended_by(self) -> str:
        """The limit of the budget that ended a sample; empty if none did."""
        return ""

    def rows_at_most(self, new: Sequence[Numbered]) -> int:
        """The greatest number of rows to read; `new` are the tasks without stored results."""
        return sum(task.row_count for _, task in new)

    def compared(self, new: Sequence[Numbered]) -> list[ScanTask]:
        """The tasks whose results are compared with the metadata."""
        return [task for _, task in new]

    def waves(self, new: Sequence[Numbered], runner: Runner) -> Iterator[list[Answer]]:
        """The answers of the tasks without stored results."""
        return runner.waves(new)

    def finish(self, rows: Rows) -> None:
        """Adds the records of the table."""
        if self.native is None and any(self.scan.errors.values()):
            _metadata(self.scan, [])  # may have the bounds of files that could not be read
        self.scan.finish(self.files, rows)


class Partitions(Whole):
    """The files of some partitions, which give no record of the whole table."""

    def finish(self, rows: Rows) -> None:
        self.scan.withdraw(rows)


@dataclass
class Sample(Whole):
    """Some row groups of a table, up to a number of rows or bytes."""

    draw: sampling.Draw

    @property
    def ended_by(self) -> str:
        return self.draw.ended_by

    def rows_at_most(self, new: Sequence[Numbered]) -> int:  # noqa: ARG002  the draw has them
        return self.draw.rows_at_most


@dataclass
class TimedSample(Sample):
    """Some row groups of a table, as many as are read until a deadline.

    Attributes:
        tasks: Those drawn so far: each wave adds its own.
        deadline: Reading of `time.monotonic()`.
    """

    deadline: float

    def compared(self, new: Sequence[Numbered]) -> list[ScanTask]:  # noqa: ARG002  nobody knows yet which are read
        return self.files

    def waves(
        self,
        new: Sequence[Numbered],  # noqa: ARG002  none: tasks are drawn in waves
        runner: Runner,
    ) -> Iterator[list[Answer]]:
        """The answers of as many tasks as are read until the deadline.

        The first wave always completes, so a sample is never empty. Later waves on Spark are cancelled at the
        deadline, and their row groups are dropped.
        """
        is_first = True

        def poll() -> None:
            runner.report()
            if not is_first and time.monotonic() >= self.deadline:
                raise _TimeIsUpError

        in_waves = runner.in_one_place(poll)
        fewest = in_waves.spark.cores if in_waves.choice.on_spark else 1
        count = fewest
        begun = time.monotonic()
        while chosen := self.draw.take(count, self.deadline):
            if not is_first and time.monotonic() >= self.deadline:
                self.draw.ended_by = "seconds"
                return
            numbered = list(enumerate(chosen, len(self.tasks)))
            self.tasks += chosen
            try:
                yield from in_waves.waves(numbered)
            except _TimeIsUpError:
                self.draw.ended_by = "seconds"
                return
            is_first = False
            now = time.monotonic()
            seconds_each = max(now - begun, 1e-3) / count
            fits = int(0.8 * (self.deadline - now) / seconds_each)
            count = min(max(fits, fewest), 4 * count)
            begun = now


class _TimeIsUpError(Exception):
    """Cancels the running wave of a timed sample."""


def _metadata(scan: TableScan, notes: list[str]) -> NativeStats | None:
    """Reads native statistics and adds them to `scan`; None if they cannot be read."""
    table = scan.table
    names = frozenset(table.names[i] for i in scan.types if i in scan.leaves)
    try:
        native = table.native_stats(names)
        scan.known = known_scalars(native, table)
        if native.row_count is not None:
            scan.rows_total = native.row_count
    except StatflightError as error:
        notes.append(f"without bounds from metadata: {error}")
        return None
    return native


def _draw(
    spec: CaptureSpec, scan: TableScan, files: Sequence[ScanTask], native: NativeStats | None, notes: list[str]
) -> sampling.Draw:
    """The draw of the row groups of a sample."""
    budget = spec.budget or Budget(max_rows=math.ceil(SAMPLE_SHARE * scan.rows_total))
    if spec.sampling is Sampling.RANDOM_ROW_GROUP:
        return sampling.Draw(files, sampling.random_points(fold.listing(files)), budget)
    if native is None:
        notes.append("sampled in the order of file names")
    else:
        files = sampling.by_metadata(files, native, scan.types)
    return sampling.Draw(files, sampling.spread_points(), budget)
