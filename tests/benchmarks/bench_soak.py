"""A soak test: concurrent reads, puts, captures and cancels, while the server is stopped, killed and started again.

Everything acknowledged must be there after each start and at the end, every response must be complete, every job must
end, and in the last and longest life memory must be flat once the server is warm. Warming up takes long: the first tens
of thousands of joins cost DuckDB 2.0 some 30 MB of its own (4 kB each, then less and less).

STATFLIGHT_BENCH_SOAK_SECONDS (600); the restarts happen in its first third.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import STATFLIGHT
from tests.integration.store_server import Client, check_whole, generation, table_predicates

pytestmark = pytest.mark.benchmark

SECONDS = float(os.environ.get("STATFLIGHT_BENCH_SOAK_SECONDS", "600"))
LIVES = 6  # before the last one; killed and stopped alternately
PUBLISHED, ROWS = 40, 300  # tables that are replaced repeatedly, and the rows of each
LAKE_TABLES = 4
MORE_ALLOWED = 0.10  # of memory, from the second quarter of the last life to its last
UNAVAILABLE = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError, OSError)


class Running:
    """A server that can be stopped, killed and started again at the same port."""

    def __init__(self, directory: Path):
        self.directory, self.port = directory, 0
        self.process: subprocess.Popen[str] | None = None
        self.log = directory / "server.log"

    def start(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("STATFLIGHT_")}
        command = [STATFLIGHT, "serve", "--db", self.directory / "s.duckdb", "--port", str(self.port)]
        with self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=env | {"STATFLIGHT_LEASE_SECONDS": "5"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        found = re.search(r"listening on (grpc://\S+:(\d+))", self.process.stdout.readline())
        assert found, self.log.read_text()[-2000:]
        self.uri, self.port = found[1], int(found[2])

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=60)

    def memory(self) -> tuple[float, float]:
        """MB of the server, and of its worker."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return _anonymous(pid), sum(_anonymous(int(child)) for child in children)


def _anonymous(pid: int) -> float:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/smaps_rollup").open() as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss_Anon"))
    return 0.0


