"""Mutated tickets, commands, action bodies and put streams against a real server: refused or answered, never INTERNAL.

Seeded, and bounded in time: a slow machine tries fewer mutants of each kind, in the same order.
"""

from __future__ import annotations

import json
import random
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_server.actions import ACTIONS
from flight_server.protocols.floecat import SystemTableFlightCommand
from store.schemas import FLIGHTS
from tests.flight_server.live_server import Client, serving

SECONDS = 1.2  # for each kind
AT_LEAST, AT_MOST = 20, 400  # mutants of each kind
ALLOWED = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, flight.FlightUnavailableError)
CLEAN = re.compile(r"'?\[[A-Z][A-Z_]*\] ")
FOUL = re.compile(r"Traceback|\.py\b|SELECT|File \"|codec")

SCALARS = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, 1e308, "", " ", "\x00", "é" * 50,
    "current", "stats.columns", "c.s.t", "table", "*", "'; DROP TABLE tables; --", "\ud800", "9" * 5000, "%s{0}",
]  # fmt: skip


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind < 5:
        return chance.choice(SCALARS)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = ["table", "column", "op", "values", "and", "or", "not", "kind", "column_id", "x", "outcome", "snapshot_id"]
    return {chance.choice(names): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def mutant(seed: Any, chance: random.Random) -> Any:
    """The seed with one of its parts, at any depth, gone, changed or doubled."""
    if isinstance(seed, dict) and seed and chance.random() < 0.85:
        key = chance.choice(list(seed))
        changed = dict(seed)
        match chance.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice([key + "x", key.upper(), "", "\x00"])] = changed.pop(key)
            case _:
                changed[key] = mutant(seed[key], chance)
        return changed
    if isinstance(seed, list) and seed and chance.random() < 0.85:
        at = chance.randrange(len(seed))
        match chance.randrange(6):
            case 0:
                return seed[:at] + seed[at + 1 :]
            case 1:
                return seed * chance.choice([2, 50])
            case _:
                return [*seed[:at], mutant(seed[at], chance), *seed[at + 1 :]]
    return value(chance)


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


def noisy(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 1:
                changed[at:at] = chance.randbytes(chance.randint(1, 8))
            case 2:
                del changed[at : at + chance.randint(1, 8)]
            case _:
                changed = changed[:at]
    return bytes(changed)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("fuzz")) as server:
        yield server
        log = server.log.read_text()
    # INTERNAL is logged with its trace: whoever meets one here sees where it comes from
    assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]


@pytest.fixture
def client(served):
    with served.connect() as client:
        client.timeout = 2.0
        table = pa.Table.from_pylist([
            {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "column_name": "id",
             "logical_type": "INT", "row_count": 3, "min": "1", "max": "3"}])  # fmt: skip
        client.put({"table": "stats.columns", "mode": "upsert"}, table)
        yield client


def hold(client: Client, attempts: Iterator[Callable[[], Any]]) -> None:
    """Each attempt is answered or refused in one clean line; the server lives."""
    deadline = time.monotonic() + SECONDS
    refused, wrong = 0, []
    for number, attempt in enumerate(attempts):
        if number >= AT_MOST or (number >= AT_LEAST and time.monotonic() > deadline):
            break
        try:
            attempt()
        except ALLOWED as refusal:
            refused += 1
            message = str(refusal)
            if not CLEAN.match(message) or FOUL.search(message):
                wrong.append(message)
        except flight.FlightTimedOutError:
            continue  # a capture that waits for a worker
        except pa.ArrowException as refusal:
            wrong.append(str(refusal))
    assert not wrong, "\n".join(wrong[:20])
    assert refused
    assert client.act("health")[0]["status"] == "ok"


# Reads.

COMMANDS = [
    {"table": "stats.columns", "columns": ["column_name", "ndv"], "limit": 3, "snapshot": "current", "version": 1,
     "allow_stale": True, "predicates": [{"column": "table_name", "op": "EQ", "values": ["t"]}], "query_id": "q",
     "output_format": "ROWS"},
    {"table": "stats.files", "snapshot": 1, "filter": {"or": [
        {"column": "row_count", "op": "BETWEEN", "values": [1, "9"]}, {"not": {"column": "file_path", "op": "IS_NULL"}},
        {"and": [{"column": "captured_at", "op": "GTE", "values": ["2026-01-01T00:00:00Z"]}]}]}},
    *({"table": name, "filter": {"column": FLIGHTS[name].schema.names[-1], "op": "IN", "values": ["a", 1, None, True]}}
      for name in FLIGHTS),
]  # fmt: skip


