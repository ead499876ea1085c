"""Serving compared with a bare pyarrow Flight server over cached batches: ratios, interleaved in one run.

STATFLIGHT_BENCH_ROWS: rows of stats.file_columns. STATFLIGHT_BENCH_TABLES, STATFLIGHT_BENCH_SNAPSHOTS: number of tables
(default 2000), and of stored snapshots of each (default 5). STATFLIGHT_BENCH_DIR: keeps databases between runs.
STATFLIGHT_BENCH_SECONDS: duration of each load.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.benchmarks.raw_server import INTEGERS
from tests.benchmarks.serving_data import COLUMNS_PER_TABLE, SNAPSHOTS, TABLES, WIDE_COLUMNS, columns_rows, name_of

pytestmark = pytest.mark.benchmark

HERE = Path(__file__).parent
ITSELF = [sys.executable, "-m", "tests.benchmarks.bench_serving"]
ROWS = int(os.environ.get("STATFLIGHT_BENCH_ROWS", "1000000"))
SECONDS = float(os.environ.get("STATFLIGHT_BENCH_SECONDS", "3"))
ROUNDS = 1500
CLIENTS = 16
READ_TABLES = min(199, TABLES - 1)  # tables that are read repeatedly
POINTS = 250  # points that are read repeatedly


@contextmanager
def started(command: list[str], log: Path, **env: str) -> Iterator[str]:
    with log.open("ab") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | env)
    try:
        found = re.search(r"grpc://\S+", process.stdout.readline())
        assert found, log.read_text()
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def database_in(directory: Path) -> Path:
    database = directory / f"stats-{ROWS}-{TABLES}x{SNAPSHOTS}.duckdb"
    if not database.exists():
        subprocess.run([sys.executable, HERE / "serving_data.py", database, str(ROWS)], check=True)
    return database


def serve(database: Path) -> list[str]:
    statflight = Path(sys.executable).with_name("statflight")
    return [str(statflight), "serve", "--db", str(database), "--port", "0", "--workers", "0"]


@pytest.fixture(scope="module")
def uris(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of statflight and of the bare server, over the same rows."""
    directory = Path(os.environ.get("STATFLIGHT_BENCH_DIR") or tmp_path_factory.mktemp("bench"))
    database = database_in(directory)
    copy = shutil.copy(database, tmp_path_factory.mktemp("raw") / "own.duckdb")  # the server locks the first
    with started(serve(database), directory / "server.log") as ours:
        raw = [sys.executable, str(HERE / "raw_server.py"), ours, "--bulk", "--duckdb", str(copy)]
        with started(raw, directory / "raw.log") as theirs:
            yield ours, theirs


def command(flight_name: str = "stats.columns", table: int | None = None, **more: object) -> bytes:
    body: dict[str, object] = {"table": flight_name} | more
    if table is not None:
        names = zip(("table_catalog", "table_schema", "table_name"), name_of(table), strict=True)
        predicates = [{"column": column, "op": "EQ", "values": [value]} for column, value in names]
        body["predicates"] = predicates + list(body.get("predicates", []))  # type: ignore[call-overload]
    return json.dumps(body).encode()


def point(table: int, column: int) -> bytes:
    return command(
        table=table, predicates=[{"column": "column_id", "op": "EQ", "values": [column]}], snapshot="current"
    )


def request_of(table: int, column: int) -> dict[str, object]:
    return {"table": ".".join(name_of(table)), "target": {"kind": "COLUMN", "column_id": column}}


Call = Callable[[int], int]  # number of the call → rows or results received


class Client:
    """Calls of one connection, by name."""

    def __init__(self, uri: str):
        self.flight = flight.connect(uri)

    def get(self, ticket: bytes) -> pa.Table:
        return self.flight.do_get(flight.Ticket(ticket)).read_all()

    def rows(self, ticket: bytes) -> int:
        """Number of rows of a stream, read batch by batch; keeps none in memory."""
        reader, rows = self.flight.do_get(flight.Ticket(ticket)), 0
        while True:
            try:
                rows += reader.read_chunk().data.num_rows
            except StopIteration:
                return rows

    def act(self, name: str, body: bytes = b"") -> list[bytes]:
        return [result.body.to_pybytes() for result in self.flight.do_action(flight.Action(name, body))]

    def read(self, body: bytes) -> int:
        (answer,) = self.flight.do_action(flight.Action("read", body))
        return pa.ipc.open_stream(answer.body).read_next_batch().num_rows


