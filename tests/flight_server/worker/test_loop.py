"""Worker threads: errors and hangs of engines, connectors and servers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from capture.connectors.spi import Schema
from capture.registry import Registry
from capture.spi import TableHandle
from flight_server.worker import slots
from flight_server.worker.draft_sink import INLINE_BYTES, DraftSink
from flight_server.worker.lease_keeper import LeaseKeeper, Renewals
from flight_server.worker.loop import Worker
from flight_server.worker.slots import Connectors
from store.model.errors import Cancelled, InvalidArgument


class FakeServer:
    """Hands out leases and records finished jobs."""

    def __init__(self, *leases: Any):
        self.leases: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for each in leases:
            self.leases.put(each)
        self.has_finished = threading.Event()
        self.finished: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.lock = threading.Lock()

    def act(self, name: str, body: Any, timeout: float = 0.0) -> list[dict[str, Any]]:
        with self.lock:
            self.calls.append(name)
            if name in self.answers:
                answer = self.answers[name](body)
                return answer if isinstance(answer, list) else [answer]
            if name == "finish_jobs":
                self.finished += [
                    end | {"rows": [item for item in body["rows"] if [at for at, _ in item["counts"]] == [number]]}
                    for number, end in enumerate(body["finishes"])
                ]
                self.has_finished.set()
                return [{"job_id": end["job_id"], "state": "SUCCEEDED"} for end in body["finishes"]]
        if name != "lease_job":
            return [{"wanted": True}]
        try:
            found = self.leases.get(timeout=0.02)
        except queue.Empty:
            return []
        if isinstance(found, BaseException):
            raise found
        return [found]

    def put_rows(self, command: Any, rows: Any) -> dict[str, int]:
        self.calls.append(command["table"])
        return {}


def lease(operation: str = "validate", **more: Any) -> dict[str, Any]:
    connector = {"catalog": "c", "format": "made-up", "uri": "x", "options": {}}
    return {
        "job_id": operation,
        "lease_token": "t",
        "kind": "control",
        "lease_seconds": 1.0,
        "payload": {"operation": operation, "connector": connector} | more,
    }


@pytest.fixture
def opened(monkeypatch) -> list[Any]:
    connectors: list[Any] = []
    monkeypatch.setattr(slots, "open_connector", lambda config: connectors.append(FakeConnector()) or connectors[-1])
    return connectors


class FakeConnector:
    behavior: Callable[[], list[str]] = staticmethod(lambda: ["ns"])

    def __init__(self) -> None:
        self.closed = False

    def list_namespaces(self) -> list[str]:
        return FakeConnector.behavior()

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def reset_connector() -> Iterator[None]:
    yield
    FakeConnector.behavior = staticmethod(lambda: ["ns"])


def run_until(server: FakeServer, until: int, within: float = 45.0) -> Worker:
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    worker.start([("control",)])
    deadline = time.monotonic() + within
    while len(server.finished) < until and time.monotonic() < deadline:
        worker.look_after()
        server.has_finished.wait(0.02)
        server.has_finished.clear()
    worker.stopping.set()
    return worker


def test_leased_work_is_done_and_finished(opened):
    server = FakeServer(lease())
    run_until(server, 1)
    assert server.finished[0]["result"] == {"namespaces": ["ns"]}


@pytest.mark.parametrize(
    "error",
    [pa.ArrowInvalid("x"), OSError("gone"), RuntimeError("bug"), KeyboardInterrupt(), pa.ArrowKeyError("k")],
    ids=lambda error: type(error).__name__,
)
def test_server_error_does_not_end_the_thread(opened, error, capsys):
    server = FakeServer(error, lease())
    run_until(server, 1)
    assert server.finished


class Panic(BaseException):
    """A BaseException like the panics of Rust extensions."""


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), Panic("x"), SystemExit(1), InvalidArgument("x")])
def test_error_in_the_work_is_reported_and_does_not_end_the_thread(opened, error, capsys):
    def fail() -> list[str]:
        FakeConnector.behavior = staticmethod(lambda: ["ns"])
        raise error

    FakeConnector.behavior = staticmethod(fail)
    server = FakeServer(lease(), lease())
    run_until(server, 2)
    assert "error" in server.finished[0] and server.finished[1]["result"]
    assert len(opened) == 2 and opened[0].closed  # a connector that failed is not reused


def test_connector_stays_open_between_leases(opened):
    server = FakeServer(lease(), lease(), lease())
    run_until(server, 3)
    assert len(opened) == 1


def test_old_connector_is_reopened(opened, monkeypatch):
    monkeypatch.setattr(slots, "CONNECTOR_SECONDS", -1.0)
    connectors, config = Connectors(), lease()["payload"]["connector"]
    for _ in range(2):
        with connectors.opened(config):
            pass
    assert [c.closed for c in opened] == [True, False]


def test_at_most_max_connectors_stay_open(opened):
    connectors = Connectors()
    for number in range(slots.MAX_CONNECTORS + 2):
        with connectors.opened(lease()["payload"]["connector"] | {"catalog": str(number)}):
            pass
    assert sum(not c.closed for c in opened) == slots.MAX_CONNECTORS


def test_hanging_thread_is_replaced_and_its_result_dropped(opened, capsys):
    release, hung = threading.Event(), []

    def hang() -> list[str]:
        FakeConnector.behavior = staticmethod(lambda: ["ns"])
        hung.append(threading.current_thread())
        release.wait(60)
        return ["late"]

    FakeConnector.behavior = staticmethod(hang)
    server = FakeServer(lease("validate"), lease())
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    worker.start([("control",)])
    wait_for(lambda: hung)
    worker._slots[0].keeper.touched -= worker.stall_seconds
    worker.look_after()
    wait_for(lambda: len(server.finished) == 2)
    worker.stopping.set()
    assert server.finished[0]["error"]["code"] == "STALLED"
    assert server.finished[1]["result"] == {"namespaces": ["ns"]}
    assert worker.left_behind == 1
    release.set()
    hung[0].join(30)
    assert not hung[0].is_alive()
    assert len(server.finished) == 2  # the late result is dropped


def test_hanging_lake_does_not_delay_inspections_of_others(opened):
    release = threading.Event()

    def hang() -> list[str]:
        FakeConnector.behavior = staticmethod(lambda: ["ns"])
        release.wait(60)
        return ["late"]

    FakeConnector.behavior = staticmethod(hang)
    leases = [lease() | {"kind": "watch"} for _ in range(4)]
    for number, leased in enumerate(leases):
        leased["job_id"] = str(number)
        leased["payload"]["connector"] = leased["payload"]["connector"] | {"catalog": "bad" if number == 0 else "good"}
    server = FakeServer(leases[0])
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    worker.start([("watch",)])
    wait_for(lambda: FakeConnector.behavior is not hang)
    for number in (1, 2, 3):
        server.leases.put(leases[number])
        wait_for(lambda number=number: len(server.finished) == number)
    release.set()
    wait_for(lambda: len(server.finished) == 4)
    worker.stopping.set()
    assert [done["job_id"] for done in server.finished] == ["1", "2", "3", "0"]
    assert len(opened) == 2  # the connector of the good lake stays open


def test_connector_of_an_unwatched_lake_is_closed(opened, monkeypatch):
    server = FakeServer(lease() | {"kind": "watch"})
    worker = Worker(server, Registry([]))  # type: ignore[arg-type]
    worker.start([("watch",)])
    wait_for(lambda: server.finished and len(worker._slots) == 1)
    worker.look_after()
    assert not opened[0].closed  # it may be inspected again
    monkeypatch.setattr(slots, "CONNECTOR_SECONDS", -1.0)
    worker.look_after()
    worker.stopping.set()
    assert opened[0].closed


def wait_for(probe: Callable[[], Any], within: float = 45.0) -> None:
    deadline = time.monotonic() + within
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_lease_keeper_notices_a_cancellation():
    server = FakeServer()
    server.answers["renew_lease"] = lambda body: {"wanted": False}
    keeper = LeaseKeeper({**lease(), "lease_seconds": 0.3}, Renewals(server))  # type: ignore[arg-type]
    keeper.start()
    assert keeper.unwanted.wait(30)
    with pytest.raises(Cancelled):
        DraftSink(server, keeper).progress(0.5)  # type: ignore[arg-type]
    keeper.stop()


def test_lost_lease_stops_the_work():
    def lost(body: Any) -> Any:
        raise pa.ArrowInvalid("[LEASE_LOST] the lease is lost")

    server = FakeServer()
    server.answers["renew_lease"] = lost
    keeper = LeaseKeeper({**lease(), "lease_seconds": 0.3}, Renewals(server))  # type: ignore[arg-type]
    keeper.start()
    assert keeper.unwanted.wait(30)


def test_few_rows_are_held_for_the_outcome():
    server = FakeServer()
    sink = DraftSink(server, LeaseKeeper(lease(), Renewals(server)))  # type: ignore[arg-type]
    rows = pa.table({"a": [1, 2]})
    sink.put("stats.columns", rows)
    sink.put("stats.columns", rows)
    sink.put("stats.files", rows.slice(0, 0))
    (held,) = sink.held()
    assert (held.flight, held.extra, held.whole, held.rows.num_rows) == ("stats.columns", False, False, 4)
    assert not server.calls


def test_extra_rows_of_requested_targets_are_dropped():
    server = FakeServer()
    sink = DraftSink(server, LeaseKeeper(lease(), Renewals(server)))  # type: ignore[arg-type]
    place = {"snapshot_id": [7, 7, 7, 8], "file_path": ["a", "a", "b", "a"]}
    found = pa.table(place | {"column_id": pa.array([1, None, 1, 1], pa.int64()), "null_count": [0, 0, 0, 0]})
    sink.put("stats.file_columns", found, extra=True)
    sink.put("stats.file_columns", found.slice(0, 2).set_column(3, "null_count", [[5, 5]]))
    extra, requested = sink.held()
    assert (extra.extra, requested.extra) == (True, False)
    assert extra.rows.to_pylist() == found.slice(1).to_pylist()
    assert requested.rows["null_count"].to_pylist() == [5, 5]


def test_the_requested_rows_of_a_snapshot_are_known_until_they_are_sent():
    server = FakeServer()
    sink = DraftSink(server, LeaseKeeper(lease(), Renewals(server)))  # type: ignore[arg-type]
    table = TableHandle("c", "s", "t", "id", 7, Schema(()), {}, None)  # type: ignore[arg-type]
    assert sink.requested("stats.columns", table, ["column_id"]).num_rows == 0
    sink.put("stats.columns", pa.table({"snapshot_id": [7, 8], "column_id": [1, 2]}))
    sink.put("stats.columns", pa.table({"snapshot_id": [7], "column_id": [3]}), extra=True)
    assert sink.requested("stats.columns", table, ["column_id"]).to_pylist() == [{"column_id": 1}]
    sink.put("stats.files", pa.table({"snapshot_id": [7], "file_path": ["a" * INLINE_BYTES]}))
    assert server.calls and sink.requested("stats.columns", table, ["column_id"]).num_rows == 0


def test_no_extra_rows_are_sent_when_all_were_requested():
    server = FakeServer()
    sink = DraftSink(server, LeaseKeeper(lease(), Renewals(server)))  # type: ignore[arg-type]
    rows = pa.table({"snapshot_id": [7, 7], "column_id": [1, 2]})
    sink.put("stats.columns", rows, extra=True)
    sink.put("stats.files", pa.table({"snapshot_id": [7], "file_path": ["a"]}), whole=True)
    sink.put("stats.columns", rows.slice(0, 1))
    sink.put("stats.columns", rows.slice(1))
    assert [(held.flight, held.extra) for held in sink.held()] == [("stats.files", False), ("stats.columns", False)]
