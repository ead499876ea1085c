"""Versions of tables, for the validation of caches.

Every table has a generation. It increases after each commit that may have changed what a reader sees of the table, and
before the commit is acknowledged to its caller. A cached result is valid while the table has the generation it was read
at, so no reader misses an acknowledged write. The generation must be taken before reading, never after.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial


class TableVersions:
    """Generations by table key, and `epoch`: the number of commits that changed any table.

    Instances never share a generation, so a result cached for one database is never valid for another.
    """

    _starts = itertools.count(0, 1 << 40)

    def __init__(self) -> None:
        self.epoch = 0
        self.first = next(self._starts)  # generation of tables that have not changed
        self._generations: defaultdict[int, int] = defaultdict(partial(int, self.first))
        self._committing: AbstractSet[int] = frozenset()
        self._lock = threading.Lock()
        self.changed = threading.Event()  # set after each such commit; for one thread that waits for it and clears it

    def generation(self, table_key: int) -> int:
        """The table's current generation."""
        return self._generations[table_key]

    def settled(self, table_key: int) -> int | None:
        """The table's generation; None during a commit that changes the table. If two calls return the same number,
        there was no such commit in between."""
        with self._lock:
            return None if table_key in self._committing else self._generations[table_key]

    def generations(self) -> Mapping[int, int]:
        """The current generations of all tables."""
        with self._lock:
            return self._generations.copy()

    def renew(self) -> None:
        """Advances the generations of all tables, and the epoch."""
        with self._lock:
            self.first = next(self._starts)
            self._generations = defaultdict(partial(int, self.first))
            self.epoch += 1
        self.changed.set()

    def steady(self) -> int | None:
        """The epoch; None during a commit. If two calls return the same number, there was no commit in between."""
        with self._lock:
            return None if self._committing else self.epoch

    def begin(self, table_keys: AbstractSet[int]) -> None:
        """Marks the start of a commit that changes these tables; `note` marks its end."""
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
        self.changed.set()
