"""Prometheus metrics over HTTP: `/metrics`, and `/health` for probes. Loaded only when a port for them is given.

| metric | labels | what |
|---|---|---|
| statflight_requests_total | method, action, code | calls answered; OK or the code of the refusal |
| statflight_request_seconds | method, action | until the answer, or the first part of it, is there |
| statflight_rows_read_total | flight | rows streamed by DoGet |
| statflight_rows_put_total | flight, result | rows of puts: created, unchanged, replaced |
| statflight_jobs | state | jobs that there are |
| statflight_tasks_waiting | kind | work that no worker has taken yet, durable jobs apart |
| statflight_leases | | leases that are held |
| statflight_lease_expiries_total | | leases that ran out: workers that were lost |
| statflight_capture_outcomes_total | engine, outcome | requests of captures, as the workers told |
| statflight_tables | | tables with statistics |
| statflight_table_age_seconds | table | since the last capture or put of the table's row; the stalest tables only |
| statflight_build_info | version | 1 |
| process_… | | memory, processor time, open files |

The endpoint listens where the server does and asks nobody who they are: it names tables, but tells no statistic.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from flight_server.service import Service
from store.errors import InvalidArgument
from store.job_store import ACTIVE, ENDED
from store.names import join_name
from store.stats_store import Counts

MAX_TABLES: Final = 100  # whose age is told, stalest first
MAX_LABELS: Final = 200  # values of a label that others choose; the rest is "other"
_AGES_KEPT: Final = 10.0  # seconds
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0)


class Metrics:
    """The counters of one server, and the HTTP endpoint that shows them."""

    def __init__(self, service: Service, version: str):
        self.registry = registry = prometheus.CollectorRegistry()
        self._service = service
        self._codes: set[str] = {"OK"}
        self._requests = prometheus.Counter(
            "statflight_requests", "Calls answered", ["method", "action", "code"], registry=registry
        )
        self._seconds = prometheus.Histogram(
            "statflight_request_seconds", "Until the answer or its first part", ["method", "action"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._rows_read = prometheus.Counter(
            "statflight_rows_read", "Rows streamed by DoGet", ["flight"], registry=registry
        )
        self._rows_put = prometheus.Counter(
            "statflight_rows_put", "Rows of puts", ["flight", "result"], registry=registry
        )
        prometheus.Info("statflight_build", "The server", registry=registry).info({"version": version})
        prometheus.ProcessCollector(registry=registry)
        registry.register(_ServiceCollector(service))
        self._http: ThreadingHTTPServer | None = None

    def answered(self, method: str, action: str, code: str, seconds: float) -> None:
        if code not in self._codes:  # some come from workers
            if len(self._codes) >= MAX_LABELS:
                code = "other"
            self._codes.add(code)
        self._requests.labels(method, action, code).inc()
        self._seconds.labels(method, action).observe(seconds)

    def put(self, flight: str, counts: Counts) -> None:
        for result in ("created", "unchanged", "replaced"):
            self._rows_put.labels(flight, result).inc(getattr(counts, result))

    def rows_read(self, flight: str, rows: int) -> None:
        self._rows_read.labels(flight).inc(rows)

    # The endpoint.

    def listen(self, host: str, port: int) -> int:
        """Serves in a thread of its own; the port.

        Raises:
            InvalidArgument: The address is taken or is none of this machine.
        """
        try:
            self._http = _Server((host, port), self._handler())
        except OSError:
            raise InvalidArgument(
                f"metrics cannot listen on {host}:{port}", code="ADDRESS", hint="--metrics-port 0 picks a free port"
            ) from None
        threading.Thread(target=self._http.serve_forever, name="metrics", daemon=True).start()
        return int(self._http.server_address[1])

    def close(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a client to ask

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(200, content_type, encode(metrics.registry))
                elif path == "/health":
                    draining = metrics._service.dispatcher.closing
                    body = json.dumps({"status": "draining" if draining else "ok"}).encode()
                    self._answer(503 if draining else 200, "application/json", body)
                else:
                    self._answer(404, "text/plain; charset=utf-8", b"/metrics or /health\n")

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing: scrapes are no news."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news either."""


class _ServiceCollector:
    """What is looked up when somebody asks."""

    def __init__(self, service: Service):
        self._service = service
        self._ages: tuple[float, list[tuple[str, float]], int] | None = None
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        return []  # else the registry would ask the database for names

    def collect(self) -> Iterator[Metric]:
        with contextlib.suppress(Exception):  # a server that is being stopped has less to tell
            yield from self._queue()
            yield from self._tables()

    def _queue(self) -> Iterator[Metric]:
        dispatcher = self._service.dispatcher
        jobs = GaugeMetricFamily("statflight_jobs", "Jobs that there are", labels=["state"])
        counts = self._service.jobs.counts()
        for state in (*ACTIVE, *ENDED):
            jobs.add_metric([state], counts.get(state, 0))
        yield jobs
        waiting, leases = dispatcher.depths()
        tasks = GaugeMetricFamily("statflight_tasks_waiting", "Work that no worker has taken yet", labels=["kind"])
        for kind, depth in waiting.items():
            tasks.add_metric([kind], depth)
        yield tasks
        yield GaugeMetricFamily("statflight_leases", "Leases that are held", value=leases)
        yield CounterMetricFamily("statflight_lease_expiries", "Leases that ran out", value=dispatcher.lease_expiries)
        outcomes = CounterMetricFamily(
            "statflight_capture_outcomes", "Requests of captures, as the workers told", labels=["engine", "outcome"]
        )
        told: dict[tuple[str, str], int] = {}
        for (engine, outcome), count in dispatcher.outcomes.copy().items():
            key = (engine, outcome) if len(told) < MAX_LABELS else ("other", outcome)
            told[key] = told.get(key, 0) + count
        for labels, count in told.items():
            outcomes.add_metric(labels, count)
        yield outcomes

    def _tables(self) -> Iterator[Metric]:
        with self._lock:  # scrapers that come together ask the database once
            now = time.time()
            if self._ages is None or now - self._ages[0] > _AGES_KEPT:
                self._ages = (now, *self._stalest())
            _, stalest, total = self._ages
        yield GaugeMetricFamily("statflight_tables", "Tables with statistics", value=total)
        ages = GaugeMetricFamily(
            "statflight_table_age_seconds",
            f"Since the last capture, of the {MAX_TABLES} stalest tables",
            labels=["table"],
        )
        for table, captured in stalest:
            ages.add_metric([table], max(0.0, now - captured))
        yield ages

    def _stalest(self) -> tuple[list[tuple[str, float]], int]:
        """Full name and time of the last capture of the tables captured longest ago; how many there are in all."""
        rows = self._service.database.rows(
            "SELECT t.table_catalog, t.table_schema, t.table_name,"
            " epoch(max(coalesce(s.refreshed_at, s.captured_at, s.created_at))) AS captured, count(*) OVER () AS total"
            " FROM stats_tables s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped"
            " GROUP BY ALL ORDER BY captured LIMIT ?", MAX_TABLES,
        )  # fmt: skip
        return [(join_name(*row[:3]), float(row[3])) for row in rows], int(rows[0][4]) if rows else 0
