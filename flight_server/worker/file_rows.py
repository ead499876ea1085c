"""Rows of files of a capture that this worker writes itself, as segments in a directory that the server shares with it.

Files are written and handed over by one thread beside the capture, in order, and few of them wait: a capture is slowed
down where they are written more slowly than read. Rows that cannot be written are put, and the server says why.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from capture.spi import SegmentPlace
from flight_server.worker.lease_keeper import ACTION_SECONDS
from flight_server.worker.turns import Turns
from store.model.errors import StatflightError, first_line
from store.model.puts import FAMILY_OF, MANY_ROWS

if TYPE_CHECKING:
    from store.duckdb.segment_files import Written

log = logging.getLogger("statflight.worker")

PIECE_ROWS: Final = 1 << 16
"""Rows that are written together, at least. More take memory, and a plan reads no less of a column."""

_PIECE_BYTES: Final = 32 << 20
_WAITING: Final = 1  # pieces that are written beside the capture; the next one waits until that is done


class Kind(NamedTuple):
    """The flight of rows, and how they are put; see `Sink.put`."""

    flight: str
    extra: bool
    whole: bool
    checked: bool


class _Among:
    """Rows about some columns of some files."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._columns: set[int] = set()

    def add(self, column_ids: Iterable[int], file_paths: Iterable[str]) -> None:
        """Adds the rows about all of these columns of these files."""
        self._columns.update(column_ids)
        self._files.update(file_paths)

    def may_have(self, column_ids: Collection[int], file_paths: Collection[str]) -> bool:
        """True if a row about one of these columns of one of these files may be among them."""
        return not (self._columns.isdisjoint(column_ids) or self._files.isdisjoint(file_paths))


