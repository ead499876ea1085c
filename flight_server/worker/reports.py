"""Reports of ended leases to the server: rows and outcomes, many captures in one call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from capture.connectors.storage.secrets import redact_all, resolve
from flight_server.client.connection import Connection
from flight_server.worker.draft_sink import Held, encoded
from flight_server.worker.lease_keeper import LeaseKeeper
from store.model.errors import InvalidArgument, StatflightError, first_line, to_json


@dataclass(frozen=True)
class Ended:
    """An ended lease, renewed until it is reported: the body of its `finish_job`, and the rows sent with it."""

    keeper: LeaseKeeper
    body: Mapping[str, Any]
    since: float = field(default_factory=time.monotonic)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the rows, as Arrow holds them."""
        return sum(held.size_bytes for held in self.body.get("rows", ()))

    def report(self) -> dict[str, Any]:
        """The body that reports the end, without rows, secrets redacted."""
        lease = self.keeper.lease
        report = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]} | dict(self.body)
        report.pop("rows", None)
        options: dict[str, str] = lease["payload"]["connector"]["options"]
        with contextlib.suppress(StatflightError):
            options = resolve(options)  # and the options of a named secret
        return dict(redact_all(report, options))


def send(server: Connection, ended: Sequence[Ended], stopping: threading.Event) -> None:
    """Reports the ends of leases, with retries while the server is unreachable. What the server refuses is reported as
    an error, unless the lease is lost.

    Args:
        stopping: Set once the worker stops, which ends a pause between two tries.
    """
    try:
        refused = [
            (end, answer["error"])
            for end, answer in zip(ended, _finish(server, ended, stopping), strict=True)
            if "error" in answer and "error" not in end.body and answer["error"]["code"] != "LEASE_LOST"
        ]
        if refused:
            errors = [Ended(end.keeper, {"error": error, "message": error["message"]}) for end, error in refused]
            _finish(server, errors, stopping)
    finally:
        for end in ended:
            end.keeper.stop()


def _finish(server: Connection, ended: Sequence[Ended], stopping: threading.Event) -> list[dict[str, Any]]:
    """Reports ends in one call, or each in its own if the call is refused.

    Returns:
        The answer for each; empty if the server cannot be reached: the leases run out then.
    """
    report = {"finishes": [end.report() for end in ended], "rows": rows_together(ended)}
    for pause in (0.2, 1.0, 0.0):
        try:
            return list(server.act("finish_jobs", report, timeout=600.0))
        except (flight.FlightUnavailableError, OSError):
            stopping.wait(pause)
        except pa.ArrowException as refusal:
            if len(ended) > 1:  # one of them is at fault
                return [answer for end in ended for answer in _finish(server, [end], stopping)]
            reason = InvalidArgument(f"what was captured is refused: {first_line(refusal, 500)}")
            return [{"error": to_json(reason)}]
    return [{}] * len(ended)


def rows_together(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """The `rows` of `finish_jobs`: one stream for rows of one flight, kind and schema.

    Args:
        ended: The captures of one call, in the order of `finishes`.

    Returns:
        Items whose `counts` give the number of rows of each capture in the stream.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, Held]]] = {}
    for at, end in enumerate(ended):
        for held in end.body.get("rows", ()):
            key = (held.flight, held.extra, held.whole, held.checked, held.rows.schema)
            groups.setdefault(key, []).append((at, held))
    items = []
    for members in groups.values():
        rows = pa.concat_tables([held.rows for _, held in members])
        counts = [[at, held.rows.num_rows] for at, held in members]
        items.append(encoded(members[0][1]._replace(rows=rows)) | {"counts": counts})
    return items
