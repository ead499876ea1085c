"""Servers that share a PostgreSQL: puts and reads beside a server with a file of its own, how soon others see a put,
and kills of any of three servers under load.

PostgreSQL waits for the disk at each commit here, as DuckDB does. `python -m pytest tests/benchmarks/bench_postgres.py
-m benchmark -s`; STATFLIGHT_BENCH_KILLS (20).
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.benchmarks.bench_plans import cpu_seconds
from tests.flight_server.live_server import Client, LiveServer, eventually, serving
from tests.store.postgres.postgres_server import PostgresServer, binaries

pytestmark = pytest.mark.benchmark

KILLS = int(os.environ.get("STATFLIGHT_BENCH_KILLS", "20"))
SERVERS, WRITERS, ROWS = 3, 2, 20  # WRITERS of each server, ROWS of each put
SNAPSHOTS = 200  # of a table
PAUSE_SECONDS = 0.3  # of a writer between two puts, so that most of the time is not that of the load
MEASURED, WARM = 100, 10
FLIGHT = "stats.columns"
# Becomes a server of each directory whose path it reads, by a fork: a start takes a quarter of the processor time so.
# The servers store a base often, so that this is killed too.
FORKING = """
import os, signal, sys
import duckdb, psycopg, pyarrow.flight
import flight_server.core, flight_server.process.serve, statflight.__main__, store.postgres.join
from store.postgres import member

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
member.BASE_BYTES, member._BASE_SECONDS = 1 << 20, 2.0
for line in sys.stdin:
    if not (pid := os.fork()):
        os.chdir(line.strip())
        for stream, name in ((sys.stdout, "out"), (sys.stderr, "server.log")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv = "statflight serve --db stats.duckdb --port 0 --workers 0 --watch-seconds 0".split()
        statflight.__main__.main()
    print(pid, flush=True)
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL is installed (Debian: apt-get install postgresql)")
    server = PostgresServer(found, fsync="on")
    yield server
    server.close()


def put(client: Client, number: int) -> None:
    """Puts a snapshot of a number that no other has."""
    key = {"table_catalog": "c", "table_schema": "s", "table_name": f"t{number // SNAPSHOTS}", "snapshot_id": number}
    rows = [
        key | {"column_id": column, "row_count": number, "min": "a", "logical_type": "STRING"}
        for column in range(1, ROWS + 1)
    ]
    client.put({"table": FLIGHT, "mode": "create"}, pa.Table.from_pylist(rows))


def generation(client: Client) -> int:
    return int(client.get({"table": "sys.replication"})["generation"][0].as_py())


class Timed:
    """The cost of calls of a server: seconds on the clock, and of the processor."""

    def __init__(self, server: LiveServer):
        self.server, self.clock = server, list[float]()
        self.processor = 0.0

    def run(self, call: Callable[[Client], object], client: Client) -> None:
        before, began = cpu_seconds(self.server.process.pid), time.perf_counter()
        call(client)
        self.clock.append(time.perf_counter() - began)
        self.processor += cpu_seconds(self.server.process.pid) - before


def show(what: str, alone: Timed, shared: Timed) -> None:
    calls = len(alone.clock)
    clock = [1000 * median(each.clock) for each in (alone, shared)]
    processor = [1000 * each.processor / calls for each in (alone, shared)]
    print(
        f"{what}: {clock[0]:.1f} ms on a file, {clock[1]:.1f} ms on PostgreSQL, ratio {clock[1] / clock[0]:.2f};"
        f" the server's processor {processor[0]:.1f} and {processor[1]:.1f} ms,"
        f" ratio {processor[1] / max(processor[0], 0.01):.2f}"
    )


def test_puts_and_reads_beside_a_file(postgres, tmp_path):
    def read(client: Client) -> None:
        where = [
            {"column": "table_name", "op": "EQ", "values": ["t0"]},
            {"column": "snapshot_id", "op": "EQ", "values": [MEASURED]},
        ]
        assert client.get({"table": FLIGHT, "predicates": where}).num_rows == ROWS

    env = {"STATFLIGHT_STORE": postgres.new()}
    with ExitStack() as stack:
        servers = []
        for name, settings in (("alone", None), ("shared", env), ("other", env)):
            (tmp_path / name).mkdir()
            servers.append(stack.enter_context(serving(tmp_path / name, "--watch-seconds", 0, env=settings)))
        clients = [stack.enter_context(server.connect()) for server in servers]
        alone, shared, other = clients
        seen: list[float] = []
        puts, reads = ([Timed(server) for server in servers[:2]] for _ in range(2))
        for number in range(1, MEASURED + WARM + 1):
            for timed, client in zip(puts, (alone, shared), strict=True):
                timed.run(lambda client, number=number: put(client, number), client)
            began = time.perf_counter()
            other.get({"table": "sys.replication", "min_generation": generation(shared)})
            seen.append(time.perf_counter() - began)
            if number == WARM:
                puts, seen = [Timed(server) for server in servers[:2]], []
        for _ in range(5 * MEASURED):
            for timed, client in zip(reads, (alone, shared), strict=True):
                timed.run(read, client)
    print()
    show(f"put of {ROWS} columns", *puts)
    show(f"read of {ROWS} columns", *reads)
    print(f"seen elsewhere after {1000 * median(seen):.0f} ms, at most {1000 * max(seen):.0f} ms")
    assert max(seen) < 5  # a bound of 1 s holds for a machine that has nothing else to do


class Load:
    """The puts of all writers.

    Attributes:
        tried: Numbers of all puts; `acknowledged`: of those that were.
        refused: Errors of servers that were not killed.
    """

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.acknowledged, self.tried = set[int](), set[int]()
        self.refused = Counter[str]()
        self.ended = threading.Event()
        self.lock = threading.Lock()

    def check(self, client: Client, acknowledged: set[int], least: int = 0) -> set[int]:
        """The numbers that a server has: all that were acknowledged before, and each put as a whole."""
        command = {"table": FLIGHT, "columns": ["snapshot_id", "row_count"], "min_generation": least}
        found = client.get(command)
        counts = Counter(found["snapshot_id"].to_pylist())
        parts = {number: count for number, count in counts.items() if count != ROWS}
        lost = acknowledged - counts.keys()
        assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
        assert not parts, f"in part: {parts}"
        assert found["snapshot_id"].to_pylist() == found["row_count"].to_pylist()
        assert counts.keys() <= self.tried, "there is what nobody has put"
        return set(counts)


class Writer(threading.Thread):
    """Puts at a server until it is killed.

    Attributes:
        began: Set when a put begins.
        seconds: What the last one took.
        acknowledged: The number of those that were.
        cut_off: The put during which the server was killed.
    """

    def __init__(self, place: Place):
        super().__init__(daemon=True)
        self.place, self.load, self.uri = place, place.load, place.uri
        self.began, self.seconds, self.acknowledged = threading.Event(), 0.1, 0
        self.cut_off: int | None = None
        self.start()

    def run(self) -> None:
        with Client(self.uri) as client:
            while not self.load.ended.wait(PAUSE_SECONDS):
                if self.place.is_killed:
                    return
                number, began = next(self.load.numbers), time.perf_counter()
                self.load.tried.add(number)
                self.began.set()
                try:
                    put(client, number)
                except (pa.ArrowException, flight.FlightError) as error:
                    if self.place.is_killed:
                        self.cut_off = number
                        return
                    self.load.refused[str(error)[:100]] += 1
                else:
                    self.load.acknowledged.add(number)
                    self.seconds = time.perf_counter() - began
                    self.acknowledged += 1


class Place:
    """A server of the store with its writers, started again after each kill.

    Args:
        forking: The process that becomes servers.

    Attributes:
        cut_off: The puts that kills have cut off; `stored`: those of them that are there all the same.
    """

    def __init__(self, path: Path, forking: subprocess.Popen[str], load: Load):
        path.mkdir()
        self.path, self.forking, self.load = path, forking, load
        self.starts, self.cut_off, self.stored = list[float](), set[int](), set[int]()
        self.start()

    def start(self) -> None:
        began, out = time.perf_counter(), self.path / "out"
        out.unlink(missing_ok=True)
        assert self.forking.stdin is not None
        assert self.forking.stdout is not None
        with self.load.lock:
            self.forking.stdin.write(f"{self.path}\n")
            self.forking.stdin.flush()
            self.pid, self.is_killed = int(self.forking.stdout.readline()), False
        listening = eventually(lambda: out.exists() and re.search(r"listening on (grpc\S+)\n", out.read_text()), 120)
        self.uri = listening[1]
        self.client = Client(self.uri)
        self.starts.append(time.perf_counter() - began)
        self.writers = [Writer(self) for _ in range(WRITERS)]

    def kill(self, chance: random.Random) -> None:
        """Kills the server in the middle of a put, or soon after, once each of its writers has had one acknowledged;
        starts it again, and looks at what it has."""
        eventually(lambda: all(each.acknowledged for each in self.writers), 300)
        writer = chance.choice(self.writers)
        writer.began.clear()
        assert writer.began.wait(120)
        time.sleep(chance.uniform(0.0, 1.1 * writer.seconds))
        self.is_killed = True
        self.end(signal.SIGKILL)
        cut_off = {each.cut_off for each in self.writers if each.cut_off is not None}
        acknowledged = set(self.load.acknowledged)
        self.start()
        self.cut_off |= cut_off
        self.stored |= cut_off & self.load.check(self.client, acknowledged)

    def end(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)
        eventually(lambda: not Path(f"/proc/{self.pid}").exists(), 120)
        for each in self.writers:
            each.join(60)
        self.client.flight.close()


def test_nothing_acknowledged_is_lost_by_kills(postgres, tmp_path):
    address, load, kills, bases = postgres.new(), Load(), itertools.count(1), set[int]()
    command, env = [sys.executable, "-c", FORKING], os.environ | {"STATFLIGHT_STORE": address}
    forking = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    places = [Place(tmp_path / str(at), forking, load) for at in range(SERVERS)]

    def killing(place: Place) -> None:
        chance = random.Random(str(place.path.name))
        while (number := next(kills)) <= KILLS:
            place.kill(chance)
            bases.add(postgres.run("SELECT base FROM statflight.head", address)[0][0])
            if number % 10 == 0 or number == KILLS:
                cut_off, stored = (sum(len(getattr(each, of)) for each in places) for of in ("cut_off", "stored"))
                told = f"{number} kills, {len(load.acknowledged)} puts acknowledged, 0 lost, 0 in part"
                print(f"{told}; {cut_off} puts cut off, {stored} of them stored", flush=True)

    try:
        with ThreadPoolExecutor(SERVERS) as threads:  # any of them may be killed while others are
            for ended in [threads.submit(killing, place) for place in places]:
                ended.result()
        load.ended.set()
        for writer in itertools.chain(*(place.writers for place in places)):
            writer.join(60)
        newest = max(generation(place.client) for place in places)
        for place in places:
            load.check(place.client, set(load.acknowledged), newest)
    finally:
        load.ended.set()
        for place in places:
            place.end(signal.SIGTERM)
        forking.communicate()
    starts = list(itertools.chain(*(place.starts for place in places)))
    print(f"{len(load.tried)} puts at {SERVERS} servers, {len(bases)} bases, starts {median(starts):.1f} s,", end=" ")
    print(f"at most {max(starts):.1f} s; refused by servers that lived on: {dict(load.refused) or 0}")
