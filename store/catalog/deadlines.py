"""How long what is known of each table counts as current: until its next look is overdue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime


class Deadlines:
    """The deadlines of tables, by key. A table without an interval has none. Thread-safe, for one writer.

    Args:
        now: Seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time):
        self._now = now
        self._checked: dict[int, float] = {}  # when the last look began that succeeded
        self._seconds: dict[int, float] = {}
        self._draft: dict[int, float] = {}
        self._version = 0  # of what is over, as far as that changes by more than time
        self._known: tuple[int, float, frozenset[int]] = (-1, 0.0, frozenset())
        """A version, until when nothing else is over by it, and what is."""

    def load(self, rows: Iterable[tuple[int, float | None, float | None]]) -> None:
        """Replaces all by rows of key, seconds since 1970 of the last look, and interval in seconds."""
        checked, seconds = {}, {}
        for key, at, interval in rows:
            if at is not None:
                checked[key] = at
            if interval is not None:
                seconds[key] = interval
        self._draft.clear()
        self._checked, self._seconds = checked, seconds
        self._version += 1

    def check(self, keys: Iterable[int], at: datetime) -> None:
        """Notes a look at tables, which counts from `publish` on."""
        self._draft |= dict.fromkeys(keys, at.timestamp())

    def publish(self) -> None:
        """Makes noted looks count, once they are committed."""
        if self._draft:
            # What is over stays the same if tables that are not get later deadlines.
            stays = all(at >= self._checked.get(key, 0.0) and not self.is_over(key) for key, at in self._draft.items())
            self._checked |= self._draft
            self._draft = {}
            if not stays:
                self._version += 1

    def set_intervals(self, seconds: Mapping[int, float | None]) -> None:
        """Sets the seconds after which a table is overdue; None for never."""
        for key, interval in seconds.items():
            if interval is None:
                self._seconds.pop(key, None)
            else:
                self._seconds[key] = interval
        self._version += 1

    def differing(self, seconds: Mapping[int, float | None]) -> dict[int, float | None]:
        """Those of the intervals that are not set yet."""
        return {key: interval for key, interval in seconds.items() if self._seconds.get(key) != interval}

    def unlimited(self, keys: Iterable[int]) -> list[int]:
        """Those of the tables that have no interval."""
        return [key for key in keys if key not in self._seconds]

    def is_over(self, key: int) -> bool:
        """True if the last look at a table is longer ago than its interval."""
        seconds = self._seconds.get(key)
        return seconds is not None and self._now() > self._checked.get(key, 0.0) + seconds

    def over(self) -> frozenset[int]:
        """Keys of the tables that are overdue."""
        now, version = self._now(), self._version
        known_version, until, over = self._known
        if known_version == version and now <= until:
            return over
        deadlines = {key: self._checked.get(key, 0.0) + seconds for key, seconds in list(self._seconds.items())}
        over = frozenset(key for key, at in deadlines.items() if now > at)
        until = min((at for at in deadlines.values() if now <= at), default=float("inf"))
        self._known = version, until, over
        return over
