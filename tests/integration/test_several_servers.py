"""Two servers that share a PostgreSQL: a read waits for the generation that it names, by whichever road it comes."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.flight_server.live_server import Client, LiveServer, serving
from tests.store.postgres.postgres_server import postgres  # noqa: F401

KEY = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
HEADER = "x-statflight-min-generation"
READ: dict[str, Any] = {"table": "stats.columns"}
SCAN: dict[str, Any] = {"scan": "c.s.t"}
THETA = {"table": "c.s.t", "snapshot": 1, "column": "k"}


class Servers(NamedTuple):
    writer: Client
    reader: LiveServer
    pages: str


@pytest.fixture(scope="module")
def servers(postgres, tmp_path_factory) -> Iterator[Servers]:  # noqa: F811
    env = {"STATFLIGHT_STORE": postgres.new()}
    with ExitStack() as stack:
        places = [tmp_path_factory.mktemp(name) for name in ("writer", "reader")]
        writer = stack.enter_context(serving(places[0], "--watch-seconds", 0, env=env))
        reader = stack.enter_context(serving(places[1], "--watch-seconds", 0, "--http-port", 0, env=env))
        address = re.search(r"http://[^ /]+", reader.log.read_text())
        assert address is not None
        yield Servers(stack.enter_context(writer.connect()), reader, address[0])


def put(client: Client, value: int) -> None:
    row = KEY | {"column_id": 1, "column_name": "k", "row_count": value, "logical_type": "INT"}
    client.put({"table": "stats.columns", "mode": "upsert"}, pa.Table.from_pylist([row]))


def newest(client: Client) -> int:
    return client.read({"table": "sys.replication"})["generation"][0].as_py()


def by_statement(server: LiveServer, generation: int) -> Any:
    header = f"adbc.flight.sql.rpc.call_header.{HEADER}"
    with (
        flight_sql.connect(server.uri, db_kwargs={header: str(generation)}, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT row_count FROM stats.columns")
        return cursor.fetchall()


def by_page(pages: str, path: str, generation: int) -> Any:
    asked = urllib.request.Request(f"{pages}{path}", headers={HEADER: str(generation)})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


Road = Callable[[Servers, Client, int], Any]


def act(name: str, **body: Any) -> Road:
    return lambda _, reader, generation: reader.act(name, body | {"min_generation": generation})


ROADS: dict[str, Road] = {
    "read": lambda _, reader, least: reader.read(READ | {"min_generation": least}),
    "info": lambda _, reader, least: reader.info(READ, x_statflight_min_generation=str(least)),
    "scan": lambda _, reader, least: reader.get(SCAN | {"min_generation": least}),
    "info of a scan": lambda _, reader, least: reader.info(SCAN | {"min_generation": least}),
    "scan by header": lambda _, reader, least: reader.get(SCAN, x_statflight_min_generation=str(least)),
    "statement": lambda servers, _, least: by_statement(servers.reader, least),
    "page": lambda servers, _, least: by_page(servers.pages, "/index.json", least),
    "Iceberg": lambda servers, _, least: by_page(servers.pages, "/iceberg/v1/namespaces", least),
    "action by header": lambda _, reader, least: reader.act("health", x_statflight_min_generation=str(least)),
    "action read": lambda _, reader, least: reader.act_raw("read", READ | {"min_generation": least}),
    "scan_system_table": lambda _, reader, least: reader.act_raw(
        "scan_system_table", READ | {"query_id": "q", "min_generation": least}
    ),
    "answer": act("answer", sql="SELECT count(*) FROM c.s.t"),
    "estimate": act("estimate", table="c.s.t"),
    "resolve": act("resolve", requests=[{"table": "c.s.t", "target": {"kind": "COLUMN", "column_id": 1}}]),
    "stats_meta": act("stats_meta", table="c.s.t", snapshot=1, target={"kind": "COLUMN", "column_id": 1}),
    "merge_sketches": act("merge_sketches", **THETA),
    "get_job": act("get_job", job_id="none"),
    "wait_job": act("wait_job", job_id="none"),
}
MISSING = "NOT_CAPTURED|UNKNOWN_SKETCH|UNKNOWN_JOB|UNKNOWN_COLUMN"
"""Of the roads to what this table does not have; each comes after the wait."""


def outcome(road: Road, servers: Servers, generation: int) -> Any:
    with servers.reader.connect() as reader:
        try:
            return road(servers, reader, generation)
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"
        except (pa.ArrowException, flight.FlightError, flight_sql.Error) as error:
            return str(error)


def test_reads_by_all_roads_wait_for_their_generation(servers):
    put(servers.writer, 1)
    generation = newest(servers.writer) + 1
    begun = threading.Barrier(len(ROADS) + 1)

    def run(road: Road) -> Any:
        begun.wait(30)
        return outcome(road, servers, generation)

    with ThreadPoolExecutor(len(ROADS)) as threads:
        found = {name: threads.submit(run, road) for name, road in ROADS.items()}
        begun.wait(30)
        threading.Event().wait(1.0)  # in which a read that does not wait is answered
        early = [name for name, answer in found.items() if answer.done()]
        put(servers.writer, 2)
        answers = {name: answer.result() for name, answer in found.items()}
    assert early == []
    assert answers["read"]["row_count"].to_pylist() == [2]
    assert answers["statement"] == [(2,)]
    (resolved,) = answers["resolve"]
    assert resolved["record"]["row_count"] == 2
    refused = {name: text for name, text in answers.items() if isinstance(text, str) and not re.search(MISSING, text)}
    assert refused == {}


def test_reads_of_a_generation_that_does_not_come_are_refused(servers):
    ahead = newest(servers.writer) + 10**6
    with ThreadPoolExecutor(len(ROADS)) as threads:
        found = dict(zip(ROADS, threads.map(lambda road: outcome(road, servers, ahead), ROADS.values()), strict=True))
    answered = {name: text for name, text in found.items() if not re.search("LAGGING|has not come here", str(text))}
    assert answered == {}


@pytest.mark.parametrize("least", [-1, "soon", 1.5])
@pytest.mark.parametrize("road", ["read", "scan", "info of a scan", "answer", "estimate", "resolve", "get_job"])
def test_generation_that_is_none_is_refused(servers, road, least):
    assert "INVALID_ARGUMENT" in outcome(ROADS[road], servers, least)
