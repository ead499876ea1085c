"""Captures of many tables by one command: few calls, and a separate outcome per table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.faces.commands import progress as module
from flight_server.faces.commands.progress import TOGETHER, Requests, Running, capture_each, described


class FakeLake:
    """Tables of two requests each; captures of `rejected` ones fail, and `unknown` ones do not exist."""

    def __init__(self, rejected: tuple[str, ...] = (), unknown: tuple[str, ...] = ()):
        self.rejected, self.unknown = rejected, unknown
        self.calls: list[Requests] = []

    def requests_of(self, _reader: Any, name: str) -> Requests:
        if name in self.unknown:
            raise pa.ArrowKeyError(f"no table {name}")
        return [{"table": name, "target": {"column_id": n}} for n in range(2)]

    def capture(self, requests: Requests) -> Requests:
        self.calls.append(requests)
        if any(request["table"] in self.rejected for request in requests):
            raise pa.ArrowInvalid("refused")
        return [request | {"outcome": "CAPTURED"} for request in requests]

    def run(self, names: list[str]) -> dict[str, Any]:
        return dict(capture_each(None, names, self.requests_of, self.capture))  # type: ignore[arg-type]


def names(count: int) -> list[str]:
    return [f"c.s.t{n}" for n in range(count)]


def test_many_tables_are_captured_in_few_calls():
    lake = FakeLake()
    found = lake.run(names(TOGETHER * 2 + 1))
    assert sorted(map(len, lake.calls)) == [2, 2 * TOGETHER, 2 * TOGETHER]
    assert sorted(found) == sorted(names(TOGETHER * 2 + 1))
    assert all({outcome["table"] for outcome in ended} == {name} for name, ended in found.items())


def test_few_tables_are_captured_in_one_call_each():
    lake = FakeLake()
    assert len(lake.run(names(3))) == len(lake.calls) == 3


def test_failed_table_does_not_fail_the_others():
    lake = FakeLake(rejected=("c.s.t1",), unknown=("c.s.t2",))
    found = lake.run(names(6))
    assert {name for name, ended in found.items() if isinstance(ended, Exception)} == {"c.s.t1", "c.s.t2"}
    assert isinstance(found["c.s.t1"], pa.ArrowInvalid) and isinstance(found["c.s.t2"], pa.ArrowKeyError)
    assert [len(found[name]) for name in ("c.s.t0", "c.s.t3", "c.s.t4", "c.s.t5")] == [2] * 4


def test_unavailable_server_is_called_only_once():
    lake = FakeLake()

    def unavailable(requests: Requests) -> Requests:
        lake.calls.append(requests)
        raise flight.FlightUnavailableError("away")

    found = dict(capture_each(None, names(8), lake.requests_of, unavailable))  # type: ignore[arg-type]
    assert len(lake.calls) == 1
    assert all(isinstance(ended, flight.FlightUnavailableError) for ended in found.values())


def test_call_has_at_most_max_requests(monkeypatch):
    monkeypatch.setattr(module, "MAX_REQUESTS", 5)
    lake = FakeLake()
    lake.run(names(5))
    assert [len(call) for call in lake.calls] == [4, 4, 2]


def test_progress_bar_description():
    waiting = Running(0.0, "")
    words = "3 of 12 files, 1.0 GiB of 4.0 GiB, 200.0 MiB/s"
    assert described(["a"], {"a": Running(0.25, words)}, 9.0) == (0.25, "a", words)
    assert described(["a", "b", "c"], {"b": waiting, "c": Running(0.5, words)}, 30.0) == (
        1.5,
        "1 of 3 tables, 2/min",
        f"c: {words}",
    )
    assert described(["a", "b"], {"a": waiting, "b": waiting}, 1.0) == (0.0, "0 of 2 tables", "")
    assert described(["a"], {}, 1.0) == (1.0, "a", "")
