"""Bundles of a worker: what has not begun goes back, what has ended is told together."""

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
from tests.flight_server.worker.test_loop import Server, lease


def leases(count: int, seconds: float = 60.0) -> list[dict[str, Any]]:
    return [lease() | {"lease_token": f"t{n}", "lease_seconds": seconds, "kind": "sync"} for n in range(count)]


class Home(Server):
    """Keeps what is given back, and lets one wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[str] = []
        self.given = threading.Event()
        self.answers["return_leases"] = self._take

    def _take(self, body: Any) -> dict[str, Any]:
        self.returned += body["lease_tokens"]
        self.given.set()
        return {"returned": len(body["lease_tokens"])}


def test_a_bundle_that_is_done_asks_for_twice_as_many():
    home = Home()
    bundle = Bundle(home, leases(3))  # type: ignore[arg-type]
    assert [bundle.next()["lease_token"] for _ in range(3)] == ["t0", "t1", "t2"]  # type: ignore[index]
    assert bundle.next() is None
    assert bundle.close() == 6
    assert not home.returned


def test_a_bundle_that_is_cut_off_gives_the_rest_back():
    home = Home()
    bundle = Bundle(home, leases(5))  # type: ignore[arg-type]
    bundle.next()
    bundle.next()
    assert bundle.has_more
    assert bundle.close() == 2
    assert home.returned == ["t2", "t3", "t4"]
    assert not bundle.has_more


@pytest.mark.parametrize(("capture_seconds", "lease_seconds"), [(0.05, 60.0), (60.0, 0.15)])
def test_nothing_waits_behind_a_long_capture(monkeypatch, capture_seconds, lease_seconds):
    monkeypatch.setattr(module, "CAPTURE_SECONDS", capture_seconds)
    home = Home()
    bundle = Bundle(home, leases(3, lease_seconds))  # type: ignore[arg-type]
    begun = [first["lease_token"]] if (first := bundle.next()) else []  # else this machine was slower than the bundle
    assert home.given.wait(60)
    assert begun + home.returned == ["t0", "t1", "t2"]
    assert bundle.next() is None


def ended(number: int, rows: int = 1, more: bool = False, name: str = "a") -> Ended:
    server = Server()
    held = Held("stats.columns", False, False, pa.table({name: pa.array([number] * rows, pa.int64())}))
    given = lease() | {"job_id": f"j{number}", "lease_token": f"t{number}", "kind": "sync"}
    body = {"outcomes": [], "rows": [held]}
    return Ended(LeaseKeeper(server, given), given, body, lambda: more)  # type: ignore[arg-type]


def test_what_ends_while_the_server_is_told_is_told_together():
    sent: list[list[Ended]] = []
    told, go, done = threading.Event(), threading.Event(), threading.Event()

    def send(batch: list[Ended]) -> None:
        sent.append(batch)
        told.set()
        go.wait(60)
        if sum(map(len, sent)) == 4:
            done.set()

    outbox = Outbox(send)
    outbox.put(ended(0))
    assert told.wait(60)
    for number in (1, 2, 3):
        outbox.put(ended(number))
    go.set()
    assert done.wait(60)
    assert [len(batch) for batch in sent] == [1, 3]


def test_captures_of_a_bundle_wait_for_each_other_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", 3600.0)
    sent: list[int] = []
    done = threading.Event()
    outbox = Outbox(lambda batch: (sent.append(len(batch)), done.set())[1])
    for number in range(3):
        outbox.put(ended(number, more=True))
    assert sent == []
    monkeypatch.setattr(module, "LINGER_SECONDS", -1.0)  # the time is over
    assert done.wait(60)
    assert sent == [3]


def test_a_call_holds_a_limit_of_bytes(monkeypatch):
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


def test_rows_of_one_schema_go_in_one_stream():
    (first, other) = rows_together([ended(0, 2), ended(1, 3), ended(2, 1, name="b"), ended(3, 0)])
    assert first["counts"] == [[0, 2], [1, 3], [3, 0]]
    assert other["counts"] == [[2, 1]]
    rows = pa.ipc.open_stream(first["ipc"]).read_all()
    assert rows.to_pydict() == {"a": [0, 0, 1, 1, 1]}


def test_a_refused_call_is_told_one_by_one():
    server = Server()

    def refuse(_: Any) -> Any:
        raise pa.ArrowInvalid("[INVALID_ARGUMENT] row 1: ndv is negative")

    server.answers["finish_jobs"] = refuse
    Worker(server, Registry([]))._end([ended(0), ended(1)])  # type: ignore[arg-type]
    assert [body["job_id"] for body in server.finished] == ["j0", "j1"]
    assert all(body["rows"][0]["table"] == "stats.columns" for body in server.finished)


def test_a_server_that_is_away_is_told_again_of_all_at_once():
    server = Server()
    tries: list[int] = []

    def away(body: Any) -> Any:
        tries.append(len(body["finishes"]))
        if len(tries) < 2:
            raise flight.FlightUnavailableError("away")
        return {"job_id": "j0", "state": "SUCCEEDED"}

    server.answers["finish_jobs"] = away
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    assert worker._finish_all([ended(0)])
    assert tries == [1, 1] and not server.finished


def test_the_server_is_not_asked_for_what_cannot_be_stored():
    server = Server()
    sink = DraftSink(server, LeaseKeeper(server, lease()), has_statistics=False)  # type: ignore[arg-type]
    assert sink.stored("stats.columns", None, ["column_id", "engine_id"]).column_names == ["column_id", "engine_id"]  # type: ignore[arg-type]
    assert sink.stored("stats.sketches", None).num_rows == 0  # type: ignore[arg-type]
    assert not server.calls
