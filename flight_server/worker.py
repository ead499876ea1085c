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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from capture import partitions
from capture.connectors import open_connector
from capture.connectors.credentials import redact_all, resolve
from capture.connectors.spi import Column, Connector, ConnectorConfig, Schema, Snapshot
from capture.engines import default_engines, described
from capture.registry import Registry
from capture.spi import Budget, CaptureRequest, CaptureResult, Decision, Listing, Mode, Outcome, Sampling, TableHandle
from flight_server.config import CHILD_VARIABLE
from store.errors import Cancelled, InvalidArgument, NotFound, StatflightError, UpstreamError, to_json
from store.targets import Target

WAIT_SECONDS: Final = 20.0
STALL_SECONDS: Final = 600.0
MAX_LEFT_BEHIND: Final = 8
CONNECTOR_SECONDS: Final = 300.0  # that a connector stays open: credentials may be renewed
MAX_CONNECTORS: Final = 8  # of one thread
INLINE_BYTES: Final = 1 << 20
ROLES: Final = (("control",), ("sync", "control"), ("sync",), ("light",), ("job",))
_NAME = ("table_catalog", "table_schema", "table_name")


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


class LeaseKeeper:
    """Keeps a lease alive while its work goes on, and hears when the work is not wanted any more."""

    def __init__(self, server: Server, lease: Mapping[str, Any]):
        self.server, self.lease = server, lease
        self.touched = time.monotonic()  # when the work last showed that it lives
        self.unwanted = threading.Event()  # cancelled, or the lease is lost
        self._progress: tuple[float | None, str | None] = (None, None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def progress(self, share: float, message: str) -> None:
        self.touched = time.monotonic()
        self._progress = (min(max(share, 0.0), 1.0), message or None)
        if self.unwanted.is_set():
            raise Cancelled("the job was cancelled")

    def _keep(self) -> None:
        """Renews at a third of the lease, when there is progress to tell, and every few seconds to hear of a cancel."""
        every = min(max(0.3, float(self.lease["lease_seconds"]) / 3), 2.0)
        told: tuple[float | None, str | None] = (None, None)
        renewed = time.monotonic()
        while not self._stop.wait(0.25):
            news = self._progress != told and time.monotonic() - renewed >= 1.0
            if not news and time.monotonic() - renewed < every:
                continue
            told, renewed = self._progress, time.monotonic()
            body = {"job_id": self.lease["job_id"], "lease_token": self.lease["lease_token"],
                    "progress": told[0], "message": told[1]}  # fmt: skip
            try:
                (answer,) = self.server.act("renew_lease", {k: v for k, v in body.items() if v is not None})
                if not answer["wanted"]:
                    self.unwanted.set()
            except pa.ArrowInvalid as refusal:
                if "LEASE_LOST" in str(refusal):
                    self.unwanted.set()
                    return
            except (pa.ArrowException, OSError):
                continue


class DraftSink:
    """Puts rows under a lease. Few rows wait until the end and go with the outcome, in one call."""

    def __init__(self, server: Server, keeper: LeaseKeeper):
        self.server, self.keeper = server, keeper
        self._held: dict[tuple[str, bool, bool], list[pa.Table]] = {}  # flight, extra, whole
        self._bytes = 0

    def put(self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False) -> None:
        self.keeper.touched = time.monotonic()
        if rows.num_rows or whole:
            self._held.setdefault((flight, extra, whole), []).append(rows)
            self._bytes += rows.nbytes
            if self._bytes > INLINE_BYTES:
                self._flush()

    def _flush(self) -> None:
        held, self._held, self._bytes = self._held, {}, 0
        for (name, extra, whole), parts in held.items():
            command = {"table": name, "draft": self.keeper.lease["lease_token"], "extra": extra, "whole": whole}
            try:
                self.server.put(command, pa.concat_tables(parts, promote_options="default"))
            except pa.ArrowInvalid as refusal:
                if "LEASE_LOST" in str(refusal):
                    self.keeper.unwanted.set()
                    raise Cancelled("the lease is lost") from None
                raise InvalidArgument(f"what was captured for {name} is refused: {_first_line(refusal)}") from None
            except (pa.ArrowException, OSError) as trouble:
                raise UpstreamError(f"the server could not be reached: {_first_line(trouble)}") from None

    def inline(self) -> list[dict[str, Any]]:
        """The rows not sent yet, for `finish_job`."""
        items = []
        for (name, extra, whole), parts in self._held.items():
            rows = pa.concat_tables(parts, promote_options="default")
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, rows.schema) as writer:
                writer.write_table(rows)
            text = base64.b64encode(stream.getvalue()).decode()
            items.append({"table": name, "extra": extra, "whole": whole, "ipc": text})
        return items

    def list_files(self, table: TableHandle, listing: Listing) -> bool:
        self.keeper.touched = time.monotonic()
        body: dict[str, Any] = {"job_id": self.keeper.lease["job_id"], "lease_token": self.keeper.lease["lease_token"],
                                "snapshot_id": table.snapshot_id, "mark": listing.mark}  # fmt: skip
        if listing.base_snapshot_id is not None:
            body["base"] = {"snapshot_id": listing.base_snapshot_id, "mark": listing.base_mark}
            body["removed"] = list(listing.removed)
        try:
            (answer,) = self.server.act("declare_listing", body)
            return bool(answer["accepted"])
        except (pa.ArrowException, OSError, ValueError):  # then all rows are put, which tells what is wrong if anything
            return False

    def stored(self, flight: str, table: TableHandle, columns: Sequence[str] | None = None) -> pa.Table:
        self.keeper.touched = time.monotonic()
        predicates = [{"column": column, "op": "EQ", "values": [table.key[column]]} for column in _NAME]
        command: dict[str, Any] = {"table": flight, "predicates": predicates, "snapshot": table.snapshot_id,
                                   "allow_stale": True}  # fmt: skip
        if columns is not None:
            command["columns"] = list(columns)
        return self.server.get(command)

    def progress(self, share: float, message: str = "") -> None:
        self.keeper.progress(share, message)


