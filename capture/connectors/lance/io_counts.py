"""Counts what the library of Lance reads, as it says itself."""

from __future__ import annotations

from typing import Any

from capture.connectors.storage.requests import GET, LIST, OPEN, meter, requested


def count_reads(dataset: Any, lists: int = 0) -> None:
    """Counts the reads of a dataset since the last call; versions of the library before 2.0 do not tell them.

    Args:
        lists: How many of them list versions.
    """
    tell = getattr(dataset, "io_stats_incremental", None)
    if tell is None or meter() is None:
        return
    stats = tell()
    if "://" not in str(dataset.uri):
        requested(OPEN, stats.read_iops, stats.read_bytes)
        return
    lists = min(lists, stats.read_iops)
    if lists:
        requested(LIST, lists)
    if stats.read_iops > lists:
        requested(GET, stats.read_iops - lists, stats.read_bytes)
