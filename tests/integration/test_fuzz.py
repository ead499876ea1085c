"""Mutated tickets, commands, action bodies and put streams against a real server: accepted or rejected, never INTERNAL.

Seeded, and limited in time: a slow machine tries fewer mutants of each kind, in the same order. `bench_fuzz` tries many
more of them.
"""

from __future__ import annotations

import random
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from flight_server.process.parts import actions
from store.model.schemas import FLIGHTS
from tests.flight_server.core.wire.floecat_messages import SystemTableFlightCommand
from tests.flight_server.live_server import Client, serving
from tests.integration.mutations import encoded, mutant, noisy

ACTIONS = actions()

SECONDS = 1.2  # for each kind
AT_LEAST, AT_MOST = 20, 400  # mutants of each kind
ALLOWED = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, flight.FlightUnavailableError)
CLEAN = re.compile(r"'?\[[A-Z][A-Z_]*\] ")
LEAKS = re.compile(r"Traceback|\.py\b|\bSELECT\b|File \"|codec")
Attempts = Iterator[Callable[[], Any]]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("fuzz")) as server:
        yield server
        log = server.log.read_text()
    # INTERNAL is logged with its traceback, which shows its cause
    assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]
    assert "poorly aligned" not in log


@pytest.fixture
def client(served):
    with served.connect() as client:
        prepare(client)
        yield client


def prepare(client: Client) -> None:
    client.timeout = 2.0
    table = pa.Table.from_pylist(
        [
            {
                "table_catalog": "c",
                "table_schema": "s",
                "table_name": "t",
                "snapshot_id": 1,
                "column_name": "id",
                "logical_type": "INT",
                "row_count": 3,
                "min": "1",
                "max": "3",
            }
        ]
    )
    client.put({"table": "stats.columns", "mode": "upsert"}, table)


def try_attempts(client: Client, attempts: Attempts, most: int = AT_MOST, seconds: float = SECONDS) -> tuple[int, int]:
    """Runs attempts, which may be rejected in one clean line only; counts of tried and rejected ones."""
    deadline = time.monotonic() + seconds
    tried, refused, wrong = 0, 0, []
    for attempt in attempts:
        if tried >= most or (tried >= AT_LEAST and time.monotonic() > deadline):
            break
        tried += 1
        try:
            attempt()
        except ALLOWED as refusal:
            refused += 1
            message = str(refusal)
            if not CLEAN.match(message) or LEAKS.search(message):
                wrong.append(message)
        except (flight.FlightTimedOutError, TimeoutError):
            continue  # a capture that waits for a worker
        except pa.ArrowException as refusal:
            wrong.append(str(refusal))
    assert not wrong, "\n".join(wrong[:20])
    assert refused
    assert client.act("health")[0]["status"] == "ok"
    return tried, refused


# Reads.

COMMANDS = [
    {
        "table": "stats.columns",
        "columns": ["column_name", "ndv"],
        "limit": 3,
        "snapshot": "current",
        "version": 1,
        "allow_stale": True,
        "predicates": [{"column": "table_name", "op": "EQ", "values": ["t"]}],
        "query_id": "q",
        "output_format": "ROWS",
    },
    {
        "table": "stats.files",
        "snapshot": 1,
        "filter": {
            "or": [
                {"column": "row_count", "op": "BETWEEN", "values": [1, "9"]},
                {"not": {"column": "file_path", "op": "IS_NULL"}},
                {"and": [{"column": "captured_at", "op": "GTE", "values": ["2026-01-01T00:00:00Z"]}]},
            ]
        },
    },
    *(
        {
            "table": name,
            "filter": {"column": FLIGHTS[name].schema.names[-1], "op": "IN", "values": ["a", 1, None, True]},
        }
        for name in FLIGHTS
    ),
]


def commands(client: Client, rng: random.Random) -> Attempts:
    while True:
        body = mutant(rng.choice(COMMANDS), rng)
        data = encoded(body) if rng.random() < 0.8 else noisy(encoded(body), rng)
        yield partial(client.read, data)
        yield partial(client.get, data)


