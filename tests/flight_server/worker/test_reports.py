"""Bundles of a worker: unstarted leases are returned, finished captures are sent together."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from capture.registry import Registry
from flight_server.worker import slots
from flight_server.worker.draft_sink import DraftSink, Held
from flight_server.worker.lease_keeper import LeaseKeeper, Renewals
from flight_server.worker.loop import Worker
from flight_server.worker.reports import Ended, rows_together
from flight_server.worker.slots import Slot
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


def slot_of(count: int, seconds: float = 60.0) -> Slot:
    slot = Slot(("sync",))
    slot.take(leases(count, seconds))
    return slot


def test_slot_that_begins_all_its_leases_asks_for_twice_as_many():
    slot = slot_of(3)
    assert [slot.next()["lease_token"] for _ in range(3)] == ["t0", "t1", "t2"]  # type: ignore[index]
    assert slot.next() is None
    assert slot.most == 6 and slot.drop() == []


def test_slot_that_gives_leases_back_asks_for_as_many_as_it_began():
    slot = slot_of(5)
    slot.next()
    slot.next()
    assert slot.drop() == ["t2", "t3", "t4"]
    assert slot.next() is None and slot.most == 2


@pytest.mark.parametrize(("capture_seconds", "lease_seconds"), [(-1.0, 60.0), (60.0, -3.0)])
def test_leases_behind_a_long_capture_are_returned(monkeypatch, capture_seconds, lease_seconds):
    server = ReturnsServer()
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    slot = slot_of(3)
    worker._slots.append(slot)
    slot.next()
    worker.look_after()
    assert not server.returned
    monkeypatch.setattr(slots, "CAPTURE_SECONDS", capture_seconds)
    slot._longest = lease_seconds / 3
    worker.look_after()
    assert server.returned == ["t1", "t2"] and slot.next() is None


def ended(number: int, rows: int = 1, name: str = "a") -> Ended:
    server = FakeServer()
    held = Held("stats.columns", False, False, pa.table({name: pa.array([number] * rows, pa.int64())}))
    leased = lease() | {"job_id": f"j{number}", "lease_token": f"t{number}", "kind": "sync"}
    return Ended(LeaseKeeper(leased, Renewals(server)), {"outcomes": [], "rows": [held]})  # type: ignore[arg-type]


def test_captures_are_reported_with_the_last_one_of_their_leases():
    slot = slot_of(2)
    assert not slot.is_due()
    for number, is_last in enumerate((False, True)):
        slot.next()
        slot.end(ended(number))
        assert slot.is_due() is is_last
    assert not slot.is_due(is_working=True)
    assert [end.keeper.lease["job_id"] for end in slot.take_ended()] == ["j0", "j1"]
    assert not slot.is_due()


@pytest.mark.parametrize(("limit", "value"), [("REPORT_SECONDS", -1.0), ("REPORT_COUNT", 1), ("REPORT_BYTES", 7)])
def test_captures_do_not_wait_for_all_others(monkeypatch, limit, value):
    slot = slot_of(3)
    slot.next()
    slot.end(ended(0))
    assert not slot.is_due()
    monkeypatch.setattr(slots, limit, value)
    assert slot.is_due()


def test_captures_before_a_long_one_are_reported(monkeypatch):
    server = FakeServer()
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    slot = slot_of(1)
    worker._slots.append(slot)
    slot.keeper = LeaseKeeper(slot.next() or {}, Renewals(server))  # type: ignore[arg-type]
    slot.end(ended(0))
    worker.look_after()
    assert slot.report is None
    monkeypatch.setattr(slots, "REPORT_SECONDS", -1.0)
    worker.look_after()
    assert slot.report is not None
    slot.report.result(60)
    assert [body["job_id"] for body in server.finished] == ["j0"]


def test_captures_that_end_during_a_report_are_reported_together_after_it():
    server = FakeServer()
    sizes: list[int] = []
    sending, release = threading.Event(), threading.Event()

    def finish(body: Any) -> Any:
        sizes.append(len(body["finishes"]))
        sending.set()
        assert release.wait(60)
        return [{"job_id": end["job_id"], "state": "SUCCEEDED"} for end in body["finishes"]]

    server.answers["finish_jobs"] = finish
    worker, slot = Worker(server, Registry([])), slot_of(0)  # type: ignore[arg-type]
    for number in range(4):
        slot.end(ended(number))
        worker._report(slot)
        assert sending.wait(60)
    release.set()
    assert slot.report is not None
    slot.report.result(60)
    assert sizes == [1, 3]


def test_rows_of_one_schema_are_sent_as_one_stream():
    (first, other) = rows_together([ended(0, 2), ended(1, 3), ended(2, 1, name="b"), ended(3, 0)])
    assert first["counts"] == [[0, 2], [1, 3], [3, 0]]
    assert other["counts"] == [[2, 1]]
    rows = pa.ipc.open_stream(first["ipc"]).read_all()
    assert rows.to_pydict() == {"a": [0, 0, 1, 1, 1]}
    assert not first["checked"]


def test_rejected_call_is_repeated_one_by_one():
    server = FakeServer()
    sizes: list[int] = []

    def reject(body: Any) -> Any:
        sizes.append(len(body["finishes"]))
        if "rows" in body and body["rows"] and [at for at, _ in body["rows"][0]["counts"]] != [0]:
            raise pa.ArrowInvalid("[INVALID_ARGUMENT] row 1: ndv is negative")
        server.finished += body["finishes"]
        return [{"job_id": end["job_id"], "state": "SUCCEEDED"} for end in body["finishes"]]

    server.answers["finish_jobs"] = reject
    Worker(server, Registry([]))._send([ended(0), ended(1)])  # type: ignore[arg-type]
    assert sizes == [2, 1, 1] and [body["job_id"] for body in server.finished] == ["j0", "j1"]


def test_what_the_server_refuses_is_reported_as_an_error_unless_the_lease_is_lost():
    server = FakeServer()
    bodies: list[Any] = []

    def answer(body: Any) -> Any:
        bodies.append(body)
        if len(bodies) > 1:
            return [{"state": "FAILED"} for _ in body["finishes"]]
        codes = ["LEASE_LOST", "INVALID_ARGUMENT"]
        return [{"state": "SUCCEEDED"}, *({"error": {"code": code, "message": "two different rows"}} for code in codes)]

    server.answers["finish_jobs"] = answer
    Worker(server, Registry([]))._send([ended(number) for number in range(3)])  # type: ignore[arg-type]
    (again,) = bodies[1]["finishes"]
    assert (again["job_id"], again["error"]["code"]) == ("j2", "INVALID_ARGUMENT")
    assert again["message"] == "two different rows"
    assert bodies[1]["rows"] == [] and len(bodies) == 2


def test_unavailable_server_is_retried_with_the_whole_batch():
    server = FakeServer()
    tries: list[int] = []

    def unavailable_once(body: Any) -> Any:
        tries.append(len(body["finishes"]))
        if len(tries) < 2:
            raise flight.FlightUnavailableError("away")
        return [{"job_id": "j0", "state": "SUCCEEDED"}]

    server.answers["finish_jobs"] = unavailable_once
    Worker(server, Registry([]))._send([ended(0)])  # type: ignore[arg-type]
    assert tries == [1, 1] and not server.finished


def test_sink_without_statistics_reads_nothing_from_the_server():
    server = FakeServer()
    sink = DraftSink(server, LeaseKeeper(lease(), Renewals(server)), has_statistics=False)  # type: ignore[arg-type]
    assert sink.stored("stats.columns", None, ["column_id", "engine_id"]).column_names == ["column_id", "engine_id"]  # type: ignore[arg-type]
    assert sink.stored("stats.sketches", None).num_rows == 0  # type: ignore[arg-type]
    assert not server.calls
