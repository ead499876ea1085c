"""When the server starts its own workers."""

from __future__ import annotations

from pathlib import Path

from flight_server.core.config import Settings
from flight_server.process import workers
from flight_server.process.workers import Jobs, OwnWorkers


def test_worker_that_only_inspects_lakes_starts_when_one_is_to_be_inspected(monkeypatch):
    waiting, connected = set[str](), set[str]()
    own = OwnWorkers(Settings(db=Path("unused"), workers=0))
    own.open(
        "grpc://127.0.0.1:1",
        "token",
        Jobs(lambda lanes: not waiting.isdisjoint(lanes), lambda worker, how: None, connected.__contains__),
    )
    try:
        waiting.add("sync")
        own.keep()
        assert own.running() == 0
        assert all(own.is_alive(lane) for lane in ("control", "watch", "publish"))
        assert not own.is_alive("light") and not own.is_alive("sync")
        waiting.add("watch")
        own.keep()
        waiting.clear()
        own.keep()
        assert own.running() == 1 and own.is_alive("control") and not own.is_alive("sync")
        monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.0)
        assert not own.is_alive("control")  # it runs, and never came
        connected.add("control")
        assert own.is_alive("control")
    finally:
        own.stop()
    assert own.running() == 0 and not own.is_alive("control")