def test_commands(client):
    chance = random.Random(1)

    def attempts():
        while True:
            body = mutant(chance.choice(COMMANDS), chance)
            data = encoded(body) if chance.random() < 0.8 else noisy(encoded(body), chance)
            yield partial(client.read, data)
            yield partial(client.get, data)

    hold(client, attempts())


def test_protobuf_commands(client):
    chance = random.Random(2)
    message = SystemTableFlightCommand(query_id="q", required_columns=["name"])
    message.target.name.name = "sys.flights"
    message.predicates.add(column="name", op=7, values=["sys.flights", "x"])
    data = message.SerializeToString()

    def attempts():
        while True:
            yield partial(client.read, noisy(data, chance))

    hold(client, attempts())


def sealed(plain: bytes) -> bytes:
    """A ticket of whatever bytes, as well made as the server's own."""
    body = zlib.compress(plain)
    return b"\x01" + struct.pack("<I", zlib.crc32(body)) + body


def test_tickets(client):
    chance = random.Random(3)
    good = client.info({"table": "stats.columns", "snapshot": "current"}).endpoints[0].ticket.ticket
    forged = {"table": "stats.columns", "snapshot": "current", "pins": [[1, 1], [2, 2]]}
    deep = b"[" * 100_000

    def attempts():
        for plain in (deep, b'{"pins": ' + deep, b"[]", b"1", b'"x"', b"null", b"\xff", b"", b" " * (9 << 20)):
            yield partial(client.get, sealed(plain))
        while True:
            yield partial(client.get, noisy(good, chance))
            yield partial(client.get, sealed(encoded(mutant(forged, chance))))

    hold(client, attempts())


def test_other_descriptors(client):
    chance = random.Random(4)

    def attempts():
        while True:
            path = chance.choices(["stats", "columns", "", ".", "é", "stats.columns", "\x00"], k=chance.randrange(4))
            descriptor = flight.FlightDescriptor.for_path(*path)
            yield partial(client.flight.get_flight_info, descriptor, client.options())
            yield partial(client.flight.get_schema, descriptor, client.options())

    hold(client, attempts())


# Actions.

BODIES: dict[str, Any] = {
    "register_connector": {"catalog": "l", "format": "parquet", "uri": "/no/such/place", "options": {"a": "b"}},
    "validate_connector": {"catalog": "l"},
    "drop_connector": {"catalog": "l"},
    "discover": {"catalog": "l", "table": "s.t", "full_rescan": True},
    "capture": {"requests": [{"table": "c.s.t", "snapshot": "current", "target": {"kind": "COLUMN", "column_id": 1},
                              "kinds": ["NDV"], "column_selectors": ["#1"], "mode": "ASYNC", "latency_budget_ms": 0,
                              "sampling": "NONE"}]},
    "resolve": {"requests": [{"table": "c.s.t", "snapshot": 1, "latency_budget_ms": 0, "mode": "SYNC", "target": {
        "kind": "EXPRESSION", "engine_kind": "e", "engine_expression_key": "k", "engine_version": "1"}}]},
    "get_job": {"job_id": "x"},
    "cancel_job": {"job_id": "x"},
    "wait_job": {"job_id": "x"},
    "lease_job": {"worker_id": "w", "kinds": ["job"], "wait_seconds": 0, "engines": [
        {"engine_id": "e", "priority": 1, "connectors": [], "target_kinds": ["TABLE"], "statistic_kinds": "{}",
         "execution_modes": ["SYNC"], "sampling": ["NONE"]}]},
    "renew_lease": {"job_id": "x", "lease_token": "t", "progress": 0.5, "message": "m"},
    "finish_job": {"job_id": "x", "lease_token": "t", "outcomes": [], "decisions": [], "result": {}, "final": True},
    "delete_stats": {"table": "c.s.none", "snapshot": 1, "target": {"kind": "COLUMN_GROUP", "column_ids": [1, 2]}},
    "expire": {"table": "c.s.t", "dry_run": True},
    "stats_meta": {"table": "c.s.t", "snapshot": 1, "target": {"kind": "FILE", "file_path": "f"}},
    "merge_sketches": {"table": "c.s.t", "snapshot": 1, "column": "id", "partitions": [{"p": "1"}, '{"p": 2}'],
                       "with": {"table": "c.s.t", "snapshot": "current", "column": "id"}},
    "publish": {"table": "c.s.t", "snapshot": 1, "to": "iceberg"},
    "scan_system_table": {"query_id": "q", "table": "sys.flights", "required_columns": ["name"], "predicates": [
        {"column": "name", "op": "IN", "values": ["x", 1]}], "output_format": "ROWS"},
    "read": {"table": "stats.columns", "limit": 3},
}  # fmt: skip


