"""The files of segments in an object store, which keeps them; the server has copies of those that it reads.

A file is an object of its own, which is written whole and never changed. Copies lie in a directory of the server and
may be deleted at any time: one that is missing or damaged is fetched again, and compared with its digest. Those that
were not read for longest go once they take more room than `COPIES_BYTES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa

from store.duckdb.segment_files import (
    GRACE_SECONDS,
    MARK,
    SegmentError,
    SegmentFiles,
    Written,
    new_name,
    unusable,
    write_parquet,
)
from store.model.errors import UpstreamError
from store.places import Place, Use, open_place

log = logging.getLogger("statflight.store")

COPIES_BYTES: Final = 16 << 30
"""Room that copies may take; those that were read in the last quarter of an hour stay nevertheless."""

_USE: Final = Use("segments", "UPSTREAM", 120)
CALLS: Final = 4
"""Files that are sent or fetched at a time: each is in memory."""

_FOLDER: Final = "files"


class BucketFiles(SegmentFiles):
    """The segments of one database in an object store.

    Args:
        bucket: The bucket, or a prefix of it, of this database alone.
        copies: Directory of the copies of files that are read; None for a process that only writes.
    """

    def __init__(self, bucket: Place, copies: Path | None):
        super().__init__(copies)
        self.copies_bytes = COPIES_BYTES
        self._bucket = bucket
        self._read_at: dict[str, float] = {}  # name → by the monotonic clock

    @property
    def location(self) -> str:
        return self._bucket.url

    def claim(self, owner: str) -> None:
        self._bucket.create(MARK, owner.encode())
        if self._bucket.read(MARK) != owner.encode():
            raise unusable(self.location, "it has the segments of another database")

    def is_shared_with(self, owner: str) -> bool:
        try:
            return self._bucket.read(MARK) == owner.encode()
        except UpstreamError as error:
            log.info("%s", error)
            return False

    def _look_at(self, written: Written) -> None:
        """Nothing: the file is fetched, and compared with its digest, before anything is read of it."""

    def write(self, rows: pa.Table) -> Written:
        """Writes a file, durably.

        Raises:
            UpstreamError: The bucket is out of reach.
        """
        name = new_name()
        self.being_written.add(name)
        try:
            sink = pa.BufferOutputStream()
            write_parquet(rows, sink)
            data = sink.getvalue().to_pybytes()
            self._bucket.create(object_name(name), data)
        except BaseException:
            self.discard([name])
            raise
        if self.directory is not None:
            with contextlib.suppress(SegmentError):  # it is fetched when it is read
                self._copy(name, data)
        return Written(name, hashlib.sha256(data).hexdigest(), len(data), rows.num_rows)

    def sync(self) -> None:
        """Nothing: an object is durable once it is written."""

    def put(self, name: str, data: bytes) -> None:
        self._bucket.create(object_name(name), data)

    def data(self, name: str) -> bytes | None:
        copy = super().data(name) if self.directory is not None else None
        return self._bucket.read(object_name(name)) if copy is None else copy

    def bring(self, digests: Mapping[str, str]) -> None:
        fetch(self._bucket, self.lacking(digests), self._copy)

    def check(self, name: str, digest: str) -> frozenset[str]:
        self._read_at[name] = time.monotonic()
        with contextlib.suppress(SegmentError):
            return super().check(name, digest)
        fetch(self._bucket, {name: digest}, self._copy)  # the copy is not there, or not whole
        return super().check(name, digest)

    def _copy(self, name: str, data: bytes) -> None:
        self._read_at[name] = time.monotonic()
        self.prepare()
        try:
            self.store(name, data)
        except OSError as error:
            raise SegmentError(name, f"cannot be copied into {self.directory}: {error.strerror}") from None

    def discard(self, names: Collection[str]) -> None:
        for name in names:
            with contextlib.suppress(UpstreamError):  # what stays is collected later
                self._bucket.delete(object_name(name))
            self._read_at.pop(name, None)
        if self.directory is not None:
            super().discard(names)
        self.being_written.difference_update(names)

    def names(self) -> set[str]:
        return names_at(self._bucket)

    def collect(self, used: Collection[str], grace_seconds: float = GRACE_SECONDS) -> int:
        count = super().collect(used, grace_seconds)
        self._delete_copies(frozenset(used), grace_seconds)
        return count

    def _delete_copies(self, used: Collection[str], grace_seconds: float) -> None:
        """Deletes copies that were not read for a while: those of no segment and, as long as all take too much room,
        those that were not read for longest."""
        if self.directory is None or not self.directory.is_dir():
            return
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(self.directory) if entry.is_file()}
        room, before = sum(sizes.values()), time.monotonic() - grace_seconds
        unread = {name: self._read_at.get(name, -math.inf) for name in sizes.keys() - self.being_written}
        for name in sorted(unread, key=lambda name: unread[name]):
            if unread[name] <= before and (room > self.copies_bytes or name not in used):
                self.path(name).unlink(missing_ok=True)
                room -= sizes[name]


def files_at(location: Path | str, copies: Path | None) -> SegmentFiles:
    """The files of segments at a place.

    Args:
        location: A directory, or the URL of a bucket.
        copies: Directory of copies, if they are in a bucket.

    Raises:
        InvalidArgument: The URL's scheme is unknown, or its library is not installed.
    """
    scheme, separator, rest = str(location).partition("://")
    if not separator:
        return SegmentFiles(Path(location))
    if scheme == "file":
        return SegmentFiles(Path(rest))
    return BucketFiles(open_place(str(location), _USE), copies)


def carry(source: SegmentFiles, target: SegmentFiles, names: Collection[str]) -> int:
    """Copies the files that a place lacks from the one where they were before.

    Returns:
        The number of files that were copied; those that are missing in both are not counted.

    Raises:
        UpstreamError: A bucket is out of reach.
    """
    lacking = sorted(set(names) - target.names())
    count = 0
    for name in lacking:
        data = source.data(name)
        if data is not None:
            target.put(name, data)
            count += 1
    return count


def fetch(place: Place, digests: Mapping[str, str], put: Callable[[str, bytes], None]) -> None:
    """Fetches files, several at a time.

    Args:
        place: A bucket of segments, or a replica.
        digests: Name → digest of each.
        put: Stores one, by its name.

    Raises:
        SegmentError: One is missing or damaged.
        UpstreamError: The place is out of reach.
    """

    def fetch_one(name: str) -> None:
        data = place.read(object_name(name))
        if data is None:
            raise SegmentError(name, "is missing")
        if hashlib.sha256(data).hexdigest() != digests[name]:
            raise SegmentError(name, "is damaged: its digest is not that of what was written")
        put(name, data)

    if digests:
        with ThreadPoolExecutor(CALLS, "segments") as pool:
            list(pool.map(fetch_one, digests))


def names_at(place: Place) -> set[str]:
    """Names of the files at a place."""
    return {name.removeprefix(f"{_FOLDER}/") for name in place.names(_FOLDER)}


def object_name(name: str) -> str:
    """The name of the object that has a file."""
    return f"{_FOLDER}/{name}"