def target_of(number: int) -> tuple[int, int]:
    """A table of the first READ_TABLES ones and one of its columns, in turn."""
    return number * 7 % READ_TABLES, number * 13 % COLUMNS_PER_TABLE + 1


def calls(kind: str, client: Client) -> Call:
    """The call that one client repeats."""
    match kind:
        case "empty":
            return lambda _: client.get(b"empty").num_rows
        case "one row":  # of the bare server
            return lambda _: client.get(b"point").num_rows
        case "act":
            return lambda _: len(client.act("empty"))
        case "health":
            return lambda _: len(client.act("health"))
        case "point":
            return lambda n: client.get(point(*target_of(n))).num_rows
        case "read":
            return lambda n: client.read(point(*target_of(n)))
        case "point again":  # like a planner, with prepared commands
            tickets = [point(*target_of(n)) for n in range(POINTS)]
            return lambda n: client.get(tickets[n % POINTS]).num_rows
        case "read again":
            tickets = [point(*target_of(n)) for n in range(POINTS)]
            return lambda n: client.read(tickets[n % POINTS])
        case "resolve":
            return lambda n: len(client.act("resolve", json.dumps({"requests": [request_of(*target_of(n))]}).encode()))
        case "resolve again":
            return lambda n: calls("resolve", client)(n % POINTS)
        case "resolve1000":
            requests = [request_of(TABLES - 1, column) for column in range(1, WIDE_COLUMNS + 1)]
            body = json.dumps({"requests": requests}).encode()
            return lambda _: len(client.act("resolve", body))
    raise ValueError(kind)