class Connectors:
    """The connectors of one thread, kept open for a while: each look at a lake reads its metadata anew in any case."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Connector, float]] = {}

    @contextlib.contextmanager
    def opened(self, config: Mapping[str, Any]) -> Iterator[Connector]:
        """An opened connector. One that was in trouble, or is old, is not used again."""
        resolved = dict(config, options=resolve(config["options"]))
        key = json.dumps(resolved, sort_keys=True)  # so that a credential that was renewed opens another
        now = time.monotonic()
        for old in [k for k, (_, since) in self._open.items() if now - since > CONNECTOR_SECONDS]:
            self._close(old)
        if key not in self._open:
            while len(self._open) >= MAX_CONNECTORS:
                self._close(next(iter(self._open)))
            options = ConnectorConfig(config["catalog"], config["format"], config["uri"], resolved["options"])
            self._open[key] = (open_connector(options), now)
        try:
            yield self._open[key][0]
        except BaseException:
            self._close(key)
            raise

    def _close(self, key: str) -> None:
        connector, _ = self._open.pop(key)
        with contextlib.suppress(Exception):
            connector.close()


class _Hand:
    """One thread of a worker: the kinds it serves, and what it is at."""

    def __init__(self, kinds: Sequence[str]):
        self.kinds = tuple(kinds)
        self.connectors = Connectors()
        self.keeper: LeaseKeeper | None = None
        self.abandoned = False


class Worker:
    """Threads that lease and work. One that hangs in a connector is left behind, its lease given back, and replaced.

    Args:
        stall_seconds: Work that shows no sign of life for so long counts as hanging.
    """

    def __init__(self, server: Server, registry: Registry, stall_seconds: float = STALL_SECONDS):
        self.server, self.registry, self.stall_seconds = server, registry, stall_seconds
        self.id = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.stopping = threading.Event()
        self.left_behind = 0
        self._engines = described(registry.engines)
        self._hands: list[_Hand] = []

    def start(self, roles: Sequence[Sequence[str]]) -> None:
        for kinds in roles:
            hand = _Hand(kinds)
            self._hands.append(hand)
            threading.Thread(target=self._run, args=(hand,), daemon=True, name="-".join(kinds)).start()

    def look_after(self) -> None:
        """Replaces threads that hang; called now and then. Too many of them, and the worker stops altogether."""
        for hand in list(self._hands):
            keeper = hand.keeper
            if keeper is None or time.monotonic() - keeper.touched < self.stall_seconds:
                continue
            hand.abandoned = True
            self._hands.remove(hand)
            keeper.stop()
            self.left_behind += 1
            trouble = UpstreamError(f"no sign of life for {self.stall_seconds:.0f} s", code="STALLED")
            _say(f"{keeper.lease['kind']} {keeper.lease['job_id']}: {trouble}")
            self._finish(keeper.lease, {"error": to_json(trouble), "message": str(trouble)})
            if self.left_behind > MAX_LEFT_BEHIND:
                self.stopping.set()
            else:
                self.start([hand.kinds])

    def run(self, kinds: Sequence[str]) -> None:
        """Leases and works in this thread until told to stop."""
        hand = _Hand(kinds)
        self._hands.append(hand)
        self._run(hand)

    def _run(self, hand: _Hand) -> None:
        """Whatever happens in the work, the thread goes on. A server that is away is waited for."""
        away = 0.0
        while not (self.stopping.is_set() or hand.abandoned):
            try:
                leases = self.server.act(
                    "lease_job",
                    {"worker_id": self.id, "kinds": list(hand.kinds), "wait_seconds": WAIT_SECONDS,
                     "engines": self._engines},
                    timeout=WAIT_SECONDS + 30,
                )  # fmt: skip
                away = 0.0
                for lease in leases:
                    self._work(hand, lease)
            except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as refusal:
                _say(f"the server refuses this worker: {_first_line(refusal)}")
                self.stopping.set()
                return
            except (pa.ArrowException, OSError):
                away = min(2.0, away * 2 or 0.2)
                self.stopping.wait(away)
            except BaseException as trouble:  # not even a library's panic ends a thread
                _say(f"{type(trouble).__name__} in a worker's thread: {_first_line(trouble)}")
                self.stopping.wait(1.0)

    def _work(self, hand: _Hand, lease: Mapping[str, Any]) -> None:
        body: dict[str, Any] = {}
        hand.keeper = keeper = LeaseKeeper(self.server, lease)
        keeper.start()
        try:
            work = self._control if lease["kind"] == "control" else self._capture
            body = work(hand, lease)
        except StatflightError as trouble:
            body = {"error": to_json(trouble), "message": str(trouble)}
        except BaseException as trouble:  # a bug, a library's surprise or panic: the job hears of it, the log too
            _say(f"{type(trouble).__name__} in {lease['kind']} {lease['job_id']}: {trouble}")
            reason = UpstreamError(f"the worker failed: {type(trouble).__name__}: {_first_line(trouble)}")
            body = {"error": to_json(reason), "message": str(reason)}
        finally:
            keeper.stop()
            hand.keeper = None
        if not hand.abandoned:
            self._finish(lease, body)

    def _finish(self, lease: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        """Tells the server, more than once if it cannot be reached. A lost lease is lost: the work goes back."""
        told = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]} | dict(body)
        rows = told.pop("rows", None)
        told = redact_all(told, _secrets_of(lease))
        if rows:
            told["rows"] = rows
        for pause in (0.2, 1.0, 0.0):
            try:
                self.server.act("finish_job", told, timeout=600.0)
                return
            except (flight.FlightUnavailableError, OSError):
                self.stopping.wait(pause)
            except pa.ArrowException as refusal:
                if "LEASE_LOST" in str(refusal) or "error" in told:
                    return
                reason = InvalidArgument(f"what was captured is refused: {_first_line(refusal)}")
                ids = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
                told = ids | {"error": to_json(reason), "message": str(reason)}

    # Looking at a lake.

    def _control(self, hand: _Hand, lease: Mapping[str, Any]) -> dict[str, Any]:
        payload = lease["payload"]
        with hand.connectors.opened(payload["connector"]) as connector:
            match payload["operation"]:
                case "validate":
                    return {"result": {"namespaces": connector.list_namespaces()}}
                case "discover":
                    return {"result": _discover(connector, payload)}
                case _:
                    return {"result": _publish(connector, payload)}

    # Capturing.

    def _capture(self, hand: _Hand, lease: Mapping[str, Any]) -> dict[str, Any]:
        payload = lease["payload"]
        assert hand.keeper is not None
        sink = DraftSink(self.server, hand.keeper)
        with hand.connectors.opened(payload["connector"]) as connector:
            known = payload["snapshots"].items()
            handles = {int(i): _handle(payload, int(i), columns, connector) for i, columns in known}
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
            "rows": sink.inline(),
        }


def _secrets_of(lease: Mapping[str, Any]) -> dict[str, str]:
    """The options of a lease's connector, those of its named secret too where there is one."""
    options: dict[str, str] = lease["payload"]["connector"]["options"]
    try:
        return resolve(options)
    except StatflightError:
        return options


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
        body["latency_budget_ms"], partitions.parse(body.get("partitions")),
        Budget(**body["budget"]) if body.get("budget") else None,
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
            reason = f"{type(trouble).__name__}: {_first_line(trouble)}"
            errors.append({"schema": namespace, "name": name, "reason": reason})
    return {"tables": tables, "errors": errors}


