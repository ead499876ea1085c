"""Thread states of CPython that outlive the calls of threads which Python did not start."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow.flight as flight
import pytest

from flight_server.process import threads
from tests.flight_server.live_server import eventually

pytestmark = pytest.mark.skipif(not threads.POSSIBLE, reason="states are kept by CPython 3.11 on Linux")

CLIENTS, FEW = 24, 4


class Mark:
    """What a call leaves in its thread."""


class Begin(flight.ServerMiddlewareFactory):
    def __init__(self, keeping: bool):
        self.keeping, self.here = keeping, threading.local()
        self.marks: list[weakref.ref[Mark]] = []

    def start_call(self, info: Any, headers: Any) -> None:
        if self.keeping:
            threads.keep()
        if not hasattr(self.here, "mark"):
            self.here.mark = Mark()
            self.marks.append(weakref.ref(self.here.mark))


class Server(flight.FlightServerBase):
    def __init__(self, begin: Begin):
        super().__init__("grpc://127.0.0.1:0", middleware={"begin": begin})
        self.begin, self.together = begin, threading.Barrier(CLIENTS)

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        if action.type == "together":
            self.together.wait(30)
        return [b"marked" if hasattr(self.begin.here, "mark") else b"new"]


@contextmanager
def serving(keeping: bool) -> Iterator[Server]:
    server = Server(Begin(keeping))
    try:
        yield server
    finally:
        server.shutdown()


def ask(server: Server, action: str) -> bytes:
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        (result,) = client.do_action(flight.Action(action, b""))
        return result.body.to_pybytes()


def states() -> int:
    """How many thread states the interpreter has."""
    api = ctypes.pythonapi
    head, following = api.PyInterpreterState_ThreadHead, api.PyThreadState_Next
    head.restype = following.restype = api.PyInterpreterState_Get.restype = ctypes.c_void_p
    count, at = 0, head(ctypes.c_void_p(api.PyInterpreterState_Get()))
    while at:
        count, at = count + 1, following(ctypes.c_void_p(at))
    return count


@pytest.mark.parametrize(("keeping", "found"), [(True, b"marked"), (False, b"new")])
def test_what_headers_leave_in_a_thread_is_there_in_the_method(keeping, found):
    with serving(keeping) as server:
        assert [ask(server, "one") for _ in range(5)] == [found] * 5


def test_states_go_with_their_threads():
    threads.reap()
    before = states() - threads.kept()
    with serving(True) as server, ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(3):
            assert set(pool.map(lambda _: ask(server, "together"), range(CLIENTS))) == {b"marked"}
        assert threads.kept() >= CLIENTS  # they waited for each other, each in a thread
        begin = server.begin
    eventually(lambda: threads.reap() is not None and threads.kept() <= FEW)
    gc.collect()
    left = threads.kept()  # of a thread that gRPC has not let go of
    eventually(lambda: states() <= before + left)
    assert len(begin.marks) >= CLIENTS and sum(mark() is not None for mark in begin.marks) <= left


def test_a_state_of_a_thread_that_lives_stays():
    with serving(True) as server:
        ask(server, "one")
        threads.reap()
        assert threads.kept() >= 1
        assert ask(server, "one") == b"marked"
