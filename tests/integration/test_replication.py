"""Replicas in an object store, and reads of followers."""

from __future__ import annotations

import signal
import time

import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import dbapi as flight_sql

from store.duckdb.commit import Commit
from store.duckdb.database import Database
from store.places import open_place
from store.replication import restore as restoring
from store.replication.join import Plan, start_writer
from store.replication.log import Log
from tests.flight_server.live_server import Client, eventually
from tests.integration.replica_servers import Server, aws_variables, row
from tests.store.replication.writing import note, notes


@pytest.fixture
def bucket(aws, monkeypatch):
    for name, value in aws_variables(aws.endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{aws.bucket}/replica"


def test_a_replica_in_an_object_store(bucket, tmp_path):
    place = open_place(bucket)
    assert place.is_empty()
    database = Database(tmp_path / "a.duckdb")
    writer = start_writer(Plan(bucket, durable=True), database)
    database.phases = Commit(guard=writer, ship=writer)
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


def test_a_header_limits_the_age_of_every_read(tmp_path):
    """Of Flight SQL, a planned scan and an action too."""
    place = tmp_path / "replica"
    servers = [Server(tmp_path / "a.duckdb", tmp_path / "a.log", "--replicate-to", place)]
    try:
        servers.append(Server(tmp_path / "b.duckdb", tmp_path / "b.log", "--follow", place))
        with Client(servers[0].uri) as writer:
            writer.put("stats.tables", row(1))
            assert rows_by_sql(servers[0], 0) == 1, "a writer never lags"
        eventually(lambda: rows_by_sql(servers[1], 60_000) == 1, ignoring=(Exception,))
        servers[0].signal(signal.SIGKILL)
        killed = time.monotonic()
        # The last heartbeat may still be on its way: it is as old as the kill at least.
        eventually(lambda: time.monotonic() - killed > 1 and read_lag(servers[1]) > 1_000)
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
    servers = [Server(tmp_path / "a.duckdb", tmp_path / "a.log", "--replicate-to", place)]
    try:
        servers.append(Server(tmp_path / "b.duckdb", tmp_path / "b.log", "--follow", place))
        named = f"followers={servers[1].uri}"
        servers.append(Server(tmp_path / "c.duckdb", tmp_path / "c.log", "--follow", place, "-o", named))
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
