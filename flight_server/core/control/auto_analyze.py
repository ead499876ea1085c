"""Auto-analyze in the server: asks `capture.policy` about tables, queues what it decides, and records it.

Runs after every discovery, and on a schedule that discovers the lakes of connectors with a policy. A decision is a row
of `sys.capture_decisions` (engine `policy`); one that repeats the last one about its target and snapshot is not stored.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from capture import policy
from capture.policy import Policy, Rules, TableState, Verdict
from capture.spec import CaptureSpec
from flight_server.core.control.capture_plane import Captures
from flight_server.core.control.lakes import Lakes
from flight_server.core.control.table_states import states
from flight_server.core.reads.usage import Usage
from store.catalog.catalog import Catalog
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import InvalidArgument, NotFound
from store.model.targets import Target
from store.queue.job_store import JobStore

ENGINE: Final = "policy"


@dataclass(frozen=True, slots=True)
class _Decided:
    """Verdicts about one table, by kind of target."""

    table: TableEntry
    state: TableState
    verdicts: Mapping[str, Verdict]


class AutoAnalyze:
    """Decides after each discovery and each capture.

    Args:
        every_seconds: Seconds between two inspections of lakes with a policy.
        judges: Returns what is true for the full name of a table and a column of it that a rule judges; None without
            rules.
    """

    def __init__(
        self,
        catalog: Catalog,
        jobs: JobStore,
        usage: Usage,
        lakes: Lakes,
        captures: Captures,
        default: str,
        every_seconds: float,
        judges: Callable[[], Callable[[str, str], bool] | None],
    ):
        self._database, self._catalog, self._jobs, self._usage = catalog.database, catalog, jobs, usage
        self._lakes, self._captures, self._judges = lakes, captures, judges
        self._default, self._every = policy.parse(default), every_seconds
        # by table key and kind of target: snapshot and text of the last decision; time, snapshot and schema of the last
        # try
        self._last: dict[tuple[int, str], tuple[int | None, str]] | None = None
        self._tried: dict[tuple[int, str], tuple[datetime, int, str | None]] = {}
        self._later: set[int] = set()  # keys of the tables captured since
        self._lock = threading.Lock()

    def _policy_of(self, catalog: str) -> Policy:
        """The policy of a connector, else the default."""
        text = self._lakes.config(catalog)["options"].get("policy")
        return policy.parse(str(text)) if text else self._default

    def interval(self, catalog: str) -> float | None:
        """Seconds between two looks at a lake whose connector has a policy; None without a valid one."""
        try:
            return None if self._policy_of(catalog).is_off else self._every
        except InvalidArgument:  # of an earlier version; each review says what is wrong with it
            return None

    def review(self, catalog: str, tables: Sequence[TableEntry], now: datetime | None = None) -> list[str]:
        """Decides about these tables of a connector; returns the ids of the jobs queued."""
        chosen = self._policy_of(catalog)
        self._limit(chosen, tables)
        if chosen.is_off:
            return []
        now = now or datetime.now(UTC)
        with self._lock:
            ruled = [
                (table, rules)
                for table in tables
                if table.format != EXTERNAL
                and (rules := chosen.rules(table.table_schema, table.table_name)) is not None
            ]
            used = self._usage.of([table.table_key for table, _ in ruled])
            found = states(self._database, [table for table, _ in ruled], used, self._judges())
            decided = [self._decide(table, found[table.table_key], rules, now) for table, rules in ruled]
            self._record(decided)
            return self._queue(decided, now)

    def _limit(self, chosen: Policy, tables: Sequence[TableEntry]) -> None:
        """Stores each table's `max_snapshots_behind`, by which the store labels inherited distributions."""
        limits: dict[int, int | None] = {}
        for table in tables:
            rules = None if table.format == EXTERNAL else chosen.rules(table.table_schema, table.table_name)
            most = None if rules is None else rules.max_snapshots_behind
            if most != table.max_snapshots_behind:
                limits[table.table_key] = most
        if limits:
            self._database.write(lambda connection: self._catalog.limit_inheritance(connection, limits))

    def _decide(self, table: TableEntry, state: TableState, rules: Rules, now: datetime) -> _Decided:
        verdicts = {}
        for kind, decide in (("TABLE", policy.table_verdict), ("COLUMN", policy.columns_verdict)):
            tried_at, snapshot_id, schema = self._tried.get((table.table_key, kind), (None, None, None))
            if schema != state.schema_hash:  # whatever was captured under it is deleted, as of another snapshot
                snapshot_id = None
            verdicts[kind] = decide(rules, replace(state, tried_at=tried_at, tried_snapshot_id=snapshot_id), now)
        return _Decided(table, state, verdicts)

    def _queue(self, decided: Sequence[_Decided], now: datetime) -> list[str]:
        """Queues the captures decided on in one transaction; returns the ids of the jobs."""
        captures, tried = [], {}
        for one in decided:
            for kind, verdict in one.verdicts.items():  # two jobs, so that metadata captures do not wait for a scan
                if verdict.capture and (snapshot_id := one.state.snapshot_id) is not None:
                    tried[one.table.table_key, kind] = (now, snapshot_id, one.state.schema_hash)
                    columns = verdict.columns
                    targets = [Target.table()] if columns is None else [Target.column(i) for i in columns]
                    captures.append((one.table, snapshot_id, [(None, CaptureSpec(target)) for target in targets]))
        jobs = self._captures.enqueue(captures, ENGINE) if captures else []
        self._tried |= tried
        return jobs

    def captured(self, table: TableEntry) -> None:
        """Notes that a table was captured: its share of changed rows may be computable now."""
        self._later.add(table.table_key)

    def look_later(self) -> None:
        """Reviews the tables captured since the last call; called periodically."""
        by_catalog: dict[str, list[TableEntry]] = {}
        while self._later:
            table = self._catalog.by_key(self._later.pop())
            by_catalog.setdefault(table.table_catalog, []).append(table)
        for catalog, tables in by_catalog.items():
            with contextlib.suppress(NotFound, InvalidArgument):  # its connector was dropped; its policy, as above
                self.review(catalog, tables)

    def _stored(self) -> dict[tuple[int, str], tuple[int | None, str]]:
        """The last decision about each table and kind of target: its snapshot, and its text without figures."""
        rows = self._database.rows(
            "SELECT table_key, target_kind, arg_max_null(snapshot_id, decided_at), arg_max(detail, decided_at)"
            " FROM capture_decisions WHERE engine_id = ? GROUP BY ALL",
            ENGINE,
        )
        return {(key, kind): (of, detail.partition(" (")[0]) for key, kind, of, detail in rows}

    def _record(self, decided: Sequence[_Decided]) -> None:
        """Stores the decisions in one transaction, except those that repeat the last one."""
        if self._last is None:
            self._last = self._stored()
        made, last = [], {}
        for one in decided:
            fresh = []
            for kind, verdict in one.verdicts.items():
                same = (one.state.snapshot_id, verdict.text.partition(" (")[0])
                if verdict.capture or self._last.get((one.table.table_key, kind)) != same:
                    last[one.table.table_key, kind] = same
                    fresh.append(
                        {
                            "snapshot_id": one.state.snapshot_id,
                            "target_kind": kind,
                            "storage_id": "table" if kind == "TABLE" else None,
                            "engine_id": ENGINE,
                            "detail": verdict.text,
                            "outcome": "QUEUED" if verdict.capture else "NOT_NOW",
                            "elapsed_ms": 0.0,
                        }
                    )
            if fresh:
                made.append((one.table, ENGINE, fresh))
        if made:
            self._database.write(lambda connection: self._jobs.record_decisions(made, connection))
            self._last |= last
