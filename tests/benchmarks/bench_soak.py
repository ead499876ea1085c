"""A day in small: reads, puts, captures and cancels at once, while the server is stopped, killed and started again.

Whatever was acknowledged has to be there after each start and at the end, every answer has to be whole, every job has
to end, and in the longest life, which is the last, memory has to be flat once the server is warm. Warm it is late: the
first tens of thousands of joins cost DuckDB 2.0 some 30 MB of its own (4 kB each, then less and less).

STATFLIGHT_BENCH_SOAK_SECONDS (600); the first third of it sees the restarts.
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
LIVES = 6  # before the last one; killed and stopped in turn
PUBLISHED, ROWS = 40, 300  # tables whose set is replaced again and again, and its rows
LAKE_TABLES = 4
MORE_ALLOWED = 0.10  # of memory, from the second quarter of the last life to its last
GONE = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError, OSError)


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
                command, cwd=self.directory, env=env | {"STATFLIGHT_LEASE_SECONDS": "5"}, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip
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
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return _anonymous(own), sum(_anonymous(int(child)) for child in children)


def _anonymous(pid: int) -> float:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/smaps_rollup").open() as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss_Anon"))
    return 0.0


class Load:
    """The loops of the clients, a thread each; `stop` ends them, `trouble` collects failures."""

    def __init__(self, running: Running):
        self.running = running
        self.stop = threading.Event()
        self.trouble: list[BaseException] = []
        self.done: Counter[str] = Counter()
        self.acknowledged: dict[str, int] = {}  # published table → generation
        self.sent: dict[str, int] = {}
        self.jobs: set[str] = set()
        self.threads = [
            threading.Thread(target=self._repeat, args=(what, random.Random(number)), daemon=True)
            for number, what in enumerate(
                [self.publish] * 2 + [self.look_up] * 2 + [self.read_all, self.capture, self.cancel, self.ask]
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

    def _repeat(self, what: Callable[[Client, random.Random], None], chance: random.Random) -> None:
        client = None
        while not self.stop.is_set():
            try:
                client = client or Client(self.running.uri)
                what(client, chance)
                self.done[what.__name__] += 1
            except GONE:  # a restart
                self.done["refused in a restart"] += 1
                client = None
                time.sleep(0.1)
            except BaseException as trouble:
                self.trouble.append(trouble)
                return

    def publish(self, client: Client, chance: random.Random) -> None:
        # tables are dealt to the two publishers, so that each knows its own order
        own = int(threading.current_thread() is self.threads[0])
        name = f"p{chance.randrange(PUBLISHED // 2) * 2 + own}"
        number = self.sent.get(name, 0) + 1
        self.sent[name] = number
        client.put("stats.columns", generation(number, ROWS, name), "replace_snapshot")
        self.acknowledged[name] = number

    def look_up(self, client: Client, chance: random.Random) -> None:
        check_whole(client.get("stats.columns", predicates=table_predicates(f"p{chance.randrange(PUBLISHED)}")), ROWS)
        time.sleep(0.002)

    def read_all(self, client: Client, chance: random.Random) -> None:
        found = client.get("stats.columns", columns=["table_name", "row_count"])
        for name in found["table_name"].unique().to_pylist():
            if name.startswith("p"):
                check_whole(found.filter(pa.compute.equal(found["table_name"], name)), ROWS)
        time.sleep(0.05)

    def capture(self, client: Client, chance: random.Random) -> None:
        table = f"lake.default.t{chance.randrange(LAKE_TABLES)}"
        if chance.random() < 0.05:
            _write(self.running.directory / "lake", table.rpartition(".")[2], chance.randrange(1, 100))
        mode = chance.choice(["SYNC", "ASYNC"])
        outcome = client.act("capture", requests=[{"table": table, "kinds": ["ROW_COUNT"], "mode": mode}])
        if outcome["job_id"]:
            self.jobs.add(outcome["job_id"])
        assert outcome["outcome"] in ("CAPTURED", "QUEUED", "DEGRADED"), outcome
        time.sleep(0.5)

    def cancel(self, client: Client, chance: random.Random) -> None:
        ticket = flight.Ticket(json.dumps({"table": "stats.columns", "snapshot": chance.choice([1, "current"])}))
        options = flight.FlightCallOptions(timeout=chance.choice([0.001, 0.005, 5.0]))
        with contextlib.suppress(flight.FlightTimedOutError, flight.FlightCancelledError, StopIteration):
            reader = client.flight.do_get(ticket, options)
            reader.read_chunk()
            reader.cancel()
        time.sleep(0.02)

    def ask(self, client: Client, chance: random.Random) -> None:
        client.act("health")
        for name in ("sys.capture_jobs", "sys.connectors", "information_schema.columns", "sys.flights"):
            client.get(name)
        client.act("resolve", requests=[{"table": f"lake.default.t{chance.randrange(LAKE_TABLES)}"}])
        time.sleep(0.1)

    def check(self) -> None:
        """Every acknowledged set is there, or a newer one that was being sent."""
        known = dict(self.acknowledged)
        client = Client(self.running.uri)
        for name, least in known.items():
            found = check_whole(client.get("stats.columns", predicates=table_predicates(name)), ROWS)
            assert found is not None, f"{name} is lost"
            assert least <= found <= self.sent[name], (name, least, found, self.sent[name])


def _write(lake: Path, table: str, rows: int) -> None:
    (lake / table).mkdir(parents=True, exist_ok=True)
    part = lake / table / ".writing"  # connectors look at no hidden file
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
        how = signal.SIGTERM if number % 2 else signal.SIGKILL
        running.end(how)
        running.start()
        load.check()
        print(f"{time.monotonic() - began:5.0f} s: {how.name}, started again, {load.done['publish']} puts")
    samples: list[tuple[float, float]] = []
    told = time.monotonic()
    while time.monotonic() < began + SECONDS:
        _wait(load, time.monotonic() + 1)
        samples.append(running.memory())
        if time.monotonic() - told > SECONDS / 20:
            told = time.monotonic()
            size = (running.directory / "s.duckdb").stat().st_size / 1e6
            print(f"{told - began:5.0f} s: server {samples[-1][0]:.0f} MB, worker {samples[-1][1]:.0f} MB, "
                  f"file {size:.0f} MB, {dict(load.done)}")  # fmt: skip
    load.join()
    assert not load.trouble, load.trouble
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
        assert not load.trouble, load.trouble
        time.sleep(0.05)


def _jobs_end(running: Running, load: Load) -> None:
    client = Client(running.uri)
    for job_id in load.jobs:
        job = client.act("wait_job", job_id=job_id)
        # a file that was written over before its job's turn came takes its snapshot along
        assert job["state"] == "SUCCEEDED" or "is gone" in job["message"], job
