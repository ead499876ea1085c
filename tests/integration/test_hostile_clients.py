"""Clients that want to harm: after each attack, a point read is as fast as before and the memory is free again."""

from __future__ import annotations

import base64
import contextlib
import random
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_server.core.wire.flight_sql import write_any
from tests.flight_server.live_server import Client, LiveServer, serving

ARROW_BYTES = 300 << 20  # the server's limit of Arrow memory
SLOWER_SECONDS = 0.05  # most that an attack may cost a later point read
SETTLE_SECONDS = 45.0  # within which both have to hold again
GROWTH = 1.1  # most that it may cost in memory
REFUSED = (pa.ArrowException, flight.FlightError, OSError)
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "big", "snapshot_id": 1}
POINT = {
    "table": "stats.file_columns",
    "predicates": [
        {"column": "file_path", "op": "EQ", "values": ["part-00077"]},
        {"column": "column_id", "op": "EQ", "values": [7]},
    ],
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
UNFINISHED_HEADERS = bytes([0, 0, 20, 1, 0, 0, 0, 0, 1]) + b"\x83\x86"  # a frame of which 18 bytes never come


def rows(count: int, **more: pa.Array) -> pa.Table:
    return pa.table({name: pa.repeat(value, count) for name, value in KEY.items()} | more)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[LiveServer]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serving(tmp_path_factory.mktemp("hostile"), "-o", f"arrow_memory_bytes={ARROW_BYTES}") as server:
        with server.connect() as client:
            count = 50_000
            paths = pa.array([f"part-{number // 100:05d}" for number in range(count)])
            ids = pa.array([number % 100 + 1 for number in range(count)])
            mins = pa.array([f"{number:064d}" for number in range(count)])
            client.put("stats.file_columns", rows(count, file_path=paths, column_id=ids, row_count=ids, min=mins))
        for attack in (bombs, deep_json, in_lists, foldings, slow_readers, cancelled_calls):
            attack(server, 1)  # fills caches, which have limits of their own, starts threads, imports
        yield server


def point_read_seconds(client: Client) -> float:
    def once() -> float:
        started = time.perf_counter()
        assert client.get(POINT).num_rows == 1
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(15))


def memory(server: LiveServer) -> int:
    with Path(f"/proc/{server.process.pid}/smaps_rollup").open() as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss"))


@contextlib.contextmanager
def unharmed(server: LiveServer) -> Iterator[None]:
    """Checks that what happens in the context leaves the server as fast and as small as it was before."""
    with server.connect() as client:
        seconds, size = point_read_seconds(client), memory(server)
        yield
        until = time.monotonic() + SETTLE_SECONDS
        now, after = float("inf"), 0
        while (now >= seconds + SLOWER_SECONDS or after >= size * GROWTH) and time.monotonic() < until:
            now = point_read_seconds(client)  # DuckDB's allocator gives memory back while its threads work
            time.sleep(0.5)
            after = memory(server)
    assert now < seconds + SLOWER_SECONDS
    assert after < size * GROWTH, f"{size >> 20} MiB before, {after >> 20} MiB after"


def together(count: int, attack: Callable[[int], Any]) -> None:
    """Runs an attack in as many threads, with another number each; the server may refuse it."""

    def one(number: int) -> None:
        with contextlib.suppress(*REFUSED):
            attack(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))


# Attacks; `scale` 1 is a short one.


def put_compressed(server: LiveServer, table: pa.Table, codec: str) -> None:
    options = flight.FlightCallOptions(timeout=60, write_options=pa.ipc.IpcWriteOptions(compression=codec))
    with server.connect() as client:
        writer, reader = client.flight.do_put(flight.FlightDescriptor.for_path("stats.columns"), table.schema, options)
        with writer:
            writer.write_table(table)
            writer.done_writing()
            reader.read()


def bombs(server: LiveServer, scale: int) -> None:
    """Batches of a few kilobytes that become hundreds of megabytes, with a mistake at their end or too large."""
    text = pa.array(["x" * 500_000] * 100)  # 50 MB, in each of the columns
    ids = pa.repeat(-1, 100)
    small = rows(100, column_id=ids, column_name=text, min=text)
    large = rows(
        100,
        column_id=ids,
        **dict.fromkeys(
            ("column_name", "min", "max", "logical_type", "producer", "completeness", "capture_mode", "engine_id"), text
        ),
    )
    together(2 * scale, lambda number: put_compressed(server, small, ("zstd", "lz4")[number % 2]))
    together(scale, lambda _: put_compressed(server, large, "zstd"))


