"""Replicas in an object store, and servers that are killed, paused, and taken over from."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import dbapi as flight_sql

from store.duckdb.database import Database
from store.replication import restore as restoring
from store.replication.join import Plan, start_writer
from store.replication.log import Log
from store.replication.place import open_place
from tests.flight_server.live_server import STATFLIGHT, Client, eventually
from tests.integration.aws_server import KEY, SECRET
from tests.store.replication.writing import note, notes

ROUNDS = int(os.environ.get("STATFLIGHT_KILL_ROUNDS", "1"))  # 500 for the full proof
LEASE_SECONDS = 4
SHIPPED_SECONDS = 3.0  # by then a write is shipped: 1, and what a busy machine adds
_LOCAL = "acknowledged once it is on the writer's disk"


@pytest.fixture
def bucket(aws, monkeypatch):
    variables = {
        "AWS_ENDPOINT_URL": aws.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{aws.bucket}/replica"


def test_a_replica_in_an_object_store(bucket, tmp_path):
    place = open_place(bucket)
    assert place.is_empty()
    database = Database(tmp_path / "a.duckdb")
    writer = start_writer(Plan(bucket, durable=True), database)
    try:
        for text in "ab":
            note(database, text)
        assert place.create("lease/000000000001", b"another") is False
    finally:
        writer.close()
        database.close()
    restoring.restore(Log(place), tmp_path / "restored.duckdb")
    assert notes(tmp_path / "restored.duckdb") == {"a", "b"}
    assert writer.row()["last_error"] is None


class Server:
    """`statflight serve` in a process of its own, which may be killed or paused."""

    def __init__(self, db: Path, *flags: object):
        self.log = db.with_suffix(".log").open("ab")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STATFLIGHT_")}
        durable = () if {"--follow", _LOCAL} & {*flags} else ("-o", "durability=replicated")
        self.process = subprocess.Popen(
            [STATFLIGHT, "serve", "--db", db, "--port", "0", "--workers", "0", "-o", "watch-seconds=0",
             "-o", f"writer-lease-seconds={LEASE_SECONDS}", *durable, *(str(flag) for flag in flags if flag != _LOCAL)],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=clean,
        )  # fmt: skip
        line = self.process.stdout.readline()
        found = re.search(r"listening on (grpc\S+)", line)
        assert found, db.with_suffix(".log").read_text()[-3000:]
        self.uri = found[1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


@contextlib.contextmanager
def putting(
    servers: list[Server], numbers: Iterator[int], acknowledged: dict[int, str], times: dict[int, float]
) -> Iterator[None]:
    """Puts one row after the other to each server in turn; records which server acknowledged which, and when."""
    stop = threading.Event()

    def run() -> None:
        clients: dict[str, Client] = {}
        while not stop.is_set():
            for server in list(servers):
                client = clients.setdefault(server.uri, Client(server.uri))
                client.timeout = 3.0
                number = next(numbers)
                with contextlib.suppress(pa.ArrowException, OSError):
                    client.put("stats.tables", row(number))
                    acknowledged[number], times[number] = server.uri, time.monotonic()
            stop.wait(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_header_limits_the_age_of_every_read(tmp_path):
    """Of Flight SQL, a planned scan and an action too."""
    place = tmp_path / "replica"
    servers = [Server(tmp_path / "a.duckdb", "--replicate-to", place)]
    try:
        servers.append(Server(tmp_path / "b.duckdb", "--follow", place))
        with Client(servers[0].uri) as writer:
            writer.put("stats.tables", row(1))
            assert rows_by_sql(servers[0], 0) == 1, "a writer never lags"
        eventually(lambda: rows_by_sql(servers[1], 60_000) == 1, ignoring=(Exception,))
        servers[0].signal(signal.SIGKILL)
        eventually(lambda: read_lag(servers[1]) > 100)
        assert rows_by_sql(servers[1], 600_000) == 1
        with pytest.raises(Exception, match="LAGGING"):
            rows_by_sql(servers[1], 100)
        with Client(servers[1].uri, x_statflight_max_lag_ms="100") as follower:
            scan = {"scan": {"table": "c.s.t1"}}
            for read in (lambda: follower.info(scan), lambda: follower.get(scan), lambda: follower.act("read", b"{}")):
                with pytest.raises(flight.FlightUnavailableError, match="LAGGING"):
                    read()
    finally:
        for server in servers:
            server.end()


def test_flight_info_names_followers_that_take_its_ticket(tmp_path):
    place = tmp_path / "replica"
    servers = [Server(tmp_path / "a.duckdb", "--replicate-to", place)]
    try:
        servers.append(Server(tmp_path / "b.duckdb", "--follow", place))
        named = f"followers={servers[1].uri}"
        servers.append(Server(tmp_path / "c.duckdb", "--follow", place, "-o", named))
        with Client(servers[0].uri) as writer:
            writer.put("stats.tables", row(1))
            assert writer.info({"table": "stats.tables"}).endpoints[0].locations == []
        for server in servers[1:]:
            eventually(lambda at=server: rows_by_sql(at, 60_000) == 1, ignoring=(Exception,))
        with Client(servers[2].uri) as third:
            (endpoint,) = third.info({"table": "stats.tables"}).endpoints
            here, there = (location.uri.decode() for location in endpoint.locations)
            rows = third.get(endpoint.ticket)
        assert here == "arrow-flight-reuse-connection://?"
        assert there == servers[1].uri
        with Client(there) as follower:
            assert follower.get(endpoint.ticket).equals(rows)
    finally:
        for server in servers:
            server.end()


def rows_by_sql(server: Server, max_lag_ms: int) -> int:
    header = "adbc.flight.sql.rpc.call_header.x-statflight-max-lag-ms"
    with (
        flight_sql.connect(server.uri, db_kwargs={header: str(max_lag_ms)}, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT * FROM stats.tables")
        return len(cursor.fetchall())


def read_lag(server: Server) -> int:
    with Client(server.uri) as client:
        return client.read({"table": "sys.replication"})["lag_ms"][0].as_py()


def row(number: int) -> pa.Table:
    return pa.table({"table_catalog": ["c"], "table_schema": ["s"], "table_name": [f"t{number}"],
                     "snapshot_id": [1], "row_count": [number]})  # fmt: skip


def role(server: Server) -> str:
    with Client(server.uri) as client:
        return client.read({"table": "sys.replication"})["role"][0].as_py()


@pytest.mark.parametrize(
    ("how", "flags"), [("killed", ()), ("paused", ()), ("partitioned", ()), ("killed", (_LOCAL,))],
    ids=["killed", "paused", "partitioned", "killed-local"],
)  # fmt: skip
def test_nothing_acknowledged_is_lost_and_never_two_writers_acknowledge(tmp_path, how, flags):
    """Without durability `replicated`, nothing that is older than the shipping interval is lost."""
    chance, place = random.Random(27), tmp_path / "replica"
    numbers, acknowledged, times = itertools.count(), {}, {}
    lost: set[int] = set()  # that may be lost

    place.mkdir()

    def started(at: int, *more: object) -> Server:
        (reach := tmp_path / f"reach{at}").symlink_to(place)  # its way to the place
        return Server(tmp_path / f"{at}.duckdb", "--replicate-to", reach, *flags, *more)

    writer = started(0)
    servers = [writer]
    try:
        for at in range(1, ROUNDS + 1):
            standby = started(at, "--standby")
            servers.append(standby)
            before = len(acknowledged)
            with putting(servers, numbers, acknowledged, times):
                eventually(lambda before=before: len(acknowledged) > before + 3)
                time.sleep(chance.uniform(0, 0.5))
                ended = time.monotonic()
                if how == "partitioned":
                    (tmp_path / f"reach{at - 1}").unlink()
                else:
                    writer.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                eventually(lambda standby=standby: role(standby) == "WRITER", ignoring=(pa.ArrowException,))
                eventually(lambda standby=standby: standby.uri in acknowledged.values())
                first = min(number for number, uri in acknowledged.items() if uri == standby.uri)
                if how == "paused":
                    writer.signal(signal.SIGCONT)
                elif how == "partitioned":
                    (tmp_path / f"reach{at - 1}").symlink_to(place)
                if how != "killed":
                    assert writer.process.wait(30) == 1  # it says that another one has taken over, and ends
            of_writer = [number for number, uri in acknowledged.items() if uri == writer.uri]
            assert [number for number in of_writer if number > first] == [], "two servers have acknowledged"
            if flags:
                lost.update(number for number in of_writer if times[number] > ended - SHIPPED_SECONDS)
            servers.remove(writer)
            writer.end()
            writer = standby
        path = tmp_path / "restored.duckdb"
        eventually(lambda: role(writer) == "WRITER")
        time.sleep(SHIPPED_SECONDS if flags else 0)
        restoring.restore(Log(open_place(str(place))), path)
        database = Database(path)
        kept = {name for (name,) in database.rows("SELECT table_name FROM tables")}
        database.close()
        assert {f"t{number}" for number in acknowledged if number not in lost} <= kept
    finally:
        for server in servers:
            server.end()
