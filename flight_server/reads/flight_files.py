"""Whole flights kept ready to be sent: Arrow files beside the database, mapped into memory.

DuckDB makes Arrow at about half the rate that the wire takes it. A flight that is read as a whole for the second time
while nothing was written is therefore copied once into an Arrow file, in the background, and streamed from there until
the next write. The file loses its name as soon as it is mapped: whatever becomes of the server, nothing is left behind.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from flight_server.wire.scan_request import ScanRequest
from store.table_versions import TableVersions

log = logging.getLogger("statflight.flight_files")

GROUP_ROWS: Final = 131_072  # of a batch in the file
GROUP_BYTES: Final = 64 << 20
NOT_AGAIN_FOR: Final = 300.0  # seconds that a flight which did not fit is not tried again
HotKey = tuple[str, str | int | None, bool]
"""Flight, snapshot asked for, stale rows allowed."""


class FlightFileCache:
    """Flights as of the newest commit. `read` gives the batches of one, and what to call when done with them."""

    def __init__(
        self,
        database: Path,
        most_bytes: int,
        versions: TableVersions,
        read: Callable[[ScanRequest], Iterable[pa.RecordBatch]],
    ):
        self._directory = database.with_name(database.name + ".hot")
        self._most, self._versions, self._read = most_bytes, versions, read
        self._tables: dict[HotKey, tuple[int, pa.Table]] = {}
        self._asked: dict[HotKey, int] = {}  # with the epoch of the last time
        self._failed: dict[HotKey, float] = {}
        self._building: HotKey | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        shutil.rmtree(self._directory, ignore_errors=True)

    def get(self, request: ScanRequest) -> pa.Table | None:
        """The whole flight of a request for all of it, if it is ready; else it may be made ready for the next time."""
        if self._most <= 0 or self._closed:
            return None
        key = (request.flight.name, request.snapshot, request.allow_stale)
        epoch = self._versions.epoch
        with self._lock:
            found = self._tables.get(key)
            if found is not None and found[0] == epoch:
                return found[1]
            self._tables.pop(key, None)
            again, self._asked[key] = self._asked.get(key) == epoch, epoch
            failed = self._failed.get(key)
            if not again or self._building or (failed is not None and time.monotonic() - failed < NOT_AGAIN_FOR):
                return None
            self._building = key
        whole = ScanRequest(request.flight, snapshot=request.snapshot, allow_stale=request.allow_stale)
        thread = threading.Thread(target=self._build, args=(key, epoch, whole), name="hot", daemon=True)
        thread.start()
        self._thread = thread
        return None

    def close(self) -> None:
        """Returns once it does not use the store any more."""
        self._closed = True
        if self._thread is not None:
            self._thread.join()
        self._tables.clear()

    def _build(self, key: HotKey, epoch: int, whole: ScanRequest) -> None:
        path = self._directory / f"{uuid.uuid4().hex}.arrow"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if self._write(path, epoch, whole):
                with pa.memory_map(str(path)) as source:
                    table = pa.ipc.open_file(source).read_all()
                with self._lock:
                    self._tables[key] = (epoch, table)
        except (OSError, MemoryError) as trouble:
            log.warning("%s is not kept ready: %s", key[0], trouble)
            self._failed[key] = time.monotonic()
        except Exception:
            if not self._closed:
                log.exception("%s could not be made ready", key[0])
                self._failed[key] = time.monotonic()
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                self._directory.rmdir()
            self._building = None

    def _write(self, path: Path, epoch: int, whole: ScanRequest) -> bool:
        """True if all of it was written; a commit or the end of the server stops it."""
        free = shutil.disk_usage(self._directory).free
        with self._lock:  # readers drop what is outdated meanwhile
            kept = sum(table.nbytes for _, table in self._tables.values())
        most = min(self._most - kept, free // 2)
        size = 0
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
            for batch in _grouped(self._read(whole)):
                if self._closed or self._versions.epoch != epoch:
                    return False
                size += batch.nbytes
                if size > most:
                    raise OSError(f"more than {most} bytes")
                writer.write_batch(batch)
        return True


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches put together: a few columns of large ones are sent as they lie in the file."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = batch.nbytes
        if held and (rows + batch.num_rows > GROUP_ROWS or size + more > GROUP_BYTES):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + more
    if held:
        yield pa.concat_batches(held)
