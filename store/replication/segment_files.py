"""Files of segments (`store.duckdb.segments`) in a replica: each is an object of its own, by its name.

They are shipped before the commits that refer to them, and fetched before a copy that refers to them is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from store.duckdb import segment_buckets
from store.duckdb.database import Connection
from store.duckdb.segment_buckets import CALLS, names_at, object_name
from store.duckdb.segment_files import SegmentError, SegmentFiles
from store.duckdb.segments import Segments
from store.replication.log import Damaged, Log


class Shipped:
    """The files of segments in a replica.

    Args:
        segments: Those of the database.
    """

    def __init__(self, log: Log, segments: Segments):
        self._log, self._segments = log, segments
        self._known: set[str] | None = None
        self._left: dict[str, float] = {}  # name of a file that no segment has any more → since when

    def ship(self, used: Callable[[], Collection[str]]) -> None:
        """Ships the files that commits may refer to from now on.

        Args:
            used: Returns the names of the files of all segments; called for the first time only.

        Raises:
            UpstreamError: The place is out of reach.
        """
        if self._known is None:
            self._known = names_at(self._log.place)
            self._segments.files.to_ship.update(used())
        to_ship = self._segments.files.to_ship
        waiting = list(to_ship)
        if not waiting:
            return
        with ThreadPoolExecutor(CALLS, "replica-upload") as pool:
            list(pool.map(self._ship_one, waiting))
        to_ship.difference_update(waiting)

    def _ship_one(self, name: str) -> None:
        assert self._known is not None
        if name in self._known:
            return
        data = self._segments.files.data(name)
        if data is None:
            return  # of a capture that was not committed, or it is damaged here: readers are told
        self._log.place.create(object_name(name), data)
        self._known.add(name)

    def clean(self, used: Collection[str], keep_seconds: float) -> None:
        """Deletes the files that no restorable generation has."""
        now = time.monotonic()
        left = names_at(self._log.place) - set(used)
        self._left = {name: self._left.get(name, now) for name in left}
        for name, since in self._left.items():
            if now - since > keep_seconds and name not in self._segments.files.to_ship:
                self._log.place.delete(object_name(name))
                (self._known or set()).discard(name)


def fetch(log: Log, connection: Connection, files: SegmentFiles) -> None:
    """Fetches the files of a copy's segments that are not there yet.

    Args:
        connection: A connection to the copy.

    Raises:
        Damaged: The replica lacks one, or it is damaged.
    """
    try:
        segment_buckets.fetch(log.place, files.lacking(digests(connection)), files.put)
    except SegmentError as error:
        raise Damaged(f'replica "{log.place.url}": {error.message}') from None


def digests(connection: Connection) -> dict[str, str]:
    """Name → digest of the files of all segments; a database of a layout before 20 has none."""
    if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'segments'").fetchall():
        return {}
    return dict(connection.execute("SELECT name, digest FROM segments").fetchall())
