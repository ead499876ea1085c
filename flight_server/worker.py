"""The capture worker: a Flight client that leases work, runs connectors and engines, and puts what they find.

It owns no database handle: kill it at any time, its leases run out and the work goes back. Threads of one process serve
different kinds of work, so that a look at a lake never waits behind a long scan; they share one Spark session.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from capture.connectors import open_connector
from capture.connectors.credentials import redact
from capture.connectors.spi import Column, Connector, ConnectorConfig, Schema, Snapshot
from capture.engines import default_engines, described
from capture.registry import Registry
from capture.spi import CaptureRequest, CaptureResult, Decision, Mode, Outcome, Sampling, TableHandle
from flight_server.config import CHILD_VARIABLE
from store.errors import Cancelled, NotFound, StatflightError, UpstreamError, to_json
from store.targets import Target

WAIT_SECONDS = 20.0
_NAME = ("table_catalog", "table_schema", "table_name")


class Server:
    """The server as a worker sees it."""

    def __init__(self, uri: str, token: str | None, tls_roots: bytes | None = None, verify: bool = True):
        options: dict[str, Any] = {}
        if uri.startswith("grpc+tls") or uri.startswith("grpcs"):
            options = {"tls_root_certs": tls_roots} if verify else {"disable_server_verification": True}
        self.uri = uri
        self._client = flight.connect(uri, **{k: v for k, v in options.items() if v is not None})
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


class DraftSink:
    """Puts rows under a lease, and keeps the lease alive while the work goes on."""

    def __init__(self, server: Server, lease: Mapping[str, Any]):
        self.server, self.lease = server, lease
        self._progress: tuple[float | None, str | None] = (None, None)
        self._cancelled = threading.Event()
        self._stop = threading.Event()
        self._sent = 0.0
        self._keeper = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def __enter__(self) -> DraftSink:
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def put(self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False) -> None:
        if rows.num_rows or whole:
            self.server.put(
                {"table": flight, "draft": self.lease["lease_token"], "extra": extra, "whole": whole}, rows
            )

    def stored(self, flight: str, table: TableHandle, columns: Sequence[str] | None = None) -> pa.Table:
        predicates = [{"column": column, "op": "EQ", "values": [table.key[column]]} for column in _NAME]
        command: dict[str, Any] = {"table": flight, "predicates": predicates, "snapshot": table.snapshot_id,
                                   "allow_stale": True}  # fmt: skip
        if columns is not None:
            command["columns"] = list(columns)
        return self.server.get(command)

    def progress(self, share: float, message: str = "") -> None:
        self._progress = (min(max(share, 0.0), 1.0), message or None)
        if self._cancelled.is_set():
            raise Cancelled("the job was cancelled")

    def _keep(self) -> None:
        """Renews at a third of the lease, or when there is progress to tell, at most once a second."""
        every = max(1.0, float(self.lease["lease_seconds"]) / 3)
        told: tuple[float | None, str | None] = (None, None)
        renewed = time.monotonic()
        while not self._stop.wait(0.5):
            news = self._progress != told and time.monotonic() - renewed >= 1.0
            if not news and time.monotonic() - renewed < min(every, 3.0):
                continue
            told, renewed = self._progress, time.monotonic()
            body = {"job_id": self.lease["job_id"], "lease_token": self.lease["lease_token"],
                    "progress": told[0], "message": told[1]}  # fmt: skip
            with contextlib.suppress(pa.ArrowException):
                (answer,) = self.server.act("renew_lease", {k: v for k, v in body.items() if v is not None})
                if not answer["wanted"]:
                    self._cancelled.set()


class Worker:
    def __init__(self, server: Server, registry: Registry):
        self.server, self.registry = server, registry
        self.id = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.stopping = threading.Event()

    def run(self, kinds: Sequence[str]) -> None:
        """Leases and works until told to stop. A server that is away is waited for."""
        away = 0.0
        while not self.stopping.is_set():
            try:
                leases = self.server.act(
                    "lease_job",
                    {"worker_id": self.id, "kinds": list(kinds), "wait_seconds": WAIT_SECONDS,
                     "engines": described(self.registry.engines)},
                    timeout=WAIT_SECONDS + 30,
                )  # fmt: skip
                away = 0.0
            except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as refusal:
                _say(f"the server refuses this worker: {_first_line(refusal)}")
                self.stopping.set()
                return
            except pa.ArrowException:
                away = min(5.0, away * 2 or 0.2)
                self.stopping.wait(away)
                continue
            for lease in leases:
                self._work(lease)

    def _work(self, lease: Mapping[str, Any]) -> None:
        body: dict[str, Any] = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
        secrets = lease["payload"]["connector"]["options"]
        try:
            work = self._control if lease["kind"] == "control" else self._capture
            body |= work(lease)
        except StatflightError as trouble:
            body |= {"error": to_json(trouble), "message": str(trouble)}
        except Exception as trouble:  # a bug or a library's surprise: the job hears of its kind, the log of the rest
            _say(f"{type(trouble).__name__} in {lease['kind']} {lease['job_id']}: {trouble}")
            reason = UpstreamError(f"the worker failed: {type(trouble).__name__}: {_first_line(trouble)}")
            body |= {"error": to_json(reason), "message": str(reason)}
        text = redact(json.dumps(body), secrets)
        with contextlib.suppress(pa.ArrowException):  # a lost lease, or a server that is gone: the work goes back
            self.server.act("finish_job", json.loads(text), timeout=600.0)

    # Looking at a lake.

    def _control(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        payload = lease["payload"]
        with _opened(payload["connector"]) as connector:
            match payload["operation"]:
                case "validate":
                    return {"result": {"namespaces": connector.list_namespaces()}}
                case "discover":
                    return {"result": _discover(connector, payload)}
                case _:
                    return {"result": _publish(connector, payload)}

    # Capturing.

    def _capture(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        payload = lease["payload"]
        with _opened(payload["connector"]) as connector, DraftSink(self.server, lease) as sink:
            handles = {int(i): _handle(payload, int(i), columns, connector) for i, columns in payload["snapshots"].items()}
            requests = [_request(payload, body, handles[body["snapshot_id"]]) for body in payload["requests"]]
            results: list[CaptureResult | None] = [None] * len(requests)
            decisions: list[Decision] = []
            for done, (snapshot_id, handle) in enumerate(handles.items()):
                sink.progress(done / len(handles), f"snapshot {snapshot_id}")
                members = [at for at, r in enumerate(requests) if r.table is handle]
                answers, made = self.registry.capture_batch([requests[at] for at in members], sink)
                decisions += made
                for at, answer in zip(members, answers, strict=True):
                    results[at] = answer
        return {
            "outcomes": [_outcome(r, q) for r, q in zip(results, requests, strict=True)],
            "decisions": [_decision(d) for d in decisions],
        }


@contextlib.contextmanager
def _opened(config: Mapping[str, Any]) -> Any:
    connector = open_connector(
        ConnectorConfig(config["catalog"], config["format"], config["uri"], config["options"])
    )
    try:
        yield connector
    finally:
        connector.close()


def _handle(payload: Mapping[str, Any], snapshot_id: int, columns: Any, connector: Connector) -> TableHandle:
    table = payload["table"]
    schema = Schema(tuple(Column(name, type, nullable, field_id) for name, type, nullable, field_id in columns))
    return TableHandle(
        table["catalog"], table["schema"], table["name"], table["table_id"], snapshot_id, schema,
        payload["column_ids"], connector,
    )  # fmt: skip


def _request(payload: Mapping[str, Any], body: Mapping[str, Any], table: TableHandle) -> CaptureRequest:
    return CaptureRequest(
        table, Target.parse(body["target"]), frozenset(body["kinds"]), Mode(payload["mode"]),
        tuple(body["column_selectors"]), payload["correlation_id"], Sampling(body["sampling"]),
        body["latency_budget_ms"],
    )  # fmt: skip


def _outcome(result: CaptureResult | None, request: CaptureRequest) -> dict[str, Any]:
    result = result or CaptureResult(Outcome.DEGRADED, "", "no capture result")
    return {
        "outcome": str(result.outcome), "engine_id": result.engine_id or None, "detail": result.detail,
        "attributes": dict(result.attributes), "snapshot_id": request.table.snapshot_id,
        "storage_id": request.target.storage_id,
    }  # fmt: skip


def _decision(decision: Decision) -> dict[str, Any]:
    request = decision.request
    return {
        "snapshot_id": request.table.snapshot_id, "target_kind": str(request.target.kind),
        "storage_id": request.target.storage_id, "outcome": decision.outcome, "engine_id": decision.engine_id,
        "detail": decision.detail, "elapsed_ms": decision.elapsed_ms,
    }  # fmt: skip


def _discover(connector: Connector, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with their new snapshots; a table in trouble is an error of its own, the others go on."""
    only = payload["only"]
    names = [tuple(only)] if only else [(n, t) for n in connector.list_namespaces() for t in connector.list_tables(n)]
    tables, errors = [], []
    for namespace, name in names:
        known = frozenset(payload["known"].get(f"{namespace}\0{name}", ()))
        try:
            tables.append(_table(connector, namespace, name, known, payload["full_rescan"]))
        except StatflightError as trouble:
            if only:
                raise
            errors.append({"schema": namespace, "name": name, "reason": str(trouble)})
        except Exception as trouble:  # a library's surprise stays with its table
            if only:
                raise
            errors.append({"schema": namespace, "name": name, "reason": f"{type(trouble).__name__}: {_first_line(trouble)}"})
    return {"tables": tables, "errors": errors}


