"""The order of locks in flight_server/README.md, held under load: puts, captures, reads, publications, all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from deltalake import write_deltalake

from capture.engines import default_engines
from capture.registry import Registry
from flight_server.client.connection import Connection
from flight_server.core.actions import functions
from flight_server.core.app import App
from flight_server.core.auth.tokens import Authenticator
from flight_server.core.config import Settings
from flight_server.core.flight_service import StatflightServer
from flight_server.core.wire import flight_sql
from flight_server.process.metrics import Metrics
from flight_server.process.parts import parts
from flight_server.worker.loop import ROLES, Worker
from store.duckdb.database import Database
from tests.lock_recorder import LockRecorder
from tests.store.empty_store import empty_store

ORDER = (("JobQueue.lock",), ("Draft._lock", "Stoppable._lock"))  # then all others
EXCEPTIONS = {"AutoAnalyze._lock", "_AppCollector._lock", "ProviderKeys._lock"}  # held over queries or requests
TABLES, ROUNDS = 4, 2
PUT = {"table_catalog": "put", "table_schema": "s", "snapshot_id": 1, "column_id": 1, "column_name": "c", "ndv": 2.0}


def rank(name: str) -> int:
    if name in EXCEPTIONS:
        return -1
    return next((at for at, names in enumerate(ORDER) if name in names), len(ORDER))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> LockRecorder:
    recorder = LockRecorder()
    recorder.install(monkeypatch)
    recorder.watch(monkeypatch, Database, ["reading", "write", "rows"])
    recorder.watch(monkeypatch, Connection, ["act", "get", "put_rows"])
    return recorder


@pytest.fixture
def uri(recorder: LockRecorder, tmp_path: Path) -> Iterator[str]:
    """A server and a worker in this process, and a thread that scrapes the metrics."""
    settings = Settings(db=empty_store(tmp_path / "stats.duckdb"), auto_analyze="on", auto_analyze_seconds=0.5)
    app = App(settings, functions, parts=parts)
    with StatflightServer(app, Authenticator(is_open=True), "grpc://127.0.0.1:0") as server:
        server.metrics = Metrics(app, "test", Authenticator(is_open=True).authenticate)
        app.start()
        uri = f"grpc://127.0.0.1:{server.port}"
        worker = Worker(Connection(uri, None), Registry(default_engines()))
        worker.start(ROLES)
        scraper = threading.Thread(target=scrape, args=(server.metrics, worker.stopping), daemon=True)
        scraper.start()
        yield uri
        worker.stopping.set()
        scraper.join()
        app.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for at in range(TABLES):
        write_deltalake(
            tmp_path / "lake" / f"t{at}", pa.table({"a": range(100), "b": [f"x{i % 7}" for i in range(100)]})
        )
    return tmp_path / "lake"


def scrape(metrics: Metrics, stopping: threading.Event) -> None:
    while not stopping.wait(0.05):
        status, _, _ = metrics.exposition(None, "")
        assert status == 200


def put(server: Connection, number: int) -> None:
    rows = pa.Table.from_pylist([PUT | {"table_name": f"t{number}"}])
    server.put_rows({"table": "stats.columns", "mode": "upsert"}, rows)


def capture(server: Connection, number: int) -> None:
    targets = [{"kind": "TABLE"}, {"kind": "COLUMN", "column_id": 1}]
    requests = [
        {"table": f"lake.default.t{at}", "target": target, "mode": mode}
        for at in range(TABLES)
        for target in targets
        for mode in ("SYNC", "ASYNC")
    ]
    server.act("capture", {"requests": requests})


def append(server: Connection, lake: Path, number: int) -> None:
    write_deltalake(lake / f"t{number % 2}", pa.table({"a": [number], "b": ["y"]}), mode="append")
    server.act("discover", {"catalog": "lake"})


def read(server: Connection, number: int) -> None:
    for name in ("stats.columns", "stats.files", "sys.capture_jobs", "sys.tables", "information_schema.tables"):
        server.get({"table": name})
    for at in range(TABLES):
        predicates = [{"column": "table_name", "op": "EQ", "values": [f"t{at}"]}]
        server.get({"table": "stats.columns", "predicates": predicates, "snapshot": "current"})


def resolve(server: Connection, number: int) -> None:
    target = {"kind": "COLUMN", "column_id": 2}
    requests = [{"table": f"lake.default.t{at}", "target": target, "latency_budget_ms": 5000} for at in range(TABLES)]
    server.act("resolve", {"requests": requests})


def query(server: Connection, number: int) -> None:
    statement = f"SELECT table_name, count(*) FROM stats.columns WHERE ndv > {number} GROUP BY ALL"
    descriptor = flight.FlightDescriptor.for_command(
        flight_sql.write_any("CommandStatementQuery", (1, statement.encode()))
    )
    with flight.FlightClient(server.uri) as client:
        client.do_get(client.get_flight_info(descriptor).endpoints[0].ticket).read_all()


def publish(server: Connection, number: int) -> None:
    body = {"table": f"lake.default.t{2 + number % 2}", "to": "trino", "allow_inherited": True}
    server.act("publish", body)


def test_locks_are_taken_in_order_and_nothing_is_waited_for_under_them(recorder, uri, lake):
    server, failures = Connection(uri, None), list[BaseException]()
    server.act("register_connector", {"catalog": "lake", "format": "delta", "uri": str(lake), "discover": True})
    capture(server, 0)

    def run(load: Callable[[Connection, int], Any]) -> None:
        try:
            own = Connection(uri, None)
            for number in range(ROUNDS):
                load(own, number)
        except BaseException as error:
            failures.append(error)

    loads = [put, put, capture, read, read, resolve, query, publish, lambda own, at: append(own, lake, at)]
    threads = [threading.Thread(target=run, args=(load,)) for load in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert {
        "JobQueue.lock",
        "Draft._lock",
        "Stoppable._lock",
        "LruCache._lock",
        "AutoAnalyze._lock",
        "_AppCollector._lock",
    } <= recorder.taken
    inverted = {pair: where for pair, where in recorder.nested.items() if rank(pair[0]) >= rank(pair[1])}
    assert not inverted, "\n".join(f"{pair}\n{where}" for pair, where in inverted.items())
    waited = {pair: where for pair, where in recorder.waited.items() if pair[0] not in EXCEPTIONS}
    assert not waited, "\n".join(f"{pair}\n{where}" for pair, where in waited.items())