def protobuf_commands(client: Client, rng: random.Random) -> Attempts:
    message = SystemTableFlightCommand(query_id="q", required_columns=["name"])
    message.target.name.name = "sys.flights"
    message.predicates.add(column="name", op=7, values=["sys.flights", "x"])
    data = message.SerializeToString()
    while True:
        yield partial(client.read, noisy(data, rng))


def sealed(plain: bytes) -> bytes:
    """A ticket of any bytes, in the format of the server's own."""
    body = zlib.compress(plain)
    return b"\x01" + struct.pack("<I", zlib.crc32(body)) + body


def tickets(client: Client, rng: random.Random) -> Attempts:
    good = client.info({"table": "stats.columns", "snapshot": "current"}).endpoints[0].ticket.ticket
    forged = {"table": "stats.columns", "snapshot": "current", "pins": [[1, 1], [2, 2]]}
    deep = b"[" * 100_000

    for plain in (deep, b'{"pins": ' + deep, b"[]", b"1", b'"x"', b"null", b"\xff", b"", b" " * (9 << 20)):
        yield partial(client.get, sealed(plain))
    while True:
        yield partial(client.get, noisy(good, rng))
        yield partial(client.get, sealed(encoded(mutant(forged, rng))))


def other_descriptors(client: Client, rng: random.Random) -> Attempts:
    while True:
        path = rng.choices(["stats", "columns", "", ".", "é", "stats.columns", "\x00"], k=rng.randrange(4))
        descriptor = flight.FlightDescriptor.for_path(*path)
        yield partial(client.flight.get_flight_info, descriptor, client.options())
        yield partial(client.flight.get_schema, descriptor, client.options())


# Actions.

BODIES: dict[str, Any] = {
    "register_connector": {"catalog": "l", "format": "parquet", "uri": "/no/such/place", "options": {"a": "b"}},
    "validate_connector": {"catalog": "l"},
    "drop_connector": {"catalog": "l"},
    "discover": {"catalog": "l", "table": "s.t", "full_rescan": True},
    "capture": {
        "requests": [
            {
                "table": "c.s.t",
                "snapshot": "current",
                "target": {"kind": "COLUMN", "column_id": 1},
                "kinds": ["NDV"],
                "column_selectors": ["#1"],
                "mode": "ASYNC",
                "latency_budget_ms": 0,
                "sampling": "NONE",
            }
        ]
    },
    "resolve": {
        "requests": [
            {
                "table": "c.s.t",
                "snapshot": 1,
                "latency_budget_ms": 0,
                "mode": "SYNC",
                "target": {
                    "kind": "EXPRESSION",
                    "engine_kind": "e",
                    "engine_expression_key": "k",
                    "engine_version": "1",
                },
            }
        ]
    },
    "get_job": {"job_id": "x"},
    "cancel_job": {"job_id": "x"},
    "wait_job": {"job_id": "x"},
    "lease_job": {
        "worker_id": "w",
        "kinds": ["job"],
        "wait_seconds": 0,
        "engines": [
            {
                "engine_id": "e",
                "priority": 1,
                "connectors": [],
                "target_kinds": ["TABLE"],
                "statistic_kinds": "{}",
                "execution_modes": ["SYNC"],
                "sampling": ["NONE"],
            }
        ],
    },
    "renew_lease": {"job_id": "x", "lease_token": "t", "progress": 0.5, "message": "m"},
    "declare_listing": {
        "job_id": "x",
        "lease_token": "t",
        "snapshot_id": 1,
        "mark": "m",
        "removed": ["f"],
        "base": {"snapshot_id": 1, "mark": "m"},
    },
    "segment_place": {"job_id": "x", "lease_token": "t"},
    "add_segment": {
        "job_id": "x",
        "lease_token": "t",
        "table": "stats.files",
        "snapshot_id": 1,
        "file": "f",
        "digest": "d",
        "size_bytes": 1,
        "rows": 1,
        "extra": True,
        "whole": False,
    },
    "finish_job": {
        "job_id": "x",
        "lease_token": "t",
        "outcomes": [],
        "decisions": [],
        "result": {},
        "final": True,
        "listings": [{"snapshot_id": 1, "mark": "m"}],
    },
    "finish_jobs": {
        "finishes": [{"job_id": "x", "lease_token": "t"}],
        "rows": [{"table": "stats.columns", "ipc": "", "counts": [[0, 1]]}],
    },
    "return_leases": {"lease_tokens": ["t"]},
    "delete_stats": {"table": "c.s.none", "snapshot": 1, "target": {"kind": "COLUMN_GROUP", "column_ids": [1, 2]}},
    "expire": {"table": "c.s.t", "dry_run": True},
    "stats_meta": {"table": "c.s.t", "snapshot": 1, "target": {"kind": "FILE", "file_path": "f"}},
    "merge_sketches": {
        "table": "c.s.t",
        "snapshot": 1,
        "column": "id",
        "partitions": [{"p": "1"}, '{"p": 2}'],
        "with": {"table": "c.s.t", "snapshot": "current", "column": "id"},
    },
    "publish": {"table": "c.s.t", "snapshot": 1, "to": "iceberg"},
    "withdraw": {"table": "c.s.t", "to": "iceberg", "options": {"x": "y"}},
    "scan_system_table": {
        "query_id": "q",
        "table": "sys.flights",
        "required_columns": ["name"],
        "predicates": [{"column": "name", "op": "IN", "values": ["x", 1]}],
        "output_format": "ROWS",
    },
    "read": {"table": "stats.columns", "limit": 3},
}