def latencies(ours: Call, theirs: Call, rounds: int = ROUNDS) -> tuple[list[float], list[float]]:
    """Seconds of each call, the two run alternately."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for call, seconds in zip((ours, theirs), found, strict=True):
            started = time.perf_counter()
            call(number)
            seconds.append(time.perf_counter() - started)
    return found


def show(name: str, ratio: float, bound: str, detail: str = "") -> None:
    print(f"\n  {name:<44} {ratio:6.2f}  ({bound}) {detail}", flush=True)


def compare_p50(name: str, ours: Call, theirs: Call, bound: float, rounds: int = ROUNDS) -> None:
    latencies(ours, theirs, max(20, rounds // 5))  # warm
    measured, bare = latencies(ours, theirs, rounds)
    p50, base = statistics.median(measured), statistics.median(bare)
    show(name, p50 / base, f"at most {bound}", f"{p50 * 1e6:.0f} µs against {base * 1e6:.0f} µs")


def test_point_latency(uris: tuple[str, str]) -> None:
    ours, theirs = Client(uris[0]), Client(uris[1])
    for number in range(2 * READ_TABLES):  # every table is warm
        assert ours.get(point(*target_of(number))).num_rows == 1
    empty = calls("empty", theirs)
    again = calls("read again", ours)
    for number in range(2 * POINTS):
        again(number)
    compare_p50("warm point by action / empty DoGet", again, empty, 1.2)
    compare_p50("warm point by DoGet / empty DoGet", calls("point again", ours), empty, 1.4)
    compare_p50("first point of a column by action / empty", calls("read", ours), empty, 2.0)
    compare_p50("first point of a column by DoGet / empty", calls("point", ours), empty, 2.0)
    compare_p50("(bare server, one row / empty DoGet)", lambda _: theirs.get(b"point").num_rows, empty, 1.4)
    bundle = command(table=TABLES - 1, snapshot="current")
    assert ours.get(bundle).num_rows == WIDE_COLUMNS
    compare_p50("1000-target bundle / empty DoGet", lambda _: ours.rows(bundle), empty, 1.8)
    compare_p50("(bare server, 1000 rows / empty DoGet)", lambda _: theirs.rows(b"bundle"), empty, 1.8)
    # every command differs, so that no cache has its result
    names = ["column_name", "row_count", "null_count", "ndv", "min", "max"]
    cold = command(table=3, columns=names, snapshot="current")[:-1]

    def cold_calls(n: int) -> int:
        within = b', "filter": {"and": [{"column": "column_id", "op": "LTE", "values": [20]},'
        beyond = b'{"column": "row_count", "op": "GT", "values": [%d]}]}}' % n
        return ours.get(cold + within + beyond).num_rows

    assert cold_calls(0) == 20
    compare_p50("20 rows, no command seen before / empty DoGet", cold_calls, empty, 2.0, 500)


def test_cold_lookup_latency(uris: tuple[str, str], tmp_path: Path) -> None:
    """A server without a cache: DuckDB reads each time."""
    theirs, db = Client(uris[1]), tmp_path / database_in(Path(os.environ.get("STATFLIGHT_BENCH_DIR") or tmp_path)).name
    if not db.exists():
        shutil.copy(Path(os.environ["STATFLIGHT_BENCH_DIR"]) / db.name, db)  # the other server locks the first
    with started(serve(db), tmp_path / "cold.log", STATFLIGHT_CACHE_BYTES="0") as cold:
        ours, few = Client(cold), {"column": "column_id", "op": "LTE", "values": [20]}
        names = ["column_name", "row_count", "null_count", "ndv", "min", "max"]

        def lookup(**more: object) -> Call:
            return lambda n: ours.get(command(table=n % TABLES, predicates=[few], **more)).num_rows

        empty = calls("empty", theirs)
        assert lookup(snapshot="current")(1) == 20
        assert lookup(columns=names)(1) == 20 * SNAPSHOTS
        compare_p50(
            "20 rows out of DuckDB, 6 columns / empty DoGet", lookup(columns=names, snapshot="current"), empty, 4.0, 500
        )
        compare_p50("20 rows out of DuckDB, 35 columns / empty DoGet", lookup(snapshot="current"), empty, 4.0, 500)
        compare_p50("(20 rows at all snapshots, 6 columns)", lookup(columns=names), empty, 4.0, 500)
        compare_p50("(20 rows at all snapshots, 35 columns)", lookup(), empty, 4.0, 500)


def test_first_reads_after_a_start(uris: tuple[str, str], tmp_path: Path) -> None:
    """The first read of each table; a start prewarms tables, those that were read before it first."""
    theirs, db = Client(uris[1]), tmp_path / "restarted.duckdb"
    shutil.copy(database_in(Path(os.environ.get("STATFLIGHT_BENCH_DIR") or tmp_path)), db)
    few = {"column": "column_id", "op": "LTE", "values": [20]}
    lookup: Call = lambda n: client.get(command(table=n, predicates=[few], snapshot="current")).num_rows  # noqa: E731
    for warm in (False, True):
        with started(serve(db), tmp_path / "restarted.log") as uri:
            client = Client(uri)
            time.sleep(5 if warm else 0)
            client.get(b'{"table": "sys.flights"}')
            measured, bare = latencies(lookup, calls("empty", theirs), READ_TABLES)
            p50, base = statistics.median(measured), statistics.median(bare)
            show(
                f"20 rows, first read, {'read before the start' if warm else 'never read before'}",
                p50 / base,
                "at most 4.0",
                f"{p50 * 1e6:.0f} µs against {base * 1e6:.0f} µs",
            )


def test_first_reads_after_a_publish(uris: tuple[str, str], tmp_path: Path) -> None:
    """The first read of each table after all were published again, which prewarms them."""
    theirs, db = Client(uris[1]), tmp_path / "published.duckdb"
    shutil.copy(database_in(Path(os.environ.get("STATFLIGHT_BENCH_DIR") or tmp_path)), db)
    few = {"column": "column_id", "op": "LTE", "values": [20]}
    lookup: Call = lambda n: client.get(command(table=n, predicates=[few], snapshot="current")).num_rows  # noqa: E731
    with started(serve(db), tmp_path / "published.log") as uri:
        client, put = Client(uri), json.dumps({"table": "stats.columns", "mode": "upsert"}).encode()
        for _ in range(2):  # fills the cache
            latencies(lookup, lookup, READ_TABLES)
        for number in range(READ_TABLES):
            rows = columns_rows(number, COLUMNS_PER_TABLE + 1)
            writer, _ = client.flight.do_put(flight.FlightDescriptor.for_command(put), rows.schema)
            writer.write_table(rows)
            writer.close()
        time.sleep(5)
        measured, bare = latencies(lookup, calls("empty", theirs), READ_TABLES)
        p50, base = statistics.median(measured), statistics.median(bare)
        show(
            "20 rows, first read, published before",
            p50 / base,
            "at most 4.0",
            f"{p50 * 1e6:.0f} µs against {base * 1e6:.0f} µs",
        )


def test_first_points_after_a_put(uris: tuple[str, str], tmp_path: Path) -> None:
    """The first read of each table, at once after a put of 2,000 tables × 20 columns into an empty store, and of other
    tables before that put is prewarmed."""
    theirs, tables, columns = Client(uris[1]), 2000, 20
    rows = pa.concat_tables([columns_rows(number, columns) for number in range(tables)])
    with started(serve(tmp_path / "new.duckdb"), tmp_path / "new.log") as uri:
        client = Client(uri)
        client.get(b'{"table": "sys.flights"}')
        writer, _ = client.flight.do_put(flight.FlightDescriptor.for_path("stats.columns"), rows.schema)
        writer.write_table(rows)
        writer.close()
        first: Call = lambda n: client.get(point(n * 7 % tables, n % columns + 1)).num_rows  # noqa: E731
        measured, bare = latencies(first, calls("empty", theirs), tables)
        base = statistics.median(bare)
        for name, each in (("all", measured), ("the first 50", measured[:50])):
            p50 = statistics.median(each)
            show(
                f"points never asked before, after a put, {name}",
                p50 / base,
                "at most 2.0",
                f"{p50 * 1e6:.0f} µs against {base * 1e6:.0f} µs",
            )


def test_resolve_latency(uris: tuple[str, str]) -> None:
    ours, theirs = Client(uris[0]), Client(uris[1])
    (answer,) = ours.act("resolve", json.dumps({"requests": [request_of(1, 1)]}).encode())
    assert json.loads(answer)["outcome"] == "HIT"
    for number in range(2 * READ_TABLES):
        calls("resolve", ours)(number)
    for number in range(2 * POINTS):
        calls("resolve again", ours)(number)
    compare_p50("warm resolve HIT / empty action", calls("resolve again", ours), calls("act", theirs), 1.5)
    compare_p50("first resolve of a column / empty action", calls("resolve", ours), calls("act", theirs), 2.0)
    compare_p50("resolve of 1000 / empty action", calls("resolve1000", ours), calls("act", theirs), 200, 30)


def throughput(uri: str, ticket: bytes) -> tuple[float, int]:
    client = Client(uri)
    started = time.perf_counter()
    rows = client.rows(ticket)
    return rows / (time.perf_counter() - started), rows


def compare_streams(
    name: str, uris: tuple[str, str], ours: Callable[[int], bytes], theirs: bytes, bound: float, rounds: int = 5
) -> None:
    measured, bare = [], []
    for number in range(rounds):
        rate, rows = throughput(uris[0], ours(number))
        raw, raw_rows = throughput(uris[1], theirs)
        assert rows == raw_rows
        measured.append(rate)
        bare.append(raw)
    rate, raw = statistics.median(measured), statistics.median(bare)
    show(name, rate / raw, f"at least {bound}", f"{rate / 1e6:.2f} against {raw / 1e6:.2f} million rows/s")


def test_streams(uris: tuple[str, str]) -> None:
    # DuckDB runs the query because of the condition; the number makes every command differ
    always = {"column": "row_count", "op": "GTE", "values": [0]}
    compare_streams(
        "cold scan of DuckDB / bare",
        uris,
        lambda n: command("stats.file_columns", predicates=[always], query_id=str(n)),
        b"bulk",
        0.5,
    )
    compare_streams(
        "cold scan, 3 integer columns / bare",
        uris,
        lambda n: command("stats.file_columns", predicates=[always], columns=INTEGERS, query_id=str(n)),
        b"integers",
        0.7,
        25,
    )
    compare_streams(
        "(bare server, DuckDB's reader / cached)", (uris[1], uris[1]), lambda _: b"duckdb", b"integers", 0.7, 25
    )
    whole = command("stats.file_columns")  # the same command each time, which DuckDB still runs
    compare_streams("repeated scan / bare", uris, lambda _: whole, b"bulk", 0.5)
    compare_streams(
        "repeated scan, 3 integer columns / bare",
        uris,
        lambda _: command("stats.file_columns", columns=INTEGERS),
        b"integers",
        0.5,
        25,
    )


# Many clients, each a process of its own.


def load(uri: str, kind: str, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Calls per second of many clients together, and the seconds of each call."""
    processes = [
        subprocess.Popen(
            [*ITSELF, uri, kind, str(seconds), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE.parents[1],
        )
        for number in range(clients)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    taken = [json.loads(process.communicate()[0]) for process in processes]
    return sum(len(each) for each in taken) / seconds, sorted(s for each in taken for s in each)


def compare_loads(name: str, ours: tuple[str, str], theirs: tuple[str, str], bound: str) -> None:
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        for (uri, kind), rate in zip((ours, theirs), rates, strict=True):
            rate.append(load(uri, kind, CLIENTS, SECONDS)[0])
    measured, bare = (statistics.median(rate) for rate in rates)
    show(name, measured / bare, bound, f"{measured:.0f} against {bare:.0f} calls/s")


def test_sixteen_clients(uris: tuple[str, str]) -> None:
    for number in range(2 * READ_TABLES):
        calls("point", Client(uris[0]))(number)
    empty = (uris[1], "empty")
    compare_loads("16 clients, points by action / empty DoGets", (uris[0], "read again"), empty, "at least 0.85")
    compare_loads("16 clients, points by DoGet / empty DoGets", (uris[0], "point again"), empty, "at least 0.85")
    compare_loads("(bare server, one row / empty DoGets)", (uris[1], "one row"), empty, "at least 0.85")
    rate, taken = load(uris[0], "resolve1000", CLIENTS, 2 * SECONDS)
    show(
        "16 clients, resolve of 1000 targets", rate * 1000, "targets/s", f"p50 {statistics.median(taken) * 1e3:.0f} ms"
    )


def test_points_beside_a_bulk_stream(uris: tuple[str, str]) -> None:
    quiet = load(uris[0], "read", 1, SECONDS)[1]
    bulk = subprocess.Popen(
        [*ITSELF, uris[0], "bulk", str(SECONDS + 4), "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
    )
    bulk.stdin.write("go\n")
    bulk.stdin.flush()
    time.sleep(1)
    busy = load(uris[0], "read", 1, SECONDS)[1]
    bulk.communicate()
    p99 = [taken[int(len(taken) * 0.99)] for taken in (busy, quiet)]
    show(
        "point p99 beside a bulk stream / quiet p99",
        p99[0] / p99[1],
        "at most 10",
        f"{p99[0] * 1e3:.2f} ms against {p99[1] * 1e3:.2f} ms",
    )


def _client(uri: str, kind: str, seconds: float, number: int) -> None:
    client = Client(uri)
    call: Call = (lambda _: client.rows(command("stats.file_columns"))) if kind == "bulk" else calls(kind, client)
    if kind != "bulk":
        call(number)
    print("ready", flush=True)
    sys.stdin.readline()
    taken, at, end = [], number * 31, time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        call(at)
        at += 1
        taken.append(time.perf_counter() - before)
    print(json.dumps(taken))


if __name__ == "__main__":
    _client(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