def _table(connector: Connector, namespace: str, name: str, known: frozenset[int], full: bool) -> dict[str, Any]:
    described_ = connector.describe(namespace, name)
    listing = connector.enumerate_snapshots(namespace, name, full_rescan=full, known_snapshot_ids=known)
    schemas = {s.schema.hash: s.schema for s in listing.snapshots} | {described_.schema.hash: described_.schema}
    return {
        "schema": namespace, "name": name, "table_id": described_.table_id, "location": described_.location,
        "schema_hash": described_.schema.hash,
        "schemas": {h: [[c.name, c.logical_type, c.nullable, c.field_id] for c in s.columns] for h, s in schemas.items()},
        "snapshots": [_snapshot(s) for s in listing.snapshots],
        "live_snapshot_ids": sorted(listing.live_snapshot_ids), "current_snapshot_id": listing.current_snapshot_id,
        "constraints": [[c.kind, c.name, list(c.columns), c.clause] for c in described_.constraints],
    }  # fmt: skip


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id, "ordinal": snapshot.ordinal, "schema_hash": snapshot.schema.hash,
        "parent_snapshot_id": snapshot.parent_snapshot_id, "sequence_number": snapshot.sequence_number,
        "committed_at": snapshot.committed_at and snapshot.committed_at.isoformat(), "operation": snapshot.operation,
    }  # fmt: skip