def action_bodies(client: Client, rng: random.Random) -> Attempts:
    while True:
        for name in [*ACTIONS, "no such action"]:
            changed = mutant(BODIES.get(name, {"table": "c.s.t", "snapshot": 1}), rng)
            data = encoded(changed) if rng.random() < 0.9 else noisy(encoded(changed), rng)
            yield partial(client.act_raw, name, data)


def workers(client: Client, rng: random.Random, directory: Path) -> Attempts:
    """Bodies of a worker with a valid lease."""
    (directory / "t").mkdir()
    pq.write_table(pa.table({"id": [1]}), directory / "t" / "a.parquet")
    client.act("register_connector", {"catalog": "w", "format": "parquet", "uri": str(directory)})
    client.act("discover", {"catalog": "w"})

    def leased() -> dict[str, Any]:
        for _ in range(50):
            if found := client.act("lease_job", {"worker_id": "w", "kinds": ["job"], "wait_seconds": 0.2}):
                return found[0]
            client.act("capture", {"requests": [{"table": "w.default.t", "mode": "ASYNC"}]})
        raise AssertionError("no lease")

    while True:
        lease = leased()
        key = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
        snapshot_id = lease["payload"]["requests"][0]["snapshot_id"]
        outcome = {
            "snapshot_id": snapshot_id,
            "storage_id": "table",
            "outcome": "CAPTURED",
            "engine_id": "e",
            "detail": "",
        }
        renewal = mutant({"progress": 0.5, "message": "m"}, rng)
        if isinstance(renewal, dict):
            yield partial(client.act_raw, "renew_lease", encoded(key | renewal))
        body = mutant(
            {
                "outcomes": [outcome | {"attributes": {}}],
                "message": "m",
                "final": True,
                "decisions": [outcome | {"target_kind": "TABLE", "elapsed_ms": 1.5}],
            },
            rng,
        )
        if isinstance(body, dict):
            yield partial(client.act_raw, "finish_job", encoded(key | body))
        end = key | {"outcomes": [outcome | {"attributes": {}}], "final": True}
        yield partial(client.act_raw, "finish_job", encoded(end))


# Puts.


def rows(rng: random.Random, name: str) -> pa.Table:
    """Rows of a flight's columns and types, some with invalid values or other columns."""
    schema = FLIGHTS[name].schema
    count = rng.randrange(4)
    columns = {}
    for field in schema:
        if rng.random() < 0.3 and not field.name.startswith(("table_", "snapshot")):
            continue
        columns[field.name] = column(rng, field, count)
    if rng.random() < 0.1:
        columns[rng.choice(["", "x", "TABLE_NAME", "min "])] = pa.nulls(count)
    return pa.table(columns)


WORDS = [
    "c",
    "s",
    "t",
    "",
    " ",
    "\x00",
    "a.b",
    '"',
    "INT",
    "STRING",
    "DECIMAL(38,2)",
    "TIMESTAMP",
    "1",
    "-0",
    "NaN",
    "9" * 400,
    "DATA",
    "NDV",
    "CAPTURED",
    "COMPLETE",
    "TABLE",
    "table",
    "column-0000000000000000001",
    "{}",
    "[",
    "2026-01-01",
    "SYNC",
    "apache-datasketches-theta-v1",
    "ENGINE_COMPUTED",
    "é",
    "COLUMN",
]


