"""DoPut: reads and validates a stream of Arrow batches, as one atomic put."""

from __future__ import annotations

import base64
import functools
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
import pyarrow.flight as flight
from msgspec import Meta

from flight_server.core.auth.principal import Principal
from flight_server.core.wire.ipc_sizes import declared_bytes
from flight_server.core.wire.scan_request import find_flight, parse_json, path_name
from store.duckdb.spill import SpillBuffer
from store.history import validation
from store.model import target_ids
from store.model.bounds import ZonePolicy
from store.model.errors import (
    Cancelled,
    InvalidArgument,
    InvalidField,
    PermissionDenied,
    ResourceExhausted,
    Words,
    first_line,
)
from store.model.flight import Flight
from store.model.names import join_name
from store.model.sketches.readable import first_unreadable
from store.model.structs import Struct, Truth, read
from store.stats_store import Put, PutMode

MAX_PUT_BYTES: Final = 8 << 30
MAX_INLINE_BYTES: Final = 256 << 20  # of all streams in the body of an action, decompressed
_FEW_ROWS: Final = 4096  # smaller batches are validated by the thread that reads the stream, others in the pool
_CHECKED_AHEAD: Final = 3  # most batches of one stream in validation
_CHECKERS: Final = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="put-check")


@dataclass(frozen=True, slots=True)
class PutRequest:
    """A parsed put descriptor. `draft` is a worker's lease token; the rows are published when the lease is finished.
    `whole` is true if they are all rows of their flight at their snapshots, `checked` if built-in engines made them."""

    flight: Flight
    mode: PutMode = PutMode.CREATE
    idempotency_key: str | None = None
    draft: str | None = None
    whole: bool = False
    checked: bool = False


def parse_put(descriptor: flight.FlightDescriptor) -> PutRequest:
    """The request of a DoPut's descriptor.

    Raises:
        InvalidArgument: The descriptor is not valid, or the flight takes no rows.
        NotFound: The flight does not exist.
    """
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return PutRequest(_writable(path_name(descriptor)))
    return _parse_command(parse_json(descriptor.command or b"", "command"))


class _Command(Struct):
    """The JSON command of a put; workers say besides where the rows belong (see `PutRequest`)."""

    table: Annotated[str, Meta(title="must be a string", description="the name of a flight")]
    mode: Literal["create", "upsert", "replace_snapshot"] = "create"
    idempotency_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=1000,
                title="is not a valid key",
                description="text of 1 to 1000 characters",
            ),
        ]
        | None
    ) = None
    draft: str | None = None
    extra: Truth = False
    whole: Truth = False
    checked: Truth = False


def _parse_command(body: Any) -> PutRequest:
    command = read(body, _Command, "command")
    flight_ = _writable(command.table)
    if command.draft is None:
        return PutRequest(flight_, PutMode(command.mode), command.idempotency_key)
    mode = PutMode.FILL if command.extra else PutMode.CAPTURE
    return PutRequest(flight_, mode, None, command.draft, command.whole, command.checked)


def _writable(name: str) -> Flight:
    flight_ = find_flight(name)
    if not flight_.writable:
        raise InvalidArgument(
            f"{name} cannot be written by DoPut", code="NOT_WRITABLE", hint="the flight sys.flights lists writable ones"
        )
    return flight_