def endless_nulls(server: LiveServer, scale: int) -> None:
    """Batches of no bytes with very many rows, and dictionaries that repeat one long text."""
    many = pa.Array.from_buffers(pa.null(), 1 << 40, [None])
    names = [*KEY, "column_id"]
    nulls = pa.Table.from_batches([pa.RecordBatch.from_arrays([many] * len(names), names)])
    codes = pa.DictionaryArray.from_arrays(pa.repeat(0, 100_000), pa.array(["x" * 1_000_000]))
    texts = rows(100_000, column_id=pa.repeat(1, 100_000), column_name=codes)
    together(2 * scale, lambda number: put_compressed(server, (nulls, texts)[number % 2], "lz4"))


def inline_bombs(server: LiveServer, scale: int) -> None:
    stream = pa.BufferOutputStream()
    table = rows(300, column_id=pa.repeat(1, 300), column_name=pa.array(["x" * 1_000_000] * 300))
    with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    ipc = base64.b64encode(stream.getvalue()).decode()
    body = {"job_id": "x", "lease_token": "t", "rows": [{"table": "stats.columns", "ipc": ipc}] * 4}

    def finish(_: int) -> None:
        with server.connect() as client, pytest.raises(pa.ArrowInvalid, match="decompressed"):
            client.act("finish_job", body)

    together(2 * scale, finish)


def half_open(server: LiveServer, scale: int) -> None:
    """Connections that stop in the middle of a greeting, of a frame, or say nothing."""
    beginnings = (b"", PREFACE[:10], PREFACE, PREFACE + SETTINGS + UNFINISHED_HEADERS, b"GET / HTTP/1.1\r\nHost:")
    with contextlib.ExitStack() as sockets, server.connect() as client:
        for number in range(500 * scale):
            connection = sockets.enter_context(socket.create_connection(("127.0.0.1", port_of(server)), 30))
            with contextlib.suppress(OSError):
                connection.send(beginnings[number % len(beginnings)])
        assert point_read_seconds(client) < 1.0


def connections(server: LiveServer, scale: int) -> None:
    """Complete connections that all stay open."""
    with contextlib.ExitStack() as sockets, server.connect() as client:
        for _ in range(1000 * scale):
            connection = sockets.enter_context(socket.create_connection(("127.0.0.1", port_of(server)), 30))
            connection.send(PREFACE + SETTINGS)
        assert point_read_seconds(client) < 1.0


def port_of(server: LiveServer) -> int:
    return int(server.uri.rpartition(":")[2])


def deep_json(server: LiveServer, scale: int) -> None:
    deep = b"[" * 100_000
    nested = b'{"table": "stats.columns", "filter": ' + b'{"not": ' * 50_000 + b"1" + b"}" * 50_001
    conditions = b'{"table": "stats.columns", "filter": ' + b'{"and": [' * 50_000 + b"1" + b"]}" * 50_001

    def send(number: int) -> None:
        with server.connect() as client:
            for data in (deep, nested, conditions, b'{"table": ' + deep, b" " * (9 << 20)):
                for call in (client.info, client.get, lambda data: client.act("capture", data)):
                    with pytest.raises(REFUSED):
                        call(data)

    together(2 * scale, send)


def in_lists(server: LiveServer, scale: int) -> None:
    def send(number: int) -> None:
        names = [f"part-{value:09d}" for value in range(number % 2, number % 2 + 65_536)]
        with server.connect() as client:
            for values in (names, names + names):
                predicate = {"column": "file_path", "op": "IN", "values": values}
                client.get({"table": "stats.file_columns", "predicates": [predicate]})

    def send_sql(number: int) -> None:
        names = ", ".join(str(value) for value in range(number % 2, number % 2 + 4900))
        with server.connect() as client:
            client.info(statement(f"SELECT count(*) FROM stats.file_columns WHERE row_count + 0 IN ({names})"))

    together(2 * scale, send)
    together(2 * scale, send_sql)


def statement(sql: str) -> bytes:
    return write_any("CommandStatementQuery", (1, sql.encode()))


def foldings(server: LiveServer, scale: int) -> None:
    """Constants that become gigabytes, patterns that take minutes, joins of constants without end."""
    text = "'" + "a" * 20_000 + "'"
    doubled = "".join(f", c{i} AS (SELECT x || x AS x FROM c{i - 1})" for i in range(1, 30))
    values = ", ".join(f"({number})" for number in range(100))
    statements = (
        f"SELECT length(replace({text}, 'a', {text}))",
        "SELECT " + " + ".join(f"length(replace('{'a' * 5000}{i}', 'a', '{'b' * 5000}'))" for i in range(5)),
        f"WITH c0 AS (SELECT {text} AS x){doubled} SELECT length(x) FROM c29",
        f"SELECT regexp_matches({text}, '{'(.?){1000}' * 8}b')",
        "SELECT count(*) FROM " + ", ".join(f"(VALUES {values}) t{i}(x)" for i in range(8)),
    )

    def send(number: int) -> None:
        with server.connect() as client:
            client.info(statement(statements[number % len(statements)]))

    def run(number: int) -> None:
        with server.connect() as client:
            client.timeout = 1.0
            client.get(statement(statements[-1]))

    together(5 * scale, send)
    together(2 * scale, run)