def column(rng: random.Random, field: pa.Field, count: int) -> pa.Array:
    if rng.random() < 0.05:
        return rng.choice([pa.nulls(count), pa.array([[1]] * count, pa.list_(pa.int64())), pa.array([b"\xff"] * count)])
    arrow_types = pa.types
    fixed = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    if field.name in fixed and rng.random() < 0.9:
        return pa.array([fixed[field.name]] * count, field.type)
    if arrow_types.is_list(field.type) and arrow_types.is_struct(field.type.value_type):
        parts = [column(rng, part, count) for part in field.type.value_type.fields]
        if any(values.type != part.type for values, part in zip(parts, field.type.value_type.fields, strict=True)):
            return pa.nulls(count)
        elements = pa.StructArray.from_arrays(parts, fields=field.type.value_type.fields)
        return pa.ListArray.from_arrays(list(range(count + 1)), elements)
    makers: list[tuple[Callable[[pa.DataType], bool], Callable[[], Any]]] = [
        (arrow_types.is_string, lambda: rng.choice(WORDS)),
        (arrow_types.is_binary, lambda: rng.randbytes(rng.randrange(40))),
        (arrow_types.is_integer, lambda: rng.choice([0, 1, 2, 3, -1, 2**31 - 1, -(2**31)])),
        (arrow_types.is_floating, lambda: rng.choice([0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), 1e308])),
        (arrow_types.is_boolean, lambda: rng.random() < 0.5),
        (arrow_types.is_timestamp, lambda: rng.choice([0, 1, -(2**62), 2**62])),
    ]
    make = next((make for fits, make in makers if fits(field.type)), lambda: [rng.choice([1, 2, 3])] * 2)
    if arrow_types.is_list(field.type) and arrow_types.is_string(field.type.value_type):
        make = lambda: [rng.choice(WORDS)] * rng.randrange(3)  # noqa: E731
    values = [None if rng.random() < 0.15 else make() for _ in range(count)]
    array = pa.array(values, pa.int64() if arrow_types.is_timestamp(field.type) else field.type)
    return array.cast(field.type)


WRITABLE = [name for name, found in FLIGHTS.items() if found.writable]


def puts(client: Client, rng: random.Random) -> Attempts:
    command = {"table": "stats.columns", "mode": "upsert", "idempotency_key": "k"}
    while True:
        name = rng.choice(WRITABLE)
        descriptor = {"table": name, "mode": rng.choice(["create", "upsert", "replace_snapshot"])}
        table = rows(rng, name)
        yield partial(client.put, descriptor, table)
        yield partial(put_command, client, encoded(mutant(command, rng)), table)


def put_command(client: Client, command: bytes, table: pa.Table) -> None:
    writer, reader = client.flight.do_put(flight.FlightDescriptor.for_command(command), table.schema, client.options())
    with writer:
        writer.write_table(table)
        writer.done_writing()
        reader.read()


