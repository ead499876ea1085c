"""Bundles of a worker: unstarted leases are returned, finished captures are sent together."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from capture.registry import Registry
from flight_server.worker import bundle as module
from flight_server.worker.bundle import Bundle, Ended, Outbox, rows_together
from flight_server.worker.draft_sink import DraftSink, Held
from flight_server.worker.lease_keeper import LeaseKeeper
from flight_server.worker.loop import Worker
from tests.flight_server.worker.test_loop import FakeServer, lease


def leases(count: int, seconds: float = 60.0) -> list[dict[str, Any]]:
    return [lease() | {"lease_token": f"t{n}", "lease_seconds": seconds, "kind": "sync"} for n in range(count)]


class ReturnsServer(FakeServer):
    """Records returned leases, and signals the first return."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[str] = []
        self.has_returns = threading.Event()
        self.answers["return_leases"] = self._take

    def _take(self, body: Any) -> dict[str, Any]:
        self.returned += body["lease_tokens"]
        self.has_returns.set()
        return {"returned": len(body["lease_tokens"])}


def test_finished_bundle_doubles_the_next_size():
    server = ReturnsServer()
    bundle = Bundle(server, leases(3))  # type: ignore[arg-type]
    assert [bundle.next()["lease_token"] for _ in range(3)] == ["t0", "t1", "t2"]  # type: ignore[index]
    assert bundle.next() is None
    assert bundle.close() == 6
    assert not server.returned


def test_closed_bundle_returns_its_unstarted_leases():
    server = ReturnsServer()
    bundle = Bundle(server, leases(5))  # type: ignore[arg-type]
    bundle.next()
    bundle.next()
    assert bundle.has_more
    assert bundle.close() == 2
    assert server.returned == ["t2", "t3", "t4"]
    assert not bundle.has_more


@pytest.mark.parametrize(("capture_seconds", "lease_seconds"), [(0.05, 60.0), (60.0, 0.15)])
def test_leases_behind_a_long_capture_are_returned(monkeypatch, capture_seconds, lease_seconds):
    monkeypatch.setattr(module, "CAPTURE_SECONDS", capture_seconds)
    server = ReturnsServer()
    bundle = Bundle(server, leases(3, lease_seconds))  # type: ignore[arg-type]
    started = [first["lease_token"]] if (first := bundle.next()) else []  # none when this machine was too slow
    assert server.has_returns.wait(60)
    assert started + server.returned == ["t0", "t1", "t2"]
    assert bundle.next() is None


def ended(number: int, rows: int = 1, more: bool = False, name: str = "a") -> Ended:
    server = FakeServer()
    held = Held("stats.columns", False, False, pa.table({name: pa.array([number] * rows, pa.int64())}))
    leased = lease() | {"job_id": f"j{number}", "lease_token": f"t{number}", "kind": "sync"}
    body = {"outcomes": [], "rows": [held]}
    return Ended(LeaseKeeper(server, leased), leased, body, lambda: more)  # type: ignore[arg-type]


def test_captures_that_end_during_a_call_are_sent_together():
    sent: list[list[Ended]] = []
    sending, release, done = threading.Event(), threading.Event(), threading.Event()

    def send(batch: list[Ended]) -> None:
        sent.append(batch)
        sending.set()
        release.wait(60)
        if sum(map(len, sent)) == 4:
            done.set()

    outbox = Outbox(send)
    outbox.put(ended(0))
    assert sending.wait(60)
    for number in (1, 2, 3):
        outbox.put(ended(number))
    release.set()
    assert done.wait(60)
    assert [len(batch) for batch in sent] == [1, 3]


def test_outbox_lingers_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", 3600.0)
    sent: list[int] = []
    done = threading.Event()
    outbox = Outbox(lambda batch: (sent.append(len(batch)), done.set())[1])
    for number in range(3):
        outbox.put(ended(number, more=True))
    assert sent == []
    monkeypatch.setattr(module, "LINGER_SECONDS", -1.0)  # the time is up
    assert done.wait(60)
    assert sent == [3]


def test_call_has_at_most_max_bytes(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    monkeypatch.setattr(module, "LINGER_SECONDS", 3600.0)
    sent: list[int] = []
    done = threading.Event()
    outbox = Outbox(lambda batch: (sent.append(len(batch)), len(sent) < 3 or done.set())[0])
    for number in range(5):
        outbox.put(ended(number, rows=6, more=True))
    monkeypatch.setattr(module, "LINGER_SECONDS", -1.0)
    assert done.wait(60)
    assert sent == [2, 2, 1]


def test_rows_of_one_schema_are_sent_as_one_stream():
    (first, other) = rows_together([ended(0, 2), ended(1, 3), ended(2, 1, name="b"), ended(3, 0)])
    assert first["counts"] == [[0, 2], [1, 3], [3, 0]]
    assert other["counts"] == [[2, 1]]
    rows = pa.ipc.open_stream(first["ipc"]).read_all()
    assert rows.to_pydict() == {"a": [0, 0, 1, 1, 1]}


def test_rejected_call_is_repeated_one_by_one():
    server = FakeServer()

    def reject(_: Any) -> Any:
        raise pa.ArrowInvalid("[INVALID_ARGUMENT] row 1: ndv is negative")

    server.answers["finish_jobs"] = reject
    Worker(server, Registry([]))._end([ended(0), ended(1)])  # type: ignore[arg-type]
    assert [body["job_id"] for body in server.finished] == ["j0", "j1"]
    assert all(body["rows"][0]["table"] == "stats.columns" for body in server.finished)


def test_unavailable_server_is_retried_with_the_whole_batch():
    server = FakeServer()
    tries: list[int] = []

    def unavailable_once(body: Any) -> Any:
        tries.append(len(body["finishes"]))
        if len(tries) < 2:
            raise flight.FlightUnavailableError("away")
        return {"job_id": "j0", "state": "SUCCEEDED"}

    server.answers["finish_jobs"] = unavailable_once
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    assert worker._finish_all([ended(0)])
    assert tries == [1, 1] and not server.finished


def test_sink_without_statistics_reads_nothing_from_the_server():
    server = FakeServer()
    sink = DraftSink(server, LeaseKeeper(server, lease()), has_statistics=False)  # type: ignore[arg-type]
    assert sink.stored("stats.columns", None, ["column_id", "engine_id"]).column_names == ["column_id", "engine_id"]  # type: ignore[arg-type]
    assert sink.stored("stats.sketches", None).num_rows == 0  # type: ignore[arg-type]
    assert not server.calls