def slow_readers(server: LiveServer, scale: int) -> None:
    """Streams of which nobody reads more than the first batch."""
    no_probe = [("grpc.http2.bdp_probe", 0)]
    clients = [flight.connect(server.uri, generic_options=no_probe) for _ in range(10 * scale)]
    readers = []
    for client in clients:
        reader = client.do_get(flight.Ticket(b'{"table": "stats.file_columns"}'))
        reader.read_chunk()
        readers.append(reader)
    with server.connect() as client:
        assert point_read_seconds(client) < 1.0
    for reader, client in zip(readers, clients, strict=True):
        reader.cancel()
        client.close()


def cancelled_calls(server: LiveServer, scale: int) -> None:
    """Every kind of call, given up after some milliseconds."""
    table = rows(2000, column_id=pa.array(range(1, 2001)))
    calls: tuple[Callable[[Client], Any], ...] = (
        lambda client: client.read({"table": "stats.file_columns"}),
        lambda client: client.get(
            {"table": "stats.file_columns", "predicates": [{"column": "min", "op": "GT", "values": ["5"]}]}
        ),
        lambda client: client.info(statement("SELECT min, count(*) AS n FROM stats.file_columns GROUP BY min")),
        lambda client: client.get(
            statement(
                "SELECT a.min, count(*) AS n FROM stats.file_columns a JOIN stats.file_columns b USING (min) GROUP BY 1"
            )
        ),
        lambda client: client.put({"table": "stats.columns", "mode": "upsert"}, table),
        lambda client: client.act("lease_job", {"worker_id": "w", "kinds": ["job"], "wait_seconds": 5}),
        lambda client: client.act("wait_job", {"job_id": "x"}),
        lambda client: client.act("read", {"table": "stats.file_columns"}),
        lambda client: client.act(
            "resolve",
            {
                "requests": [
                    {
                        "table": "lake.s.big",
                        "snapshot": 1,
                        "target": {"kind": "TABLE"},
                        "latency_budget_ms": 5000,
                        "mode": "SYNC",
                    }
                ]
            },
        ),
    )

    def send(number: int) -> None:
        chance = random.Random(number)
        for _ in range(20):
            with server.connect() as client, contextlib.suppress(*REFUSED):
                client.timeout = chance.choice((0.001, 0.005, 0.02, 0.1))
                chance.choice(calls)(client)

    together(8 * scale, send)


QUICK = (bombs, endless_nulls, inline_bombs, half_open, connections, deep_json, foldings, cancelled_calls)
ATTACKS = (*QUICK, in_lists, slow_readers)


@pytest.mark.parametrize("attack", QUICK, ids=lambda attack: attack.__name__)
def test_server_is_as_fast_and_as_small_after_an_attack(server: LiveServer, attack: Callable[[LiveServer, int], None]):
    with unharmed(server):
        attack(server, 1)


@pytest.mark.benchmark
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_server_withstands_heavy_attacks(server: LiveServer, attack: Callable[[LiveServer, int], None]):
    with unharmed(server):
        attack(server, 10)


def test_bomb_beyond_the_arrow_memory_is_refused_for_its_size(server: LiveServer):
    text = pa.array(["x" * 500_000] * 100)
    names = ("column_name", "min", "max", "logical_type", "producer", "completeness", "capture_mode", "engine_id")
    table = rows(100, column_id=pa.array(range(1, 101)), **dict.fromkeys(names, text))
    with pytest.raises(flight.FlightUnavailableError, match=r"RESOURCE_EXHAUSTED.*smaller batches"):
        put_compressed(server, table, "zstd")


def test_server_ends_soon_while_statements_are_bound(tmp_path: Path):
    text = "'" + "a" * 20_000 + "'"
    sql = "SELECT " + " || ".join(f"regexp_replace({text}, '(.?){{{30 + i}}}b', 'c')" for i in range(20))
    with serving(tmp_path) as server:
        going = True

        def ask() -> None:
            while going:
                with server.connect() as client, contextlib.suppress(*REFUSED):
                    client.info(statement(sql))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        started = time.monotonic()
        server.process.terminate()
        server.process.wait(30)
        seconds, going = time.monotonic() - started, False
        for thread in threads:
            thread.join()
    assert seconds < 15
