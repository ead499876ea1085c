"""Builds what captures need: the queue of work, the lakes, and the policies that ask for captures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from capture.orchestrator import Orchestrator
from flight_server.core.auth.vault import Vault
from flight_server.core.config import Settings
from flight_server.core.control.auto_analyze import AutoAnalyze
from flight_server.core.control.capture_commit import CaptureCommit
from flight_server.core.control.capture_plane import Captures, ResolvePlane
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes
from flight_server.core.reads.reading import Reading
from store.model.catalog_entries import TableEntry
from store.queue.job_store import JobStore
from store.role import Role
from store.stats_store import DuckDBStatsStore


@lru_cache(1)
def _own_engines() -> tuple[Mapping[str, Any], ...]:
    from capture.engines import default_engines, described

    return tuple(described(default_engines()))


class Around(NamedTuple):
    """The callbacks by which captures reach the rest of the server.

    Attributes:
        role: Returns the role of the server.
        has_own: True while a worker lives that the server has started for a lane.
        on_captured: Called with each table whose statistics have changed.
        judges: Returns what says, by full name of a table and column, whether a rule judges it; None without rules.
    """

    role: Callable[[], Role]
    has_own: Callable[[str], bool]
    on_captured: Callable[[TableEntry], None]
    judges: Callable[[], Callable[[str, str], bool] | None]


class Capturing:
    """The control plane.

    Args:
        jobs: Durable jobs.

    Attributes:
        commit: Commits what workers have captured.
        queue: Jobs of all kinds, and their leases.
        lakes: The connected lakes.
        captures: Starts and queues captures.
        orchestrator: Answers what is asked for from the store, by a capture now, or later.
        auto: Captures what policies ask for.
    """

    def __init__(self, settings: Settings, store: DuckDBStatsStore, jobs: JobStore, reading: Reading, around: Around):
        catalog, self._on_captured = store.catalog, around.on_captured
        self.commit = CaptureCommit(jobs, store, catalog, on_committed=self._captured)
        self.queue = JobQueue(
            jobs,
            self.commit,
            settings.lease_seconds,
            payloads_of=lambda jobs: self.captures.payloads_of(jobs),
            check_writes=lambda: around.role().check_writes(),
            has_own=around.has_own,
        )
        self.lakes = Lakes(
            store.database,
            catalog,
            Vault(settings.db.with_name(settings.db.name + ".secrets"), around.role()),
            self.queue,
            on_discovered=lambda name, tables: self.auto.review(name, tables),
            interval=settings.watch_seconds or None,
        )
        self.captures = Captures(catalog, jobs, reading.records, self.lakes, self.queue, self.engines)
        self.orchestrator = Orchestrator(
            ResolvePlane(self.captures), settings.sync_enabled, settings.sync_budget_ms, settings.max_sync_budget_ms
        )
        self.auto = AutoAnalyze(
            catalog,
            jobs,
            reading.usage,
            self.lakes,
            self.captures,
            settings.auto_analyze,
            settings.auto_analyze_seconds,
            judges=around.judges,
        )

    def engines(self) -> Sequence[Mapping[str, Any]]:
        """Rows of `sys.engines`: those of the connected workers, else those of this version."""
        return self.queue.workers.engines() or _own_engines()

    def _captured(self, table: TableEntry) -> None:
        self.auto.captured(table)
        self._on_captured(table)
