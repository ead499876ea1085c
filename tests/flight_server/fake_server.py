"""A Flight server that returns canned tables and records its requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from flight_server.core.wire.flight_sql import read_any
from store.model.schemas import FLIGHTS


class FakeServer(flight.FlightServerBase):
    """Returns the rows set for a flight, filtered by the EQ predicates only; `answers` are functions of the body."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0", middleware={"seen": _Seen(self)})
        self.tables: dict[str, pa.Table | Exception] = {}
        self.answers: dict[str, Callable[[Any], list[Any]]] = {}
        self.commands: list[dict[str, Any]] = []
        self.actions: list[tuple[str, Any]] = []
        self.puts: list[tuple[dict[str, Any], pa.Table]] = []
        self.refusal: Exception | None = None
        self.failures: list[Exception] = []  # of the next reads and puts
        self.headers: dict[str, list[str]] = {}

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def rows(self, name: str, *rows: dict[str, Any]) -> None:
        self.tables[name] = pa.Table.from_pylist(list(rows), FLIGHTS[name].schema)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        command = json.loads(ticket.ticket)
        self.commands.append(command)
        if self.failures:
            raise self.failures.pop()
        name = command.get("table", "scan")  # a planned scan names no flight
        rows = self.tables[name] if name in self.tables else FLIGHTS[name].schema.empty_table()
        if isinstance(rows, Exception):
            raise rows
        for leaf in command.get("predicates", []):
            if leaf["op"] == "EQ":
                rows = rows.filter(pc.equal(rows[leaf["column"]], leaf["values"][0]))
        if "table" in command and (columns := command.get("columns")):
            rows = rows.select(columns)
        return flight.RecordBatchStream(rows)

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Of a statement of Flight SQL; its rows are those set for its text."""
        statement = read_any(descriptor.command).text(1)
        assert statement is not None
        if isinstance(rows := self.tables[statement], Exception):
            raise rows
        ticket = flight.Ticket(json.dumps({"table": statement}))
        return flight.FlightInfo(rows.schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        if self.refusal:
            raise self.refusal
        table = reader.read_all()
        self.puts.append((json.loads(descriptor.command), table))
        counts = {"received": table.num_rows, "created": table.num_rows, "unchanged": 0, "replaced": 0}
        writer.write(pa.py_buffer(json.dumps(counts).encode()))

    def do_action(self, context: Any, action: flight.Action) -> Any:
        body = json.loads(action.body.to_pybytes())
        self.actions.append((action.type, body))
        for result in self.answers[action.type](body):
            yield flight.Result(json.dumps(result).encode())


class _Seen(flight.ServerMiddlewareFactory):
    def __init__(self, server: FakeServer):
        self._server = server

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        self._server.headers = {name.lower(): values for name, values in headers.items()}
