"""Periodic work of a server: steps that run in turn and fail independently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

log = logging.getLogger("statflight.server")


class Housekeeping:
    """Steps by name, done in turn. One that fails takes no other along, and is tried again the next time.

    The log hears of a failure once, not every time: again when another kind of error takes its place, or when the step
    fails anew after it has worked.
    """

    def __init__(self, steps: Mapping[str, Callable[[], object]]):
        self._steps = steps
        self._failing: dict[str, type[Exception]] = {}

    def run(self) -> None:
        """Runs each step once."""
        for name, step in self._steps.items():
            try:
                step()
            except Exception as error:
                if self._failing.get(name) is not type(error):
                    log.exception("upkeep: %s failed; it is tried again", name)
                self._failing[name] = type(error)
            else:
                if self._failing.pop(name, None) is not None:
                    log.info("upkeep: %s works again", name)