def _publish(connector: Connector, payload: Mapping[str, Any]) -> dict[str, Any]:
    from capture.publish import puffin

    if payload["to"] != "iceberg":
        raise NotFound(f"nothing publishes to {payload['to']}")
    blobs = [(column_id, base64.b64decode(data), ndv) for column_id, data, ndv in payload["sketches"]]
    return dict(puffin.publish(connector, payload["schema"], payload["name"], payload["snapshot_id"], blobs))


def run_worker(
    server_uri: str, *, token: str | None = None, spark_master: str | None = None, tls_roots: bytes | None = None,
    inline_max_cells: int | None = None, control_only: bool = False, follow_parent: bool = False,
    verify: bool = True,
) -> int:  # fmt: skip
    """Works until SIGTERM or SIGINT; 0 when told to stop, 1 when the server refuses it."""
    if follow_parent:
        _die_with_parent()
    worker = Worker(
        Server(server_uri, token, tls_roots, verify), Registry(default_engines(spark_master, inline_max_cells))
    )
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: (told.set(), worker.stopping.set()))
    roles = [["control"]] * 2 if control_only else [["control"], ["sync", "control"], ["sync"], ["job"]]
    threads = [threading.Thread(target=worker.run, args=(role,), daemon=True, name="-".join(role)) for role in roles]
    for thread in threads:
        thread.start()
    parent = os.getppid()
    while not worker.stopping.wait(0.5):
        if follow_parent and os.getppid() != parent:
            break
    worker.stopping.set()
    # threads are in long polls or in the middle of work whose lease will lapse: nothing is lost by leaving
    sys.stderr.flush()
    os._exit(0 if told.is_set() or follow_parent else 1)


def _die_with_parent() -> None:
    """Asks Linux for a SIGTERM when the server dies, however it dies; elsewhere the parent is looked at."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _first_line(trouble: BaseException) -> str:
    return next(iter(str(trouble).strip().splitlines()), type(trouble).__name__)[:500]


def _say(text: str) -> None:
    sys.stderr.write(f"statflight worker: {text}\n")




if __name__ == "__main__":
    sys.exit(run_worker(**json.loads(os.environ.pop(CHILD_VARIABLE)), follow_parent=True))
