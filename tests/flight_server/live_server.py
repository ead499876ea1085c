"""`statflight serve` in its own process, and a minimal client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

STATFLIGHT = Path(sys.executable).with_name("statflight")
STOPPED_WITHIN = 60


def eventually(probe: Callable[[], Any], within: float = 45.0, ignoring: tuple[type[Exception], ...] = ()) -> Any:
    """First truthy result of the probe. The deadline (seconds) only ends a failing test."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with contextlib.suppress(*ignoring):
            if found := probe():
                return found
        time.sleep(0.05)
    raise AssertionError(f"not so within {within} s")


def file_columns(count: int) -> pa.Table:
    """Rows of `stats.file_columns`, one per file."""
    return pa.table(
        {
            "table_catalog": pa.repeat("c", count),
            "table_schema": pa.repeat("s", count),
            "table_name": pa.repeat("t", count),
            "snapshot_id": pa.repeat(1, count),
            "file_path": [f"part-{number:060d}" for number in range(count)],
            "column_id": pa.repeat(1, count),
        }
    )


@dataclass
class LiveServer:
    uri: str
    log: Path  # its standard error
    process: subprocess.Popen[str]
    is_killed: bool = False

    def connect(self, **headers: str) -> Client:
        return Client(self.uri, **headers)

    def kill(self) -> None:
        """Ends the server as a crash would."""
        self.is_killed = True
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serving(
    directory: Path, *flags: object, env: dict[str, str] | None = None, program: Sequence[object] = (STATFLIGHT,)
) -> Iterator[LiveServer]:
    """A server on a free port with its database in the directory; SIGTERM at the end must exit with 0, unless it was
    killed. A flag given twice has its last value."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STATFLIGHT_")}
    command = [*program, "serve", "--db", directory / "stats.duckdb", "--port", "0", *map(str, flags)]
    if "--workers" not in flags:
        command += ["--workers", "0"]
    log = directory / "server.log"
    environment = clean | (env or {})
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r"listening on (grpc\S+)", line)
            assert found, (line, log.read_text())
            server = LiveServer(found[1], log, process)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=STOPPED_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
    assert server.is_killed or process.returncode == 0, log.read_text()[-4000:]


class Client:
    """Flight calls of the protocol: JSON commands in, tables and JSON out."""

    def __init__(self, uri: str, **headers: str):
        self.uri = uri
        self.flight = flight.connect(uri)
        self.headers = headers
        self.timeout = 30.0  # seconds

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.flight.close()

    def options(self, **headers: str) -> flight.FlightCallOptions:
        items = (self.headers | headers).items()
        return flight.FlightCallOptions(
            timeout=self.timeout, headers=[(name.replace("_", "-").encode(), value.encode()) for name, value in items]
        )

    def info(self, command: bytes | dict[str, Any], **headers: str) -> flight.FlightInfo:
        data = command if isinstance(command, bytes) else json.dumps(command).encode()
        return self.flight.get_flight_info(flight.FlightDescriptor.for_command(data), self.options(**headers))

    def get(self, ticket: bytes | dict[str, Any] | flight.Ticket, **headers: str) -> pa.Table:
        if isinstance(ticket, dict):
            ticket = json.dumps(ticket).encode()
        ticket = flight.Ticket(ticket) if isinstance(ticket, bytes) else ticket
        return self.flight.do_get(ticket, self.options(**headers)).read_all()

    def read(self, command: bytes | dict[str, Any], **headers: str) -> pa.Table:
        """GetFlightInfo, then DoGet."""
        return self.get(self.info(command, **headers).endpoints[0].ticket, **headers)

    def act_raw(self, name: str, body: bytes | dict[str, Any] = b"", **headers: str) -> list[bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        results = self.flight.do_action(flight.Action(name, data), self.options(**headers))
        return [result.body.to_pybytes() for result in results]

    def act(self, name: str, body: bytes | dict[str, Any] = b"", **headers: str) -> list[Any]:
        return [json.loads(result) for result in self.act_raw(name, body, **headers)]

    def put(self, command: str | dict[str, Any], rows: pa.Table, **headers: str) -> dict[str, Any]:
        """Counts returned for a put; a string command is the path of a flight."""
        if isinstance(command, str):
            descriptor = flight.FlightDescriptor.for_path(command)
        else:
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, reader = self.flight.do_put(descriptor, rows.schema, self.options(**headers))
        with writer:
            writer.write_table(rows)
            writer.done_writing()
            counts = reader.read()
            return {} if counts is None else dict(json.loads(counts.to_pybytes()))


def capture(client: Client, table: str, columns: Sequence[int] = (1, 2)) -> None:
    """Captures a table and its columns, by id, after a look at its lake."""
    client.act("discover", {"catalog": table.partition(".")[0]})
    targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": each} for each in columns)]
    requests = [{"table": table, "target": target, "mode": "SYNC"} for target in targets]
    outcomes = client.act("capture", {"requests": requests})
    assert {each["outcome"] for each in outcomes} == {"CAPTURED"}, outcomes
