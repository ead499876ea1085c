"""Versions of tables, which caches compare: a commit advances those it touched.

Every table has a generation. It grows after each commit that may have changed what a reader sees of the table, and
before whoever asked for the commit hears of it. What was read at a generation may be served while it is still that one:
nobody is then shown less than what was acknowledged to anybody. A generation is taken before reading, never after.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial


class TableVersions:
    """Generations by table key, and `epoch`: how many commits touched any table.

    No two of them have a generation in common: what was kept of one database is never taken for another's.
    """

    _first = itertools.count(0, 1 << 40)

    def __init__(self) -> None:
        self.epoch = 0
        self._generations: defaultdict[int, int] = defaultdict(partial(int, next(self._first)))
        self._committing: AbstractSet[int] = frozenset()
        self._lock = threading.Lock()

    def generation(self, table_key: int) -> int:
        """The table's current generation."""
        return self._generations[table_key]

    def generations(self) -> Mapping[int, int]:
        """The current generations of all tables."""
        with self._lock:
            return self._generations.copy()

    def steady(self) -> int | None:
        """The epoch; None while a commit is under way. Two calls with the same answer: no commit came in between."""
        with self._lock:
            return None if self._committing else self.epoch

    def begin(self, table_keys: AbstractSet[int]) -> None:
        """Marks tables whose changes are about to be committed; `note` ends it."""
        with self._lock:
            self._committing = table_keys

    def note(self, table_keys: AbstractSet[int]) -> None:
        """Advances the generations of committed tables, and the epoch."""
        if not table_keys:
            return
        with self._lock:
            self._committing = frozenset()
            for key in table_keys:
                self._generations[key] += 1
            self.epoch += 1
