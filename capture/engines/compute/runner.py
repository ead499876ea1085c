"""Runs tasks of a scan in the place that was chosen: in this process, on Spark, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from capture.cluster import Session, cluster
from capture.compute import local
from capture.compute.file_scan import Answer, Numbered, Work
from capture.compute.pieces import Pieces
from capture.engines.compute.choice import Choice

_THREADED_CELLS: Final = 100_000  # below, threads cost more than they save
_PIECES_PER_CORE: Final = 4  # with fewer files per core, large ones are divided among the cores


@dataclass(frozen=True, slots=True)
class Runner:
    """Computes tasks of one scan.

    Attributes:
        spark: The session, which starts when the choice needs it.
        choice: The place of the computation.
        work: The columns and groups to compute.
        report: Called between tasks and several times a second; an exception cancels the work.
        notes: Receive the reason if a session does not start and this process computes everything.
    """

    spark: Session
    choice: Choice
    work: Work
    report: Callable[[], None]
    notes: list[str]

    def in_one_place(self, report: Callable[[], None]) -> Runner:
        """A runner that waits for no session: work to be overlapped with the start of one stays in this process."""
        choice = replace(self.choice, on_spark=self.choice.on_spark and not self.choice.overlapped, overlapped=False)
        return Runner(self.spark, choice, self.work, report, [])

    def waves(self, numbered: Sequence[Numbered]) -> Iterator[list[Answer]]:
        """The answers of tasks, in their order, some at a time."""
        cells = sum(task.row_count for _, task in numbered) * len(self.work.column_ids)
        threads = local.CORES if cells > _THREADED_CELLS else 1
        cores = self.spark.cores if self.choice.on_spark else threads
        if len(numbered) >= _PIECES_PER_CORE * cores:
            return self._computed(numbered, threads)
        pieces, of_pieces = Pieces(numbered), replace(self.work, writing=None)  # none has the rows of a whole file
        return pieces.joined(replace(self, work=of_pieces)._computed(pieces.tasks, threads))

    def _computed(self, numbered: Sequence[Numbered], threads: int) -> Iterator[list[Answer]]:
        if self.choice.overlapped:
            return cluster().overlapped(self.spark, numbered, self.work, self.report, self.notes)
        if self.choice.on_spark:
            return cluster().distributed(self.spark, numbered, self.work, self.report)
        return local.computed(numbered, self.work, self.report, threads, few=len(numbered) < 2 * threads)
