"""The server as a worker sees it: a client, a lease that is kept alive, a draft that rows are put under."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from capture.spi import Listing, TableHandle
from store.errors import Cancelled, InvalidArgument, UpstreamError

INLINE_BYTES: Final = 1 << 20  # of rows that go with the outcome
_NAME: Final = ("table_catalog", "table_schema", "table_name")


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

    def progress(self, share: float | None, message: str) -> None:
        """Notes how far the work is, for the next renewal.

        Args:
            share: 0 to 1; None where it is not known.
            message: A few words for whoever watches the job.

        Raises:
            Cancelled: The work is not wanted any more.
        """
        self.touched = time.monotonic()
        self._progress = (None if share is None else min(max(share, 0.0), 1.0), message or None)
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
                raise InvalidArgument(f"what was captured for {name} is refused: {first_line(refusal)}") from None
            except (pa.ArrowException, OSError) as trouble:
                raise UpstreamError(f"the server could not be reached: {first_line(trouble)}") from None

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


def first_line(trouble: BaseException) -> str:
    return next(iter(str(trouble).strip().splitlines()), type(trouble).__name__)[:500]
