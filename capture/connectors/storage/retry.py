"""Retries of single catalog requests. Callers do not retry again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

ATTEMPTS: Final = 3
WAIT: Final = 0.2  # seconds before the second attempt
LONGEST_WAIT: Final = 2.0

Answer = TypeVar("Answer")


def retried(call: Callable[[], Answer], worth: Callable[[Exception], bool]) -> Answer:
    """Runs a call and repeats it on errors that `worth` accepts, up to ATTEMPTS attempts.

    Timeouts should not be retried, or the caller waits three times as long. Without stamina installed there is only
    one attempt.
    """
    try:
        import stamina
    except ModuleNotFoundError:
        return call()
    for attempt in stamina.retry_context(on=worth, attempts=ATTEMPTS, wait_initial=WAIT, wait_max=LONGEST_WAIT):
        with attempt:
            return call()
    raise AssertionError("a retry either returns or raises")
