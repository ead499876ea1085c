"""Files of segments (`store.duckdb.segments`) in a replica: each is an object of its own, by its name.

They are shipped before the commits that refer to them, and fetched before a copy that refers to them is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from store.duckdb.database import Connection
from store.duckdb.segment_files import SegmentFiles
from store.duckdb.segments import Segments
from store.replication.log import Damaged, Log, digest

_FOLDER: Final = "files"
_CALLS: Final = 4  # at a time: each has a file in memory


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
            self._known = set(self._log.place.names(_FOLDER))
            self._segments.files.to_ship.update(used())
        to_ship = self._segments.files.to_ship
        waiting = list(to_ship)
        if not waiting:
            return
        with ThreadPoolExecutor(_CALLS, "replica-upload") as pool:
            list(pool.map(self._ship_one, waiting))
        to_ship.difference_update(waiting)

    def _ship_one(self, name: str) -> None:
        assert self._known is not None
        if _object(name) in self._known:
            return
        data = self._segments.files.data(name)
        if data is None:
            return  # of a capture that was not committed, or it is damaged here: readers are told
        self._log.place.create(_object(name), data)
        self._known.add(_object(name))

    def clean(self, used: Collection[str], keep_seconds: float) -> None:
        """Deletes the files that no restorable generation has."""
        now = time.monotonic()
        kept = {_object(name) for name in used}
        left = set(self._log.place.names(_FOLDER)) - kept
        self._left = {name: self._left.get(name, now) for name in left}
        for name, since in self._left.items():
            if now - since > keep_seconds and _name(name) not in self._segments.files.to_ship:
                self._log.place.delete(name)
                (self._known or set()).discard(name)


def fetch(log: Log, connection: Connection, files: SegmentFiles) -> None:
    """Fetches the files of a copy's segments that are not there yet.

    Args:
        connection: A connection to the copy.

    Raises:
        Damaged: The replica lacks one, or it is damaged.
    """
    wanted = {name: expected for name, expected in digests(connection).items() if not files.path(name).exists()}
    if not wanted:
        return
    files.prepare()

    def fetch_one(name: str) -> None:
        data = log.place.read(_object(name))
        if data is None or digest(data) != wanted[name]:
            state = "missing" if data is None else "damaged"
            raise Damaged(f'replica "{log.place.url}": the segment {name} is {state}')
        files.store(name, data)

    with ThreadPoolExecutor(_CALLS, "replica-download") as pool:
        list(pool.map(fetch_one, wanted))


def digests(connection: Connection) -> dict[str, str]:
    """Name → digest of the files of all segments; a database of a layout before 20 has none."""
    if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'segments'").fetchall():
        return {}
    return dict(connection.execute("SELECT name, digest FROM segments").fetchall())


def _object(name: str) -> str:
    return f"{_FOLDER}/{name}"


def _name(of: str) -> str:
    return of.removeprefix(f"{_FOLDER}/")