class Load:
    """The loops of the clients, a thread each; `stop` ends them, `errors` collects failures."""

    def __init__(self, running: Running):
        self.running = running
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.done: Counter[str] = Counter()
        self.acknowledged: dict[str, int] = {}  # published table → generation
        self.sent: dict[str, int] = {}
        self.jobs: set[str] = set()
        self.threads = [
            threading.Thread(target=self._repeat, args=(action, random.Random(number)), daemon=True)
            for number, action in enumerate(
                [self.publish] * 2 + [self.look_up] * 2 + [self.read_all, self.capture, self.cancel, self.query_system]
            )
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def _repeat(self, action: Callable[[Client, random.Random], None], rng: random.Random) -> None:
        client = None
        while not self.stop.is_set():
            try:
                client = client or Client(self.running.uri)
                action(client, rng)
                self.done[action.__name__] += 1
            except UNAVAILABLE:  # a restart
                self.done["refused in a restart"] += 1
                client = None
                time.sleep(0.1)
            except BaseException as error:
                self.errors.append(error)
                return

    def publish(self, client: Client, rng: random.Random) -> None:
        # each publisher has half of the tables, so that the order of its puts is known
        offset = int(threading.current_thread() is self.threads[0])
        name = f"p{rng.randrange(PUBLISHED // 2) * 2 + offset}"
        number = self.sent.get(name, 0) + 1
        self.sent[name] = number
        client.put("stats.columns", generation(number, ROWS, name), "replace_snapshot")
        self.acknowledged[name] = number

    def look_up(self, client: Client, rng: random.Random) -> None:
        check_whole(client.get("stats.columns", predicates=table_predicates(f"p{rng.randrange(PUBLISHED)}")), ROWS)
        time.sleep(0.002)

    def read_all(self, client: Client, rng: random.Random) -> None:
        found = client.get("stats.columns", columns=["table_name", "row_count"])
        for name in found["table_name"].unique().to_pylist():
            if name.startswith("p"):
                check_whole(found.filter(pa.compute.equal(found["table_name"], name)), ROWS)
        time.sleep(0.05)

    def capture(self, client: Client, rng: random.Random) -> None:
        table = f"lake.default.t{rng.randrange(LAKE_TABLES)}"
        if rng.random() < 0.05:
            _write(self.running.directory / "lake", table.rpartition(".")[2], rng.randrange(1, 100))
        mode = rng.choice(["SYNC", "ASYNC"])
        outcome = client.act("capture", requests=[{"table": table, "kinds": ["ROW_COUNT"], "mode": mode}])
        if outcome["job_id"]:
            self.jobs.add(outcome["job_id"])
        assert outcome["outcome"] in ("CAPTURED", "QUEUED", "DEGRADED"), outcome
        time.sleep(0.5)

    def cancel(self, client: Client, rng: random.Random) -> None:
        ticket = flight.Ticket(json.dumps({"table": "stats.columns", "snapshot": rng.choice([1, "current"])}))
        options = flight.FlightCallOptions(timeout=rng.choice([0.001, 0.005, 5.0]))
        with contextlib.suppress(flight.FlightTimedOutError, flight.FlightCancelledError, StopIteration):
            reader = client.flight.do_get(ticket, options)
            reader.read_chunk()
            reader.cancel()
        time.sleep(0.02)

    def query_system(self, client: Client, rng: random.Random) -> None:
        client.act("health")
        for name in ("sys.capture_jobs", "sys.connectors", "information_schema.columns", "sys.flights"):
            client.get(name)
        client.act("resolve", requests=[{"table": f"lake.default.t{rng.randrange(LAKE_TABLES)}"}])
        time.sleep(0.1)

    def check(self) -> None:
        """Checks that every acknowledged generation is there, or a newer one that was being sent."""
        acknowledged = dict(self.acknowledged)
        client = Client(self.running.uri)
        for name, least in acknowledged.items():
            found = check_whole(client.get("stats.columns", predicates=table_predicates(name)), ROWS)
            assert found is not None, f"{name} is lost"
            assert least <= found <= self.sent[name], (name, least, found, self.sent[name])


def _write(lake: Path, table: str, rows: int) -> None:
    (lake / table).mkdir(parents=True, exist_ok=True)
    part = lake / table / ".writing"  # connectors ignore hidden files
    pq.write_table(pa.table({"a": range(rows)}), part)
    part.replace(lake / table / "part.parquet")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    for number in range(LAKE_TABLES):
        _write(tmp_path / "lake", f"t{number}", 10)
    running.start()
    client = Client(running.uri)
    client.act("register_connector", catalog="lake", format="parquet", uri=str(tmp_path / "lake"))
    list(client.flight.do_action(flight.Action("discover", b'{"catalog": "lake"}')))
    yield running
    if running.process is not None and running.process.poll() is None:
        running.end(signal.SIGTERM)


def test_soak(running: Running) -> None:
    load = Load(running)
    load.start()
    began = time.monotonic()
    print()
    for number in range(LIVES):
        _wait(load, began + SECONDS / 3 * (number + 1) / LIVES)
        signal_ = signal.SIGTERM if number % 2 else signal.SIGKILL
        running.end(signal_)
        running.start()
        load.check()
        print(f"{time.monotonic() - began:5.0f} s: {signal_.name}, started again, {load.done['publish']} puts")
    samples: list[tuple[float, float]] = []
    last_report = time.monotonic()
    while time.monotonic() < began + SECONDS:
        _wait(load, time.monotonic() + 1)
        samples.append(running.memory())
        if time.monotonic() - last_report > SECONDS / 20:
            last_report = time.monotonic()
            size = (running.directory / "s.duckdb").stat().st_size / 1e6
            print(
                f"{last_report - began:5.0f} s: server {samples[-1][0]:.0f} MB, worker {samples[-1][1]:.0f} MB, "
                f"file {size:.0f} MB, {dict(load.done)}"
            )
    load.join()
    assert not load.errors, load.errors
    load.check()
    _jobs_end(running, load)
    quarter = len(samples) // 4
    for name, each in zip(("server", "worker"), zip(*samples, strict=True), strict=True):
        warm, last = statistics.mean(each[quarter : 2 * quarter]), statistics.mean(each[-quarter:])
        print(f"{name}: {warm:.0f} MB warm, {last:.0f} MB at the end, greatest {max(each):.0f} MB")
        assert last <= warm * (1 + MORE_ALLOWED), name
    log = running.log.read_text()
    for words in ("internal error", "could not be made ready"):
        assert words not in log, log[log.index(words) - 300 :][:3000]
    print(f"{LIVES} restarts, {load.done['publish']} puts and {len(load.jobs)} jobs acknowledged, none lost")


def _wait(load: Load, until: float) -> None:
    while time.monotonic() < until:
        assert not load.errors, load.errors
        time.sleep(0.05)


def _jobs_end(running: Running, load: Load) -> None:
    client = Client(running.uri)
    for job_id in load.jobs:
        job = client.act("wait_job", job_id=job_id)
        # a file replaced before its job ran removes the job's snapshot
        assert job["state"] == "SUCCEEDED" or "is gone" in job["message"], job
