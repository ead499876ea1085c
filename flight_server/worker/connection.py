"""The connection of a worker to its server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight


class Server:
    """The server as a worker sees it."""

    def __init__(
        self, uri: str, token: str | None, tls_roots: bytes | None = None,
        tls_cert: bytes | None = None, tls_key: bytes | None = None,
    ):  # fmt: skip
        self.uri = uri
        certificates = {"tls_root_certs": tls_roots, "cert_chain": tls_cert, "private_key": tls_key}
        self._client = flight.connect(uri, **{name: given for name, given in certificates.items() if given is not None})
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    def act(self, name: str, body: Mapping[str, Any], timeout: float = 60.0) -> list[dict[str, Any]]:
        action = flight.Action(name, json.dumps(body).encode())
        return [json.loads(r.body.to_pybytes()) for r in self._client.do_action(action, self.options(timeout))]

    def put(self, command: Mapping[str, Any], rows: pa.Table) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, reader = self._client.do_put(descriptor, rows.schema, self.options())
        with writer:
            writer.write_table(rows, max_chunksize=65_536)
            writer.done_writing()
            while reader.read() is not None:
                pass

    def get(self, command: Mapping[str, Any]) -> pa.Table:
        ticket = flight.Ticket(json.dumps(command).encode())
        return self._client.do_get(ticket, self.options()).read_all()

    def close(self) -> None:
        self._client.close()


def first_line(trouble: BaseException) -> str:
    return next(iter(str(trouble).strip().splitlines()), type(trouble).__name__)[:500]
