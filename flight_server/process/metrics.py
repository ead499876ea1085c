"""Prometheus metrics and health, which `process/http.py` serves. Loaded only when one of its ports is set.

| metric | labels | what |
|---|---|---|
| statflight_requests_total | method, action, code | answered calls; OK or the code of the refusal |
| statflight_request_seconds | method, action | duration until the answer, or its first part |
| statflight_rows_read_total | flight | rows streamed by DoGet |
| statflight_rows_put_total | flight, result | rows of puts: created, unchanged, replaced |
| statflight_jobs | state | capture jobs by state |
| statflight_tasks_waiting | kind | tasks waiting for a worker, without durable jobs |
| statflight_leases | | active leases |
| statflight_lease_expiries_total | | expired leases: lost workers |
| statflight_resolve_outcomes_total | outcome | answers of `resolve`: HIT, CAPTURED, … |
| statflight_capture_outcomes_total | engine, outcome | captured requests, as reported by workers |
| statflight_capture_seconds | kind | duration from lease to end; `sync`: a caller waited, `job`: durable |
| statflight_capture_read_rows_total, …_read_bytes_total | engine | read from lakes; a row counts once for each column |
| statflight_capture_published_rows_total, …_published_bytes_total | flight | statistics that captures published |
| statflight_publications_total | home, state | finished publications: CURRENT, STALE, DRY_RUN, FAILED |
| statflight_publication_seconds | home | duration of finished publications, from request to end |
| statflight_tables | | tables with statistics |
| statflight_table_age_seconds | table | seconds since the last capture or put of the table's row; the oldest only |
| statflight_stale_tables | | tables of connectors whose current snapshot has no table record |
| statflight_table_stale_seconds | table | … and seconds since that snapshot; the stalest only |
| statflight_check_failing | table, column, rule, level | 1 if a rule of `--checks` fails, else 0 |
| statflight_store_writable | | 0 while writes are refused: the disk is full, the file was moved |
| statflight_store_free_bytes | | free space on the disk of the database |
| statflight_build_info | version | 1 |
| process_… | | memory, processor time, open files |

`/metrics` names tables: where callers need a token, it does too, with the scope `stats.read` and for all tables
(`authorization: {credentials_file: …}` in a scrape configuration); `/health` never does. `--metrics-port` is HTTP
without TLS: beyond this machine, put it behind a proxy or into a private network.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder

from flight_server.core.app import App
from flight_server.core.auth.principal import Principal
from flight_server.core.control.capture_counters import READ
from store.model.catalog_entries import EXTERNAL
from store.model.errors import Unauthenticated
from store.model.names import join_name
from store.queue.job_store import ACTIVE, ENDED
from store.stats_store import Counts

MAX_TABLES: Final = 100  # tables with an age, stalest first
MAX_CHECKS: Final = 1000  # reported results of rules, failures first
MAX_LABELS: Final = 200  # distinct values of a label that clients choose; further ones count as "other"
_AGES_KEPT: Final = 10.0  # seconds
_REFUSALS: Final = {
    401: b"send the header authorization: Bearer <token>\n",
    403: b"metrics need a token with the scope stats.read for all tables\n",
}
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0)


class Metrics:
    """The counters of one server, and how it is."""

    def __init__(self, app: App, version: str, authenticate: Callable[[str | None], Principal]):
        self.registry = registry = prometheus.CollectorRegistry()
        self._authenticate = authenticate
        self._app = app
        self._codes: set[str] = {"OK"}
        self._requests = prometheus.Counter(
            "statflight_requests", "Calls answered", ["method", "action", "code"], registry=registry
        )
        self._seconds = prometheus.Histogram(
            "statflight_request_seconds",
            "Until the answer or its first part",
            ["method", "action"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._rows_read = prometheus.Counter(
            "statflight_rows_read", "Rows streamed by DoGet", ["flight"], registry=registry
        )
        self._rows_put = prometheus.Counter(
            "statflight_rows_put", "Rows of puts", ["flight", "result"], registry=registry
        )
        prometheus.Info("statflight_build", "The server", registry=registry).info({"version": version})
        prometheus.ProcessCollector(registry=registry)
        registry.register(_AppCollector(app))

    def answered(self, method: str, action: str, code: str, seconds: float) -> None:
        """Counts a call that has ended.

        Args:
            method: RPC name, e.g. DoGet.
            action: Name of the action; empty for other methods.
            code: Code of the error, or OK.
        """
        if code not in self._codes:  # some come from workers
            if len(self._codes) >= MAX_LABELS:
                code = "other"
            self._codes.add(code)
        self._requests.labels(method, action, code).inc()
        self._seconds.labels(method, action).observe(seconds)

    def put(self, flight: str, counts: Counts) -> None:
        """Counts the rows of a put by result."""
        for result in ("created", "unchanged", "replaced"):
            self._rows_put.labels(flight, result).inc(getattr(counts, result))

    def rows_read(self, flight: str, rows: int) -> None:
        """Counts rows sent in an answer."""
        self._rows_read.labels(flight).inc(rows)

    def _refusal(self, authorization: str | None) -> int | None:
        """The HTTP status for a caller who may not read metrics."""
        try:
            caller = self._authenticate(authorization)
        except Unauthenticated:
            return 401
        return None if caller.may("stats.read") and caller.sees_all else 403

    def exposition(self, authorization: str | None, accept: str) -> tuple[int, str, bytes]:
        """Status, content type and body of `/metrics` for a caller."""
        if (refusal := self._refusal(authorization)) is not None:
            return refusal, "text/plain; charset=utf-8", _REFUSALS[refusal]
        encode, content_type = choose_encoder(accept)
        return 200, content_type, encode(self.registry)

    def health(self) -> tuple[int, bytes]:
        """Status and body of `/health`."""
        health = self._app.health()
        return 503 if health["status"] == "draining" else 200, json.dumps(health).encode()


class _AppCollector:
    """Metrics that are computed at each scrape."""

    def __init__(self, app: App):
        self._app = app
        self._kept: tuple[float, _Stalest, _Stalest] | None = None
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        return []  # otherwise the registry would run a full scrape to learn the names

    def collect(self) -> Iterator[Metric]:
        with contextlib.suppress(Exception):  # a server that is stopping reports less
            yield from self._store()
            yield from self._replication()
            yield from self._queue()
            yield from self._captures()
            yield from self._publications()
            yield from self._tables()
            yield from self._checks()

    def _store(self) -> Iterator[Metric]:
        database = self._app.database
        yield GaugeMetricFamily(
            "statflight_store_writable", "0 while writes are refused", value=0 if database.trouble() else 1
        )
        if database.directory is not None:
            yield GaugeMetricFamily(
                "statflight_store_free_bytes",
                "Free space on the disk of the database",
                value=shutil.disk_usage(database.directory).free,
            )

    def _replication(self) -> Iterator[Metric]:
        role = self._app.role
        row = role.row()
        if row.get("url") is None:
            return
        yield CounterMetricFamily(
            "statflight_replication_failures", "Failed attempts to reach the replica", value=role.failures
        )
        for name, about in (
            ("epoch", "Epoch of the writer"),
            ("generation", "Newest commit that is served"),
            ("shipped_generation", "Newest commit at the replica"),
            ("lag_ms", "Age of what is served"),
        ):
            yield GaugeMetricFamily(f"statflight_replication_{name}", about, value=row.get(name) or 0)

    def _queue(self) -> Iterator[Metric]:
        counts, (waiting, leases) = self._app.jobs.counts(), self._app.queue.depths()
        by_state = {state: counts.get(state, 0) for state in (*ACTIVE, *ENDED)}
        yield _family(GaugeMetricFamily, "statflight_jobs", "Capture jobs by state", ["state"], by_state)
        yield _family(GaugeMetricFamily, "statflight_tasks_waiting", "Tasks waiting for a worker", ["kind"], waiting)
        yield GaugeMetricFamily("statflight_leases", "Active leases", value=leases)

    def _captures(self) -> Iterator[Metric]:
        counters, answers = self._app.commit.counters, self._app.orchestrator.outcomes.copy()
        yield CounterMetricFamily("statflight_lease_expiries", "Expired leases", value=counters.lease_expiries)
        yield _family(CounterMetricFamily, "statflight_resolve_outcomes", "Answers of resolve", ["outcome"], answers)
        outcomes: Counter[tuple[str, str]] = Counter()
        for (engine, outcome), count in counters.outcomes.copy().items():
            outcomes[engine if len(outcomes) < MAX_LABELS else "other", outcome] += count
        yield _family(
            CounterMetricFamily,
            "statflight_capture_outcomes",
            "Captured requests by engine and outcome, as reported by workers",
            ["engine", "outcome"],
            outcomes,
        )
        yield _family(
            SummaryMetricFamily,
            "statflight_capture_seconds",
            "Duration of finished captures, from lease to end",
            ["kind"],
            counters.seconds.copy(),
        )
        for what in READ:
            read = {engine: count for (engine, of), count in counters.read.copy().items() if of == what}
            about = f"Data that captures read from lakes, in {what}"
            yield _family(CounterMetricFamily, f"statflight_capture_read_{what}", about, ["engine"], read)
        for what, published in (("rows", counters.rows), ("bytes", counters.size_bytes)):
            name, about = f"statflight_capture_published_{what}", f"Statistics that captures published, in {what}"
            yield _family(CounterMetricFamily, name, about, ["flight"], published.copy())

    def _publications(self) -> Iterator[Metric]:
        if (part := self._app.parts.get("publishing")) is None:
            return
        publishing = part.publications
        yield _family(
            CounterMetricFamily,
            "statflight_publications",
            "Finished publications",
            ["home", "state"],
            publishing.outcomes.copy(),
        )
        yield _family(
            SummaryMetricFamily,
            "statflight_publication_seconds",
            "Duration of finished publications, from request to end",
            ["home"],
            publishing.seconds.copy(),
        )

    def _tables(self) -> Iterator[Metric]:
        with self._lock:  # concurrent scrapes query the database once
            now = time.time()
            if self._kept is None or now - self._kept[0] > _AGES_KEPT:
                self._kept = (now, self._ask(_OLDEST), self._ask(_STALEST, EXTERNAL))
            _, oldest, stalest = self._kept
        yield GaugeMetricFamily("statflight_tables", "Tables with statistics", value=oldest.total)
        since = f"Seconds since the last capture, for the {MAX_TABLES} oldest tables"
        yield _ages("statflight_table_age_seconds", since, oldest, now)
        about = "Tables whose current snapshot has no table record"
        yield GaugeMetricFamily("statflight_stale_tables", about, value=stalest.total)
        since = f"Seconds since the uncaptured current snapshot, for the {MAX_TABLES} stalest tables"
        yield _ages("statflight_table_stale_seconds", since, stalest, now)

    def _checks(self) -> Iterator[Metric]:
        if (part := self._app.parts.get("insight")) is None:
            return
        results = [result for of_table in part.checking.results.copy().values() for result in of_table]
        results.sort(key=lambda result: not result.state.is_miss)  # failures are always reported
        missed = {
            (result.table, result.column or "", result.rule, str(result.level)): 0.0
            if not result.state.is_miss
            else 1.0
            for result in results[:MAX_CHECKS]
        }
        labels = ["table", "column", "rule", "level"]
        yield _family(GaugeMetricFamily, "statflight_check_failing", "1 if a rule fails, else 0", labels, missed)

    def _ask(self, sql: str, *parameters: Any) -> _Stalest:
        rows = self._app.database.rows(sql, *parameters, MAX_TABLES)
        ages = [(join_name(*row[:3]), float(row[3])) for row in rows if row[3] is not None]
        return _Stalest(ages, int(rows[0][4]) if rows else 0)


@dataclass(frozen=True, slots=True)
class _Stalest:
    """Full names of tables with an instant in seconds, the earliest first, and the total number of tables."""

    tables: list[tuple[str, float]]
    total: int


_OLDEST: Final = """
SELECT t.table_catalog, t.table_schema, t.table_name,
    epoch(max(coalesce(s.refreshed_at, s.captured_at, s.created_at))) AS captured, count(*) OVER () AS total