def read_rows(
    request: PutRequest,
    reader: Any,
    principal: Principal,
    policy: ZonePolicy,
    is_cancelled: Callable[[], bool],
    directory: Path | None = None,
) -> pa.Table:
    """Reads and validates the rows of a put stream; stores nothing.

    Args:
        policy: Treatment of bounds with a zone for TIMESTAMP columns.
        directory: Directory of the spill file; None to keep all rows in memory.

    Returns:
        All rows, validated.

    Raises:
        InvalidArgument: The stream is malformed or too large, or a row is not valid; the message has its number.
        PermissionDenied: The caller may not write one of the tables.
        Cancelled: The caller disconnected before the end of the stream.
    """
    received, size = 0, 0
    # the schema is checked first, so that a stream without rows is refused if it is not valid
    schema = _whole(lambda: _named(reader.schema))
    buffer = SpillBuffer(_prepared(request.flight, schema, policy), directory)
    checks: deque[Callable[[], pa.Table]] = deque()  # validations of batches, in order

    def check(batch: pa.RecordBatch, first_row: int) -> pa.Table:
        part = validation.prepare(
            request.flight,
            batch,
            policy,
            first_row=first_row,
            clamp=request.draft is not None,  # only captures may have estimates that are too large
            checked=request.checked and principal.is_own,
        )
        if request.flight.name == "stats.sketches" and request.draft is None:
            _check_sketches(part, first_row)
        _check_permission(part, principal, request)
        return part

    while True:
        try:
            chunk = _whole(reader.read_chunk)
        except StopIteration:
            break
        batch = chunk.data
        if batch is None:
            continue
        size += batch.get_total_buffer_size()  # nbytes would read offsets that are not validated yet
        if size > MAX_PUT_BYTES:
            raise InvalidArgument(f"the stream has more than {MAX_PUT_BYTES} bytes", hint="put it in several streams")
        if batch.num_rows < _FEW_ROWS:
            checks.append(functools.partial(check, batch, received))
        else:
            checks.append(_CHECKERS.submit(check, batch, received).result)
        received += batch.num_rows
        if len(checks) > _CHECKED_AHEAD:
            buffer.add(checks.popleft()())
    while checks:
        buffer.add(checks.popleft()())
    # a deadline or a cancellation looks like the end of the stream
    if is_cancelled():
        raise Cancelled("the put was cancelled before its stream was complete; nothing was stored")
    rows = buffer.table()
    return target_ids.with_storage_ids(rows) if request.flight.name == "stats.sketches" else rows


@contextmanager
def freed_if_refused() -> Iterator[None]:
    """Context of a put: frees its memory if it fails, and not only when its exception is gone.

    The frames of a traceback hold the batches, and Arrow's pool keeps freed blocks for the next allocation.
    """
    try:
        yield
    except BaseException as error:
        refusal: BaseException | None = error
        while refusal is not None:
            traceback.clear_frames(refusal.__traceback__)
            refusal = refusal.__context__
        pa.default_memory_pool().release_unused()
        raise


@functools.lru_cache(128)
def _prepared(flight: Flight, schema: pa.Schema, policy: ZonePolicy) -> pa.Schema:
    """The schema of validated rows; cached, because workers send the same few schemas repeatedly."""
    return validation.prepare(flight, pa.Table.from_batches([], schema), policy).schema


def _check_sketches(rows: pa.Table, first_row: int) -> None:
    """Refuses unreadable sketches, from which no histogram or NDV could be computed."""
    if unreadable := first_unreadable(rows["sketch_type"], rows["data"]):
        row, reason = unreadable
        type, data = rows["sketch_type"][row].as_py(), rows["data"][row].as_py()
        raise InvalidField(
            "data",
            reason,
            expected=f"the bytes of an {type}",
            actual=Words(f"{len(data)} bytes"),
            where=f"row {first_row + row + 1}",
        )


def _whole(read: Callable[[], Any]) -> Any:
    """Reads from a caller's stream; errors of Arrow become InvalidArgument."""
    try:
        return read()
    except flight.FlightError:  # the caller disconnected, or its deadline passed
        raise
    except MemoryError:
        raise ResourceExhausted(
            "a batch does not fit into the memory that the server has left", hint="send smaller batches"
        ) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the Arrow stream is malformed: {_reason(error)}") from None


def _named(schema: pa.Schema) -> pa.Schema:
    schema.names  # noqa: B018  decodes the names, to find invalid UTF-8 while the stream is read
    return schema


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a name is not valid UTF-8"
    return first_line(error)


def _check_permission(rows: pa.Table, principal: Principal, request: PutRequest) -> None:
    if principal.sees_all or request.draft is not None:
        return
    names = rows.select(["table_catalog", "table_schema", "table_name"])
    for row in names.group_by(names.column_names).aggregate([]).to_pylist():
        name = (row["table_catalog"], row["table_schema"], row["table_name"])
        if not principal.sees(*name):
            raise PermissionDenied(f'"{join_name(*name)}" is not among the tables you may write')


def to_put(request: PutRequest, rows: pa.Table) -> Put:
    """The put of validated rows."""
    return Put(request.flight.name, rows, request.mode)


