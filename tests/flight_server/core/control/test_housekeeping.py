"""Housekeeping steps fail separately, and each failure is logged once."""

from __future__ import annotations

import logging
import threading

import pytest

from flight_server.core.control.housekeeping import Background, Housekeeping


class Step:
    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO, "statflight.server")
    return lambda: [record.getMessage() for record in caplog.records]


def test_failed_step_does_not_stop_the_others(messages):
    first, second = Step(), Step()
    first.error = RuntimeError("disk full")
    Housekeeping({"first": first, "second": second}).run()
    assert (first.calls, second.calls) == (1, 1)


def test_failure_and_recovery_are_logged_once_each(messages, caplog):
    step = Step()
    housekeeping = Housekeeping({"sweep": step})
    housekeeping.run()
    step.error = RuntimeError("disk full")
    for _ in range(3):
        housekeeping.run()
    step.error = None
    housekeeping.run()
    step.error = RuntimeError("disk full")
    housekeeping.run()
    failed, works = "upkeep: sweep failed; it is tried again", "upkeep: sweep works again"
    assert messages() == [failed, works, failed]
    assert "disk full" in caplog.text  # the reason, with its traceback


def test_different_kind_of_error_is_logged_again(messages):
    step = Step()
    housekeeping = Housekeeping({"sweep": step})
    for error in (RuntimeError("a"), OSError("b"), OSError("c")):
        step.error = error
        housekeeping.run()
    assert len(messages()) == 2


def test_background_step_runs_until_it_is_stopped():
    ran = threading.Semaphore(0)
    background = Background("watch", ran.release, lambda: 0.001)
    background.start()
    assert all(ran.acquire(timeout=60) for _ in range(3))
    background.stop()
    while ran.acquire(timeout=0.2):
        pass
