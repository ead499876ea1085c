"""Spark as the executors of the compute engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from capture.cluster import Cluster, Poll
from capture.compute.file_scan import Answer, Numbered, Work
from capture.compute.partial import Partial, SketchSelection
from capture.connectors.spi import Column, ScanTask
from capture.spark import expressions, job, language
from capture.spark.session import Spark
from store.model.logical_types import LogicalType


class SparkCluster(Cluster):
    """Spark, by sessions of `capture.spark.session`."""

    def session(self, master: str | None = None, settings: Mapping[str, str] | None = None) -> Spark:
        return Spark(master, settings=settings)

    def distributed(self, session: Spark, tasks: Sequence[Numbered], work: Work, poll: Poll) -> Iterator[list[Answer]]:
        return job.distributed(session, tasks, work, poll)

    def overlapped(
        self, session: Spark, tasks: Sequence[Numbered], work: Work, poll: Poll, notes: list[str]
    ) -> Iterator[list[Answer]]:
        return job.overlapped(session, tasks, work, poll, notes)

    def checked(self, key: bytes) -> str:
        return language.checked(key)

    def named(self, text: str, columns: Sequence[Column]) -> Sequence[Column]:
        return expressions.named(text, columns)

    def evaluated(
        self,
        session: Spark,
        tasks: Sequence[ScanTask],
        text: str,
        columns: Mapping[int, Column],
        of_table: Sequence[Column],
        wanted: SketchSelection,
        poll: Poll,
    ) -> tuple[LogicalType, Partial, int]:
        note = expressions.unread(text, of_table)
        return expressions.capture(session, tasks, text, columns, wanted, poll, note)