class _Stream:
    """An Arrow IPC stream in memory, with the interface of Flight's reader."""

    def __init__(self, data: bytes | memoryview):
        self._reader = pa.ipc.open_stream(data)
        self.schema = self._reader.schema

    def read_chunk(self) -> Any:
        return SimpleNamespace(data=self._reader.read_next_batch())


def with_streams(items: Sequence[Any], streams: memoryview) -> list[Any]:
    """Replaces `ipc` in the items of `rows` by the stream itself, and checks the sizes before any is decompressed.

    Args:
        items: Untrusted; `ipc` is a length in bytes, or base64.
        streams: The concatenated streams, in the order of the items.

    Returns:
        The items, with bytes in `ipc` instead of a length or base64.

    Raises:
        InvalidField: A length is not valid, or the lengths do not add up to the size of `streams`.
        InvalidArgument: A stream is malformed, or they are too large.
    """
    filled, start, size = [], 0, 0
    for item in items:
        ipc = item.get("ipc") if isinstance(item, dict) else None
        if isinstance(ipc, int):
            if isinstance(ipc, bool) or not 0 < ipc <= len(streams) - start:
                raise InvalidField("ipc", "is not the length of a stream", expected="bytes that follow", actual=ipc)
            start, ipc = start + ipc, streams[start : start + ipc]
        if isinstance(ipc, str | memoryview):
            try:
                ipc = base64.b64decode(ipc, validate=True) if isinstance(ipc, str) else ipc
                size += declared_bytes(ipc)
            except ValueError:
                raise _malformed() from None
            if size > MAX_INLINE_BYTES:
                raise InvalidArgument(
                    f"rows: the streams have more than {MAX_INLINE_BYTES} bytes once they are decompressed",
                    hint="put them with DoPut",
                )
            item = item | {"ipc": ipc}
        filled.append(item)
    if start != len(streams):
        raise InvalidField("ipc", "lengths do not add up to the streams", expected=len(streams), actual=start)
    return filled


def _malformed() -> InvalidArgument:
    return InvalidArgument("rows: the IPC stream is malformed")


def inline(
    item: Any, leases: int, principal: Principal, policy: ZonePolicy, is_cancelled: Callable[[], bool]
) -> list[tuple[int, Put, bool]]:
    """Reads rows sent with the outcomes of captures.

    Args:
        item: `{"table", "extra"?, "whole"?, "ipc", "counts"}` of `with_streams`, untrusted but for `ipc`; `counts` are
            [[number of the lease, number of rows], …] in the order of the rows, None if all are of the first.
        policy: Treatment of bounds with a zone for TIMESTAMP columns.

    Returns:
        For each lease its number, its put, and True if that has all rows of its flight at its snapshots.

    Raises:
        InvalidField: The counts do not match the stream, or a value breaks a rule.
        InvalidArgument: The stream is malformed, or a row is not valid.
    """
    if not isinstance(item, dict) or not isinstance(item.get("ipc"), bytes | memoryview):
        raise InvalidField("rows", "must be a list of IPC streams", expected='{"table", "ipc"}', actual=item)
    counts = item.get("counts", ())
    pairs: list[Any] = [] if counts is None else counts if isinstance(counts, list) else [None]
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair)):
            raise InvalidField("counts", "must be pairs", expected="[[number of the lease, rows], …]", actual=counts)
        if pair[0] >= leases:
            raise InvalidField("counts", "has the number of an unknown lease", expected=leases, actual=pair[0])
    command = {name: value for name, value in item.items() if name not in ("ipc", "counts")}
    request = _parse_command(command | {"draft": ""})
    try:
        stream = _Stream(item["ipc"])
    except (ValueError, pa.ArrowException, OSError):
        raise _malformed() from None
    put, whole = to_put(request, read_rows(request, stream, principal, policy, is_cancelled)), request.whole
    if counts is None:
        return [(0, put, whole)]
    if sum(rows for _, rows in pairs) != put.rows.num_rows:
        raise InvalidField("counts", "do not add up to the rows sent", expected=put.rows.num_rows, actual=counts)
    parts, start = [], 0
    for at, rows in pairs:
        parts.append((at, Put(put.flight, put.rows.slice(start, rows), put.mode), whole))
        start += rows
    return parts
