"""The sink of a worker's captures: rows go into the draft of a lease; a few rows travel with the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from capture.spi import SegmentPlace, Sink, TableHandle
from flight_server.client.connection import Connection
from flight_server.worker.file_rows import FileRows, Kind
from flight_server.worker.lease_keeper import ACTION_SECONDS, LeaseKeeper
from flight_server.worker.stored_together import StoredTogether
from flight_server.worker.turns import Turns
from store.model.errors import Cancelled, InvalidArgument, UpstreamError, first_line
from store.model.puts import IDENTITY, Listing
from store.model.schemas import FLIGHTS

if TYPE_CHECKING:
    from store.duckdb.segment_files import Written

INLINE_BYTES: Final = 1 << 20  # maximum of rows sent with the outcome
_OF_COLUMNS: Final = ("stats.columns", "stats.file_columns")  # flights of which two engines may have the same targets
_NAME: Final = ("table_catalog", "table_schema", "table_name")

T = TypeVar("T")


class Held(NamedTuple):
    """Rows of a flight that are sent with an outcome."""

    flight: str
    extra: bool
    whole: bool
    rows: pa.Table
    checked: bool = False

    @property
    def size_bytes(self) -> int:
        """The memory of the rows."""
        return int(self.rows.get_total_buffer_size())  # cheaper than nbytes, which visits each array


def _besides(flight: str, extra: pa.Table, requested: pa.Table) -> pa.Table:
    """Extra rows except those of requested targets, which the server would compare and not store."""
    names = ["snapshot_id", *IDENTITY[flight]]
    if not set(names) <= {*extra.column_names} & {*requested.column_names}:
        return extra
    has, targets = (list(zip(*(rows[n].to_pylist() for n in names), strict=True)) for rows in (requested, extra))
    taken = {target for target in has if None not in target}
    return extra.filter(pa.array([target not in taken for target in targets], pa.bool_()))


def encoded(held: Held) -> dict[str, Any]:
    """Encodes rows for `finish_job`.

    Returns:
        An item of `rows`; its `ipc` is a stream of one batch.
    """
    rows = held.rows.combine_chunks()
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    command = {"table": held.flight, "extra": held.extra, "whole": held.whole, "checked": held.checked}
    return command | {"ipc": stream.getvalue()}


@cache
def _nothing(flight: str) -> pa.Table:
    """No rows of a flight; made once, since its columns are many."""
    return FLIGHTS[flight].schema.empty_table()


class DraftSink(Sink):
    """Puts rows under a lease. A few rows are kept until the end and sent with the outcome, in one call.

    Attributes:
        listings: Full file listings (snapshot id and digest), sent with the outcome.

    Args:
        has_statistics: False if the store has no statistics of the table, so that `stored` need not ask.
        together: What was read for several captures, if any.
        turns: Those of the worker: other threads compute while this one waits for the server.
    """

    def __init__(
        self,
        server: Connection,
        keeper: LeaseKeeper,
        *,
        has_statistics: bool = True,
        together: StoredTogether | None = None,
        turns: Turns | None = None,
    ):
        self.server, self.keeper, self.has_statistics, self._turns = server, keeper, has_statistics, turns or Turns()
        self._together = together or StoredTogether(server, (), self._turns)
        self._files = FileRows(self._act, self._send, keeper.lease, self._turns)
        self._held: dict[Kind, list[pa.Table]] = {}
        self.listings: list[dict[str, Any]] = []
        self._bytes = 0

    def put(
        self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False, checked: bool = False
    ) -> None:
        """Takes rows; beyond INLINE_BYTES they are sent to the server at once."""
        self.keeper.touched = time.monotonic()
        kind = Kind(flight, extra, whole, checked)
        if self._files.take(kind, rows):
            return
        if rows.num_rows or whole:
            self._held.setdefault(kind, []).append(rows)
            self._bytes += int(rows.get_total_buffer_size())
            if self._bytes > INLINE_BYTES:
                self._flush()

    def _flush(self) -> None:
        held, self._held, self._bytes = self._held, {}, 0
        for kind, parts in held.items():
            with self._turns.handed_over():
                self._send(kind, pa.concat_tables(parts, promote_options="default").combine_chunks())

    def _send(self, kind: Kind, rows: pa.Table) -> None:
        """Puts rows under the lease."""
        flags = {"extra": kind.extra, "whole": kind.whole, "checked": kind.checked}
        command = {"table": kind.flight, "draft": self.keeper.lease["lease_token"]} | flags
        self._reach(kind.flight, lambda: self.server.put_rows(command, rows))

    def _act(self, name: str, body: Mapping[str, Any], timeout: float) -> list[Any]:
        """Calls an action about rows that were captured."""
        return self._reach(str(body.get("table", name)), lambda: self.server.act(name, dict(body), timeout))

    def _reach(self, what: str, call: Callable[[], T]) -> T:
        """Calls the server.

        Raises:
            Cancelled: The lease is lost.
            InvalidArgument: The server refuses what was captured.
            UpstreamError: The server could not be reached.
        """
        self.keeper.touched = time.monotonic()
        try:
            return call()
        except pa.ArrowInvalid as refusal:
            if "LEASE_LOST" in str(refusal):
                self.keeper.unwanted.set()
                raise Cancelled("the lease is lost") from None
            raise InvalidArgument(f"what was captured for {what} is refused: {first_line(refusal, 500)}") from None
        except (pa.ArrowException, OSError) as error:
            raise UpstreamError(f"the server could not be reached: {first_line(error)}") from None

    def close(self) -> None:
        """Ends what goes on beside the capture; rows that are not sent are lost."""
        self._files.close()

    def held(self) -> list[Held]:
        """The rows to send with the outcome; extra ones only of targets that were not requested. The others are sent
        before."""
        for kind, parts in self._files.finish():
            self._held.setdefault(kind, []).extend(parts)
            self._bytes += sum(int(part.get_total_buffer_size()) for part in parts)
        if self._bytes > INLINE_BYTES:
            self._flush()
        held = [
            Held(kind.flight, kind.extra, kind.whole, pa.concat_tables(parts, promote_options="default"), kind.checked)
            for kind, parts in self._held.items()
        ]
        for at, each in enumerate(held):
            for other in held if each.extra and each.flight in _OF_COLUMNS else ():
                if other.flight == each.flight and not other.extra:
                    each = held[at] = each._replace(rows=_besides(each.flight, each.rows, other.rows))
        return [each for each in held if each.rows.num_rows or each.whole]

    def list_files(self, table: TableHandle, listing: Listing) -> bool:
        self.keeper.touched = time.monotonic()
        marked: dict[str, Any] = {"snapshot_id": table.snapshot_id, "mark": listing.mark}
        self.listings = [other for other in self.listings if other["snapshot_id"] != table.snapshot_id]
        if listing.base_snapshot_id is None:  # a full listing cannot be refused
            self.listings.append(marked)
            return True
        body = marked | {
            "job_id": self.keeper.lease["job_id"],
            "lease_token": self.keeper.lease["lease_token"],
            "base": {"snapshot_id": listing.base_snapshot_id, "mark": listing.base_mark},
            "removed": list(listing.removed),
        }
        try:
            with self._turns.handed_over():
                (answer,) = self.server.act("declare_listing", body, ACTION_SECONDS)
            return bool(answer["accepted"])
        except (
            pa.ArrowException,
            OSError,
            ValueError,
        ):  # all rows are put instead, and that reports the error if it lasts
            return False

    def segment_place(
        self, table: TableHandle, column_ids: Sequence[int], file_paths: Sequence[str]
    ) -> SegmentPlace | None:
        return self._files.place_of(table.snapshot_id, column_ids, file_paths)

    def add_segment(self, flight: str, table: TableHandle, written: Written) -> None:
        with self._turns.handed_over():
            self._files.add(flight, table.snapshot_id, written)

    def requested(self, flight: str, table: TableHandle, columns: Sequence[str]) -> pa.Table:
        parts = [rows for key, held in self._held.items() if key[:2] == (flight, False) for rows in held]
        parts += self._files.requested(flight)
        names = ["snapshot_id", *columns]
        rows = pa.concat_tables([part.select(names) for part in parts]) if parts else _nothing(flight)
        return rows.filter(pc.equal(rows["snapshot_id"], table.snapshot_id)).select(columns)

    def stored(
        self,
        flight: str,
        table: TableHandle,
        columns: Sequence[str] | None = None,
        column_ids: Sequence[int] | None = None,
    ) -> pa.Table:
        self.keeper.touched = time.monotonic()
        if not self.has_statistics:
            nothing = _nothing(flight)
            return nothing if columns is None else nothing.select(list(columns))
        if columns is None and column_ids is not None:
            together = self._together.rows(flight, table, column_ids)
            if together is not None and together.num_rows:
                return together
        predicates = [{"column": column, "op": "EQ", "values": [table.key[column]]} for column in _NAME]
        if column_ids is not None:
            predicates.append({"column": "column_id", "op": "IN", "values": list(column_ids)})
        command: dict[str, Any] = {"table": flight, "predicates": predicates, "snapshot": table.snapshot_id}
        if columns is not None:
            command["columns"] = list(columns)
        with self._turns.handed_over():
            rows = self.server.get(command)  # those of other schemas take several times as long
            return rows if rows.num_rows else self.server.get(command | {"allow_stale": True})

    def progress(self, share: float, message: str = "") -> None:
        self.keeper.progress(share, message)
