"""Plans of captures that read data: the tasks, and the passes in which columns are captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from capture import partitions
from capture.connectors.spi import ScanTask
from capture.connectors.storage.places import batched
from capture.engines.compute.table_scan import TableScan
from capture.spec import Partition
from capture.spi import CaptureRequest, Sink

KNOWN_RESULTS: Final = 25_000  # stored results in memory at once, each of a column of a file and some 15 kB


class Plan(NamedTuple):
    """The tasks of a capture, the number of their live rows, and notes for people."""

    tasks: list[ScanTask]
    row_count: int
    notes: list[str]


def plan_of(scan: TableScan, chosen: Sequence[Partition]) -> Plan:
    """The plan for the files of a table, or of partitions if some are chosen."""
    table, notes = scan.table, list[str]()
    tasks = table.scan_tasks(table.names[i] for i in scan.types)
    if chosen:
        total, tasks = len(tasks), partitions.within(table, tasks, chosen)
        notes.append(partitions.detail(len(tasks), total))
    deleted = sum(len(task.deleted_rows) for task in tasks if task.deleted_rows is not None)
    return Plan(tasks, sum(task.row_count for task in tasks) - deleted, notes)


def passes(
    requests: Sequence[CaptureRequest], scan: TableScan, files: int, sink: Sink
) -> list[Sequence[CaptureRequest]]:
    """The requests, in parts of which what is stored of `files` files fits into memory: columns that were never
    scanned, then as many others as KNOWN_RESULTS allows at once, at least one."""
    if scan.sampled or scan.work.groups or files * len(scan.work.column_ids) <= KNOWN_RESULTS:
        return [requests]
    stored = sink.stored("stats.columns", scan.table, ["column_id", "ndv"], scan.work.column_ids).to_pylist()
    scanned = {row["column_id"] for row in stored if row["ndv"] is not None}
    known = [request for request in requests if request.target.column_id in scanned]
    new = [request for request in requests if request.target.column_id not in scanned]
    return [*([new] if new else []), *batched(known, max(1, KNOWN_RESULTS // files))]