FROM stats_tables s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped
GROUP BY ALL ORDER BY captured LIMIT ?
"""
_STALEST: Final = """
SELECT t.table_catalog, t.table_schema, t.table_name, epoch(n.committed_at) AS since, count(*) OVER () AS total
FROM tables t JOIN snapshots n ON n.table_key = t.table_key AND n.snapshot_id = t.current_snapshot_id
WHERE NOT t.dropped AND t.format <> ? AND NOT EXISTS (
    SELECT 1 FROM stats_tables s WHERE s.table_key = t.table_key AND s.snapshot_id = t.current_snapshot_id)
ORDER BY since NULLS LAST LIMIT ?
"""


def _family(kind: Any, name: str, about: str, labels: Sequence[str], values: Mapping[Any, Any]) -> Metric:
    """A metric with a value for each label, or tuple of labels; the values of a summary are counts and sums."""
    family = kind(name, about, labels=labels)
    for of, value in values.items():
        family.add_metric([of] if isinstance(of, str) else of, *(value if isinstance(value, tuple) else [value]))
    return family


def _ages(name: str, about: str, of: _Stalest, now: float) -> Metric:
    ages = {table: max(0.0, now - since) for table, since in of.tables}
    return _family(GaugeMetricFamily, name, about, ["table"], ages)