class FileRows:
    """The rows of files of one capture.

    Args:
        act: Calls an action of the server, with a timeout in seconds.
        put: Puts rows of a kind under the lease.
        lease: As `lease_job` answers it.
        turns: Those of the worker.
    """

    def __init__(
        self,
        act: Callable[[str, Mapping[str, Any], float], list[Any]],
        put: Callable[[Kind, pa.Table], None],
        lease: Mapping[str, Any],
        turns: Turns,
    ):
        self._act, self._put, self._turns = act, put, turns
        self._key = {name: lease[name] for name in ("job_id", "lease_token")}
        cells = lease["payload"].get("segment_cells")
        self.least_rows: int | None = None if cells is None else min(cells, MANY_ROWS)
        """Rows above which they are written here; None if they are all put."""
        self._parts: dict[Kind, list[pa.Table]] = {}
        self._rows = self._waiting_rows = self._waiting_bytes = 0
        self._makers: dict[int, Any] = {}  # by snapshot
        self._place: SegmentPlace | None = None
        self._placed: dict[int, _Among] = {}  # of rows that executors may write, by snapshot
        self._written_by_others: dict[int, _Among] = {}  # of which they have written some
        self._requested: dict[int, _Among] = {}  # of the requested rows that were taken
        self._writer: ThreadPoolExecutor | None = None
        self._pieces: deque[Future[None]] = deque()

    def take(self, kind: Kind, rows: pa.Table) -> bool:
        """Takes rows of a kind; False if they are to be put.

        Raises:
            StatflightError: Rows that were taken before cannot be handed over.
        """
        if self.least_rows is None or kind.flight not in FAMILY_OF or not rows.num_rows:
            return False
        if kind.flight == "stats.sketches" and not pc.all(pc.equal(rows["target_kind"], "FILE")).as_py():
            return False
        if not kind.extra and "column_id" in rows.column_names and self._is_written_by_others(kind, rows):
            return False
        self._parts.setdefault(kind, []).append(rows)
        self._rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += int(rows.get_total_buffer_size())
        if self._rows > self.least_rows and (self._waiting_rows >= PIECE_ROWS or self._waiting_bytes >= _PIECE_BYTES):
            self._write()
        return True

    def _is_written_by_others(self, kind: Kind, rows: pa.Table) -> bool:
        """True if executors may have written rows about the same targets; notes the targets if not."""
        (*snapshots,) = pc.unique(rows["snapshot_id"]).to_pylist()
        about = [pc.unique(rows[name]).to_pylist() for name in ("column_id", "file_path")]
        written = [self._written_by_others[each] for each in snapshots if each in self._written_by_others]
        if any(among.may_have(*about) for among in written):
            return True
        for snapshot_id in snapshots if kind.flight == "stats.file_columns" else ():
            self._requested.setdefault(snapshot_id, _Among()).add(*about)
        return False

    def place_of(self, snapshot_id: int, column_ids: Sequence[int], file_paths: Sequence[str]) -> SegmentPlace | None:
        """The place into which executors write the rows about columns of files; None if they are few, or rows about
        the same targets were taken before, or there is none."""
        if self.least_rows is None or len(column_ids) * len(file_paths) <= self.least_rows:
            return None
        placed, taken = (each.setdefault(snapshot_id, _Among()) for each in (self._placed, self._requested))
        if placed.may_have(column_ids, file_paths) or taken.may_have(column_ids, file_paths):
            return None
        place = self._find_place()
        if place is not None:
            placed.add(column_ids, file_paths)
        return place

    def add(self, flight: str, snapshot_id: int, written: Written) -> None:
        """Hands a file over that an executor has written.

        Raises:
            StatflightError: The server does not take it.
        """
        self._rows += written.row_count
        self._written_by_others[snapshot_id] = self._placed[snapshot_id]
        self._hand_over(Kind(flight, extra=False, whole=False, checked=True), snapshot_id, written)

    def requested(self, flight: str) -> list[pa.Table]:
        """The rows of a flight that were requested, and wait."""
        return [rows for kind, parts in self._parts.items() if kind[:2] == (flight, False) for rows in parts]

    def finish(self) -> list[tuple[Kind, list[pa.Table]]]:
        """Hands over all rows, and waits until the server has them; returns those that are to be put, as they are few.

        Raises:
            StatflightError: Rows cannot be handed over.
        """
        if self.least_rows is not None and self._rows > self.least_rows and self._parts:
            self._write()
        self._wait(0)
        self.close()
        left, self._parts = list(self._parts.items()), {}
        return left

    def close(self) -> None:
        """Ends the thread that writes, after the piece that it is at."""
        if self._writer is not None:
            self._writer.shutdown(cancel_futures=True)
            self._writer = None

    def _write(self) -> None:
        """Has the rows that wait written; waits while others are, so that few are in memory."""
        parts, self._parts, self._waiting_rows, self._waiting_bytes = self._parts, {}, 0, 0
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "segment-writer")
        for kind, tables in parts.items():
            self._pieces.append(self._writer.submit(self._write_piece, kind, tables))
        self._wait(_WAITING)

    def _wait(self, most: int) -> None:
        """Waits until no more pieces than these are left."""
        while len(self._pieces) > most:
            with self._turns.handed_over():
                self._pieces.popleft().result()

    def _write_piece(self, kind: Kind, tables: list[pa.Table]) -> None:
        rows = pa.concat_tables(tables, promote_options="default")
        for snapshot_id in pc.unique(rows["snapshot_id"]).to_pylist():
            some = rows.filter(pc.equal(rows["snapshot_id"], snapshot_id)) if len(tables) > 1 else rows
            left = self._made(kind, some, snapshot_id)
            if left.num_rows:
                self._put(kind, left.combine_chunks())

    def _made(self, kind: Kind, rows: pa.Table, snapshot_id: int) -> pa.Table:
        """Writes rows and hands the file over; returns those that are to be put."""
        maker = self._maker(snapshot_id)
        if maker is None:
            return rows
        try:
            made = maker.make(kind.flight, rows, checked=kind.checked)
        except StatflightError as error:  # the server says what is wrong with them
            log.info("rows of files are put instead of written: %s", error)
            return rows
        if made.written is not None:
            try:
                self._hand_over(kind, snapshot_id, made.written)
            except BaseException:
                maker.discard(made.written)
                raise
        left: pa.Table = made.repeated
        return left

    def _hand_over(self, kind: Kind, snapshot_id: int, written: Written) -> None:
        about = {"table": kind.flight, "extra": kind.extra, "whole": kind.whole, "snapshot_id": snapshot_id}
        file = {"file": written.name, "digest": written.digest, "size_bytes": written.size_bytes}
        self._act("add_segment", self._key | about | file | {"rows": written.row_count}, 10 * ACTION_SECONDS)

    def _find_place(self) -> SegmentPlace | None:
        """The server's directory of segments; None if it has none, so that all rows are put."""
        if self._place is None and self.least_rows is not None:
            try:
                (answer,) = self._act("segment_place", self._key, ACTION_SECONDS)
            except StatflightError as error:
                log.info("the server has no place for segments: %s", first_line(error))
                self.least_rows = None
                return None
            self._place = SegmentPlace(answer["directory"], answer["owner"])
        return self._place

    def _maker(self, snapshot_id: int) -> Any:
        """The maker of a snapshot's segments; None if this worker does not share the server's directory."""
        from store.segment_making import SegmentMaker  # loads DuckDB, which small captures do without

        place = self._find_place()
        if place is None:
            return None
        if snapshot_id not in self._makers:
            self._makers[snapshot_id] = SegmentMaker.open(place.directory, place.owner)
        if self._makers[snapshot_id] is None:
            self.least_rows = None  # nor for what comes
        return self._makers[snapshot_id]
