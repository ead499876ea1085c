"""SQL over statistics compared with roapi (Flight SQL in Rust over Arrow in memory), JSON commands, and DuckDB.

The sides of a comparison alternate call by call in one run. roapi comes from PyPI: `pip install roapi`, or
STATFLIGHT_BENCH_ROAPI names its program; without it that comparison is skipped.
STATFLIGHT_BENCH_ROWS: rows of stats.file_columns. STATFLIGHT_BENCH_DIR: keeps databases between runs.
"""

from __future__ import annotations

# ruff: noqa: E501  statements are read more easily on one line
import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from adbc_driver_flightsql import dbapi

from flight_server.client import StatsClient
from flight_server.core.wire.flight_sql import write_any
from tests.benchmarks.bench_serving import database_in, serve, started
from tests.benchmarks.serving_data import TABLES, name_of

pytestmark = pytest.mark.benchmark

ROAPI = os.environ.get("STATFLIGHT_BENCH_ROAPI") or shutil.which("roapi")
ROUNDS = int(os.environ.get("STATFLIGHT_BENCH_ROUNDS", "200"))

Call = Callable[[int], int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = Path(os.environ.get("STATFLIGHT_BENCH_DIR") or tmp_path_factory.mktemp("bench"))
    with started(serve(database_in(directory)), directory / "server.log") as uri:
        yield uri


@contextmanager
def roapi_over(directory: Path, **tables: Path) -> Iterator[str]:
    with socket.socket() as probe, socket.socket() as other:
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, http = probe.getsockname()[1], other.getsockname()[1]
    command = [str(ROAPI), "-a", f"127.0.0.1:{http}", "--addr-flight-sql", f"127.0.0.1:{port}"]
    for name, path in tables.items():
        command += ["-t", f"{name}={path}"]
    with (directory / "roapi.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    Sql(f"grpc://127.0.0.1:{port}").rows("SELECT 1")
                    break
                except (pa.ArrowException, flight.FlightError):
                    assert time.monotonic() < deadline and process.poll() is None, (directory / "roapi.log").read_text()
                    time.sleep(0.2)
            yield f"grpc://127.0.0.1:{port}"
        finally:
            process.terminate()


class Sql:
    """Flight SQL with the pyarrow client."""

    def __init__(self, uri: str):
        self.flight = flight.connect(uri)

    def rows(self, sql: str) -> int:
        descriptor = flight.FlightDescriptor.for_command(write_any("CommandStatementQuery", (1, sql.encode())))
        info = self.flight.get_flight_info(descriptor)
        return sum(chunk.data.num_rows for e in info.endpoints for chunk in self.flight.do_get(e.ticket))


def interleaved(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The median milliseconds of each call, run alternately."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call(number)
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(found) for name, found in times.items()}


def where(number: int) -> str:
    catalog, schema, table = name_of(number % (TABLES - 1))
    return f"table_catalog = '{catalog}' AND table_schema = '{schema}' AND table_name = '{table}'"


SHAPES: dict[str, tuple[Callable[[int], str], float, int]] = {  # statement by number, greatest ratio, share of rounds
    "point": (lambda n: f"SELECT * FROM {{c}} WHERE {where(n)} AND column_id = {n % 50 + 1}", 0.8, 1),
    "1000 rows": (lambda _: f"SELECT * FROM {{c}} WHERE table_name = '{name_of(TABLES - 1)[2]}'", 0.8, 2),
    "filter": (lambda n: f"SELECT table_name, column_name, ndv FROM {{c}} WHERE ndv > {890_000 + n}", 0.7, 2),
    "aggregate": (
        lambda n: (
            f"SELECT table_name, count(*) AS n, max(ndv) AS m FROM {{f}} WHERE row_count > {n} GROUP BY table_name"
        ),
        0.6,
        10,
    ),
    "stream": (lambda _: "SELECT * FROM {f}", 1.1, 40),
}


@pytest.mark.skipif(ROAPI is None, reason="roapi is not installed")
def test_compared_with_roapi(served: str, tmp_path: Path) -> None:
    with StatsClient(served) as client:
        for name in ("columns", "file_columns"):
            pq.write_table(client.read(f"stats.{name}", snapshot="current"), tmp_path / f"{name}.parquet")
    print()
    ratios = {}
    with roapi_over(tmp_path, c=tmp_path / "columns.parquet", f=tmp_path / "file_columns.parquet") as theirs:
        us, them = Sql(served), Sql(theirs)
        for shape, (sql, _, share) in SHAPES.items():
            ours = lambda n, sql=sql: us.rows(sql(n).format(c="stats.columns", f="stats.file_columns"))  # noqa: E731
            other = lambda n, sql=sql: them.rows(sql(n).format(c="c", f="f"))  # noqa: E731
            assert ours(1) == other(1), shape
            ours(1)
            found = interleaved({"statflight": ours, "roapi": other}, max(3, ROUNDS // share))
            ratios[shape] = found["statflight"] / found["roapi"]
            print(
                f"{shape:<10} statflight {found['statflight']:8.2f} ms, roapi {found['roapi']:8.2f} ms: {ratios[shape]:.2f}"
            )
    above_bound = {shape: ratio for shape, ratio in ratios.items() if ratio > SHAPES[shape][1]}
    assert not above_bound, above_bound


def test_compared_with_json_commands(served: str) -> None:
    with (
        StatsClient(served) as client,
        dbapi.connect(served, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        table = name_of(3)[2]
        cursor.adbc_prepare("SELECT * FROM stats.columns WHERE table_name = ?")

        def prepared(_: int) -> int:
            cursor.execute("SELECT * FROM stats.columns WHERE table_name = ?", (table,))
            return int(cursor.fetch_arrow_table().num_rows)

        leaf = [{"column": "table_name", "op": "EQ", "values": [table]}]
        calls = {
            "json": lambda _: client.read("stats.columns", where=leaf, snapshot="current").num_rows,
            "prepared": prepared,
        }
        assert calls["json"](0) == calls["prepared"](0) == 50
        found = interleaved(calls, ROUNDS)
    ratio = found["prepared"] / found["json"]
    print(f"\nprepared {found['prepared']:.2f} ms, JSON {found['json']:.2f} ms: {ratio:.2f}")

    def first(_: int) -> int:
        with dbapi.connect(served, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT column_name FROM stats.columns WHERE table_name = 'table00003' LIMIT 1")
            return len(cursor.fetchall())

    connected = interleaved({"first": first}, 30)["first"]
    print(f"ADBC connect and first row: {connected:.1f} ms")
    assert ratio <= 2.5 and connected <= 30


def test_duckdb_over_a_dataset(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with StatsClient(served) as client:
        d, t = client.dataset("stats.columns", "current"), client.dataset("stats.tables", "current")  # noqa: F841
        leaf = [{"column": "table_schema", "op": "EQ", "values": ["schema3"]}]
        connection = duckdb.connect()
        connection.register("d", d)
        connection.register("m", client.read("stats.columns", where=leaf, snapshot="current"))
        calls = {
            "memory": lambda _: connection.sql("SELECT * FROM m").to_arrow_table().num_rows,
            "json": lambda _: client.read("stats.columns", where=leaf, snapshot="current").num_rows,
            "duckdb": lambda _: (
                connection.sql("SELECT * FROM d WHERE table_schema = 'schema3'").to_arrow_table().num_rows
            ),
        }
        assert calls["json"](0) == calls["duckdb"](0) > 500
        found = interleaved(calls, ROUNDS)
        commands: list[dict[str, object]] = []
        get = client.get
        monkeypatch.setattr(client, "get", lambda command, **more: (commands.append(command), get(command, **more))[1])
        duckdb.sql("SELECT sum(ndv) FROM d JOIN t USING (table_name) WHERE d.table_schema = 'schema3'").fetchall()
        columns = [sorted(command["columns"]) for command in commands]  # type: ignore[call-overload]
    ratio = found["duckdb"] / found["json"]
    print(
        f"\nDuckDB over a dataset {found['duckdb']:.2f} ms (over the same rows in memory {found['memory']:.2f}), "
        f"JSON {found['json']:.2f} ms: {ratio:.2f}; a join reads {columns}"
    )
    assert ratio <= 1.3
    assert all(set(each) <= {"ndv", "table_name", "table_schema"} for each in columns)


def resident_bytes(uri: str) -> int:
    """Resident memory in bytes of the server that listens at a port."""
    port = int(uri.rpartition(":")[2])
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].partition(":")[2], 16) == port
    }
    inodes |= {
        line.split()[9]
        for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].partition(":")[2], 16) == port
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {link.readlink().name for link in (process / "fd").iterdir()}
        except OSError:
            continue
        if links & {f"socket:[{inode}]" for inode in inodes}:
            return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    raise AssertionError(f"nothing listens at {port}")


def test_idle_sessions(served: str) -> None:
    def session() -> tuple[dbapi.Connection, dbapi.Cursor]:
        connection = dbapi.connect(served, autocommit=True)
        cursor = connection.cursor()
        cursor.adbc_prepare("SELECT * FROM stats.columns WHERE table_name = ?")
        return connection, cursor

    for connection, cursor in [session() for _ in range(8)]:  # the first ones fill the caches
        cursor.close()
        connection.close()
    before = resident_bytes(served)
    sessions = [session() for _ in range(64)]
    grown = resident_bytes(served) - before
    for connection, cursor in sessions:
        cursor.close()
        connection.close()
    print(f"\n64 idle sessions: {grown / 1e6:.1f} MB")
    assert grown < 5e6