def test_action_bodies(client):
    chance = random.Random(5)

    def attempts():
        while True:
            for name in [*ACTIONS, "no such action"]:
                changed = mutant(BODIES.get(name, {"table": "c.s.t", "snapshot": 1}), chance)
                data = encoded(changed) if chance.random() < 0.9 else noisy(encoded(changed), chance)
                yield partial(client.act_raw, name, data)

    hold(client, attempts())


def test_the_flight_of_engines_outlives_what_workers_say(client):
    # whatever the fuzzed leases said of their engines
    client.read({"table": "sys.engines"})


def test_what_workers_tell(client, tmp_path):
    """A worker's bodies under a lease that is good."""
    import pyarrow.parquet as pq

    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t" / "a.parquet")
    client.act("register_connector", {"catalog": "w", "format": "parquet", "uri": str(tmp_path)})
    client.act("discover", {"catalog": "w"})
    chance = random.Random(6)

    def leased() -> dict[str, Any]:
        for _ in range(50):
            if found := client.act("lease_job", {"worker_id": "w", "kinds": ["job"], "wait_seconds": 0.2}):
                return found[0]
            client.act("capture", {"requests": [{"table": "w.default.t", "mode": "ASYNC"}]})
        raise AssertionError("no lease")

    def attempts():
        while True:
            lease = leased()
            key = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
            snapshot_id = lease["payload"]["requests"][0]["snapshot_id"]
            told = {
                "snapshot_id": snapshot_id,
                "storage_id": "table",
                "outcome": "CAPTURED",
                "engine_id": "e",
                "detail": "",
            }
            renewal = mutant({"progress": 0.5, "message": "m"}, chance)
            if isinstance(renewal, dict):
                yield partial(client.act_raw, "renew_lease", encoded(key | renewal))
            body = mutant({"outcomes": [told | {"attributes": {}}], "message": "m", "final": True, "decisions": [
                told | {"target_kind": "TABLE", "elapsed_ms": 1.5}]}, chance)  # fmt: skip
            if isinstance(body, dict):
                yield partial(client.act_raw, "finish_job", encoded(key | body))
            end = key | {"outcomes": [told | {"attributes": {}}], "final": True}
            yield partial(client.act_raw, "finish_job", encoded(end))

    hold(client, attempts())


# Puts.


def rows(chance: random.Random, name: str) -> pa.Table:
    """Rows of a flight's own columns and types, some values and some columns not as they should be."""
    schema = FLIGHTS[name].schema
    count = chance.randrange(4)
    columns = {}
    for field in schema:
        if chance.random() < 0.3 and not field.name.startswith(("table_", "snapshot")):
            continue
        columns[field.name] = column(chance, field, count)
    if chance.random() < 0.1:
        columns[chance.choice(["", "x", "TABLE_NAME", "min "])] = pa.nulls(count)
    return pa.table(columns)


WORDS = [
    "c", "s", "t", "", " ", "\x00", "a.b", '"', "INT", "STRING", "DECIMAL(38,2)", "TIMESTAMP", "1", "-0", "NaN",
    "9" * 400, "DATA", "NDV", "CAPTURED", "COMPLETE", "TABLE", "table", "column-0000000000000000001", "{}", "[",
    "2026-01-01", "SYNC", "apache-datasketches-theta-v1", "ENGINE_COMPUTED", "é", "COLUMN",
]  # fmt: skip