def _table(connector: Connector, namespace: str, name: str, known: frozenset[int], full: bool) -> dict[str, Any]:
    described_ = connector.describe(namespace, name)
    listing = connector.enumerate_snapshots(namespace, name, full_rescan=full, known_snapshot_ids=known)
    schemas = {s.schema.hash: s.schema for s in listing.snapshots} | {described_.schema.hash: described_.schema}
    told = {h: [[c.name, c.logical_type, c.nullable, c.field_id] for c in s.columns] for h, s in schemas.items()}
    return {
        "schema": namespace, "name": name, "table_id": described_.table_id, "location": described_.location,
        "schema_hash": described_.schema.hash,
        "schemas": told,
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
    from capture.connectors.iceberg import IcebergConnector
    from capture.publish import puffin

    if payload["to"] != "iceberg" or not isinstance(connector, IcebergConnector):
        raise NotFound(f"nothing publishes {connector.format} tables to {payload['to']}")
    blobs = [(column_id, base64.b64decode(data), ndv) for column_id, data, ndv in payload["sketches"]]
    return dict(puffin.publish(connector, payload["schema"], payload["name"], payload["snapshot_id"], blobs))


def run_worker(
    server_uri: str, *, token: str | None = None, spark_master: str | None = None, tls_roots: bytes | None = None,
    inline_max_cells: int | None = None, control_only: bool = False, parent_pid: int | None = None,
    tls_cert: bytes | None = None, tls_key: bytes | None = None,
) -> int:  # fmt: skip
    """Works until SIGTERM or SIGINT, or the end of the process that is named its parent; 0 when told to stop, 1 when
    the server refuses it."""
    if parent_pid is not None:
        _die_with_parent()
    # pyarrow imports pandas with the first value it converts, and threads that meet half of it fail: now, then
    pa.scalar(0)
    worker = Worker(
        Server(server_uri, token, tls_roots, tls_cert, tls_key),
        Registry(default_engines(spark_master, inline_max_cells)),
    )
    told = threading.Event()

    def stop(*_: Any) -> None:
        told.set()
        worker.stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    worker.start([("control",)] * 2 if control_only else ROLES)
    while not worker.stopping.wait(0.5):
        worker.look_after()
        if parent_pid is not None and os.getppid() != parent_pid:  # it may have died before this one was to know
            break
    worker.stopping.set()
    # threads are in long polls or in the middle of work whose lease will lapse: nothing is lost by leaving
    sys.stderr.flush()
    os._exit(0 if told.is_set() or parent_pid is not None else 1)


def _die_with_parent() -> None:
    """Asks Linux for a SIGTERM when the server dies, however it dies; elsewhere the parent is looked at."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _first_line(trouble: BaseException) -> str:
    return next(iter(str(trouble).strip().splitlines()), type(trouble).__name__)[:500]


def _say(text: str) -> None:
    sys.stderr.write(f"statflight worker: {text}\n")


if __name__ == "__main__":
    sys.exit(run_worker(**json.loads(os.environ.pop(CHILD_VARIABLE))))