def corrupt_batch(rng: random.Random) -> pa.RecordBatch:
    """A batch with invalid buffers: offsets out of range, texts that are not UTF-8."""
    good = FLIGHTS["stats.columns"].schema
    names = ["table_catalog", "table_schema", "table_name", "column_name", "logical_type", "min", "max"]
    count = 3
    columns = []
    for _ in names:
        offsets = [0, 1, 2, 3]
        if rng.random() < 0.3:  # the client itself checks the first and the last
            offsets[rng.choice([1, 2])] = rng.choice([-1, 2**31 - 1, 1000, 0, -(2**31)])
        data = rng.choice([b"abc", b"\xff\xfe\xfd", b"\xc3\x28a", b"1" * 3])
        buffers = [None, pa.py_buffer(struct.pack("<4i", *offsets)), pa.py_buffer(data)]
        columns.append(pa.StringArray.from_buffers(count, buffers[1], buffers[2]))
    columns.append(pa.array([1] * count, pa.int64()))
    schema = pa.schema([*((name, pa.string()) for name in names), ("snapshot_id", good.field("snapshot_id").type)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def batches_whose_buffers_do_not_fit(client: Client, rng: random.Random) -> Attempts:
    command = encoded({"table": "stats.columns", "mode": "upsert"})

    def attempt(batch: pa.RecordBatch) -> None:
        writer, reader = client.flight.do_put(
            flight.FlightDescriptor.for_command(command), batch.schema, client.options()
        )
        with writer:
            writer.write_batch(batch)
            writer.done_writing()
            reader.read()

    while True:
        yield partial(attempt, corrupt_batch(rng))


# Raw gRPC messages, which no Flight client would send.


def field(number: int, data: bytes) -> bytes:
    """A protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def flight_data(message: pa.Buffer, descriptor: bytes = b"") -> bytes:
    """FlightData of an IPC message."""
    read = pa.ipc.read_message(message)
    prefix = field(1, descriptor) if descriptor else b""
    return prefix + field(2, read.metadata.to_pybytes()) + field(1000, read.body.to_pybytes() if read.body else b"")


def raw_calls(client: Client, rng: random.Random) -> Attempts:
    """Mutated messages of every method, mostly put streams."""
    channel = grpc.insecure_channel(client.uri.removeprefix("grpc://"))
    command = encoded({"table": "stats.columns", "mode": "upsert"})
    descriptor = b"\x08\x02" + field(2, command)  # type CMD
    row = {
        "table_catalog": "c",
        "table_schema": "s",
        "table_name": "t",
        "snapshot_id": 1,
        "column_name": "id",
        "min": "1",
        "row_count": 3,
    }
    batch = pa.RecordBatch.from_pylist([row] * 3)
    stream = [flight_data(batch.schema.serialize(), descriptor), *[flight_data(batch.serialize())] * 2]
    single = {
        "DoGet": field(1, b'{"table": "stats.columns"}'),
        "GetFlightInfo": descriptor,
        "GetSchema": descriptor,
        "DoAction": field(1, b"read") + field(2, b'{"table": "stats.columns"}'),
        "ListFlights": field(1, b"stats."),
    }

    def call(method: str, *messages: bytes) -> None:
        stream_call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")
        try:
            list(stream_call(iter(messages), timeout=client.timeout))
        except grpc.RpcError as refusal:
            raise flight_error(refusal) from None

    while True:
        frames = list(stream)
        at = rng.randrange(len(frames))
        match rng.randrange(8):
            case 0:
                del frames[at]
            case 1:
                frames.insert(at, rng.choice(frames))
            case _:
                frames[at] = noisy(frames[at], rng)
        yield partial(call, "DoPut", *frames)
        method = rng.choice(list(single))
        yield partial(call, method, noisy(single[method], rng))


def flight_error(refusal: grpc.RpcError) -> Exception:
    """The error that a Flight client would raise, as far as `try_attempts` needs it."""
    code, message = refusal.code(), refusal.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimeoutError(message)
    ours = CLEAN.match(message) is not None
    # gRPC and Flight's own C++ reject some messages first, with messages of their own
    if (ours and code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)) or LEAKS.search(message):
        return pa.ArrowException(f"{code}: {message}")
    return pa.ArrowInvalid(message if ours else f"[{code.name}] {message}")


KINDS: dict[str, Callable[..., Attempts]] = {
    kind.__name__: kind
    for kind in (
        commands,
        protobuf_commands,
        tickets,
        other_descriptors,
        action_bodies,
        puts,
        batches_whose_buffers_do_not_fit,
        raw_calls,
    )
}


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_requests_are_accepted_or_rejected_cleanly(client, kind):
    try_attempts(client, KINDS[kind](client, random.Random(kind)))
    check_readable(client)


def test_mutated_bodies_of_a_worker_are_accepted_or_rejected_cleanly(client, tmp_path):
    try_attempts(client, workers(client, random.Random(6), tmp_path))
    check_readable(client)


def check_readable(client: Client) -> None:
    """Reads everything that mutants may have stored: statistics, and engines of workers."""
    for name in (*WRITABLE, "stats.histograms", "stats.most_common_values"):
        client.read({"table": name, "snapshot": "current", "allow_stale": True})
    client.read({"table": "sys.engines"})