def column(chance: random.Random, field: pa.Field, count: int) -> pa.Array:
    if chance.random() < 0.05:
        return chance.choice(
            [pa.nulls(count), pa.array([[1]] * count, pa.list_(pa.int64())), pa.array([b"\xff"] * count)]
        )
    given = pa.types
    fixed = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    if field.name in fixed and chance.random() < 0.9:
        return pa.array([fixed[field.name]] * count, field.type)
    makers: list[tuple[Callable[[pa.DataType], bool], Callable[[], Any]]] = [
        (given.is_string, lambda: chance.choice(WORDS)),
        (given.is_binary, lambda: chance.randbytes(chance.randrange(40))),
        (given.is_integer, lambda: chance.choice([0, 1, 2, 3, -1, 2**31 - 1, -(2**31)])),
        (given.is_floating, lambda: chance.choice([0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), 1e308])),
        (given.is_boolean, lambda: chance.random() < 0.5),
        (given.is_timestamp, lambda: chance.choice([0, 1, -(2**62), 2**62])),
    ]
    make = next((make for fits, make in makers if fits(field.type)), lambda: [chance.choice([1, 2, 3])] * 2)
    if given.is_list(field.type) and given.is_string(field.type.value_type):
        make = lambda: [chance.choice(WORDS)] * chance.randrange(3)  # noqa: E731
    made = [None if chance.random() < 0.15 else make() for _ in range(count)]
    array = pa.array(made, pa.int64() if given.is_timestamp(field.type) else field.type)
    return array.cast(field.type)


def test_puts(client):
    chance = random.Random(7)
    writable = [name for name, found in FLIGHTS.items() if found.writable]
    command = {"table": "stats.columns", "mode": "upsert", "idempotency_key": "k"}

    def attempts():
        while True:
            name = chance.choice(writable)
            told = {"table": name, "mode": chance.choice(["create", "upsert", "replace_snapshot"])}
            table = rows(chance, name)
            yield partial(client.put, told, table)
            yield partial(put_raw, client, encoded(mutant(command, chance)), table)

    hold(client, attempts())
    for name in (*writable, "stats.histograms", "stats.most_common_values"):
        client.read({"table": name, "snapshot": "current", "allow_stale": True})


def put_raw(client: Client, command: bytes, table: pa.Table) -> None:
    writer, reader = client.flight.do_put(flight.FlightDescriptor.for_command(command), table.schema, client.options())
    with writer:
        writer.write_table(table)
        writer.done_writing()
        reader.read()


def hurt(chance: random.Random) -> pa.RecordBatch:
    """A batch whose buffers do not fit: offsets that point elsewhere, texts that are no UTF-8."""
    good = FLIGHTS["stats.columns"].schema
    names = ["table_catalog", "table_schema", "table_name", "column_name", "logical_type", "min", "max"]
    count = 3
    columns = []
    for _ in names:
        offsets = [0, 1, 2, 3]
        if chance.random() < 0.3:  # the first and the last are looked at by this side already
            offsets[chance.choice([1, 2])] = chance.choice([-1, 2**31 - 1, 1000, 0, -(2**31)])
        data = chance.choice([b"abc", b"\xff\xfe\xfd", b"\xc3\x28a", b"1" * 3])
        buffers = [None, pa.py_buffer(struct.pack("<4i", *offsets)), pa.py_buffer(data)]
        columns.append(pa.StringArray.from_buffers(count, buffers[1], buffers[2]))
    columns.append(pa.array([1] * count, pa.int64()))
    schema = pa.schema([*((name, pa.string()) for name in names), ("snapshot_id", good.field("snapshot_id").type)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def test_batches_whose_buffers_do_not_fit(client):
    chance = random.Random(8)
    command = encoded({"table": "stats.columns", "mode": "upsert"})

    def attempt(batch: pa.RecordBatch) -> None:
        writer, reader = client.flight.do_put(
            flight.FlightDescriptor.for_command(command), batch.schema, client.options()
        )
        with writer:
            writer.write_batch(batch)
            writer.done_writing()
            reader.read()

    def attempts():
        while True:
            yield partial(attempt, hurt(chance))

    hold(client, attempts())
