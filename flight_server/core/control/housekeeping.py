"""Periodic work of a server: steps that run in turn and fail independently."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

log = logging.getLogger("statflight.server")


class Housekeeping:
    """Steps by name, run in turn. A failing step does not stop the others, and is run again the next time.

    A failure is logged once, and again when the kind of error changes or the step fails after a success.
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


class Background(Housekeeping):
    """A step in a thread of its own, because it may take long.

    Args:
        pause: Returns the seconds from the end of a run to the next.
    """

    def __init__(self, name: str, step: Callable[[], object], pause: Callable[[], float]):
        super().__init__({name: step})
        self._name, self._pause, self._stopped = name, pause, threading.Event()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._loop, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stops the thread after a run that is under way."""
        self._stopped.set()

    def _loop(self) -> None:
        while not self._stopped.wait(self._pause()):
            self.run()
