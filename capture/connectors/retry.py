"""Calls to a catalog that are tried again: at the edge, where one answer is asked for, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

ATTEMPTS: Final = 3
WAIT: Final = 0.2  # seconds before the second attempt
LONGEST_WAIT: Final = 2.0

Answer = TypeVar("Answer")


def retried(call: Callable[[], Answer], worth: Callable[[Exception], bool]) -> Answer:
    """The answer of a call, which is tried again while `worth` finds that another try may mend its error.

    A call that waited in vain for its time-out is not worth it: whoever asks would wait three times as long. Where
    stamina is not installed there is one try.
    """
    try:
        import stamina
    except ModuleNotFoundError:
        return call()
    for attempt in stamina.retry_context(on=worth, attempts=ATTEMPTS, wait_initial=WAIT, wait_max=LONGEST_WAIT):
        with attempt:
            return call()
    raise AssertionError("a retry either returns or raises")
