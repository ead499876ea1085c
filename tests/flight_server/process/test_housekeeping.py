"""Steps of upkeep fail alone, and the log hears of it once."""

from __future__ import annotations

import logging

import pytest

from flight_server.process.housekeeping import Housekeeping


class Step:
    def __init__(self) -> None:
        self.calls = 0
        self.trouble: Exception | None = None

    def __call__(self) -> None:
        self.calls += 1
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, "statflight.server")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_step_that_fails_takes_no_other_along(told):
    first, second = Step(), Step()
    first.trouble = RuntimeError("disk full")
    Housekeeping({"first": first, "second": second}).run()
    assert (first.calls, second.calls) == (1, 1)


def test_a_failure_is_told_once_and_its_end(told, caplog):
    step = Step()
    upkeep = Housekeeping({"sweep": step})
    upkeep.run()
    step.trouble = RuntimeError("disk full")
    for _ in range(3):
        upkeep.run()
    step.trouble = None
    upkeep.run()
    step.trouble = RuntimeError("disk full")
    upkeep.run()
    failed, works = "upkeep: sweep failed; it is tried again", "upkeep: sweep works again"
    assert told() == [failed, works, failed]
    assert "disk full" in caplog.text  # the reason, with its traceback


def test_another_trouble_is_news(told):
    step = Step()
    upkeep = Housekeeping({"sweep": step})
    for trouble in (RuntimeError("a"), OSError("b"), OSError("c")):
        step.trouble = trouble
        upkeep.run()
    assert len(told()) == 2
