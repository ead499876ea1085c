"""DoPut: Arrow batches → cast and validated by vector → one atomic commit → counts back."""

from __future__ import annotations

import base64
import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.auth.principal import Principal
from flight_server.wire.scan_request import find_flight, parse_json, path_name, refuse_unknown_keys
from store import records, target_ids
from store.bounds import ZonePolicy
from store.errors import Cancelled, InvalidArgument, InvalidField, PermissionDenied
from store.names import join_name
from store.schemas import Flight
from store.sketches.readable import first_unreadable
from store.spill import SpillBuffer
from store.stats_store import Put, PutMode

MAX_PUT_BYTES: Final = 8 << 30
PUBLIC_MODES: Final = (PutMode.CREATE, PutMode.UPSERT, PutMode.REPLACE_SNAPSHOT)
_FEW_ROWS: Final = 4096  # are checked by the thread that reads the stream, more beside it
_CHECKED_AHEAD: Final = 3  # batches of one stream
_CHECKERS: Final = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="put-check")
_KEYS: Final = ("table", "mode", "idempotency_key", "draft", "extra", "whole")


@dataclass(frozen=True, slots=True)
class PutRequest:
    """The descriptor of a put. `draft` is a worker's lease token: the rows wait until the lease is finished."""

    flight: Flight
    mode: PutMode = PutMode.CREATE
    idempotency_key: str | None = None
    draft: str | None = None
    whole: bool = False


def parse_put(descriptor: flight.FlightDescriptor) -> PutRequest:
    """The request of a DoPut's descriptor.

    Raises:
        InvalidArgument: It is not valid, or the flight takes no rows.
        NotFound: The flight is unknown.
    """
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return PutRequest(_writable(path_name(descriptor)))
    return _parse_command(parse_json(descriptor.command or b"", "command"))


def _parse_command(body: Any) -> PutRequest:
    if not isinstance(body, dict):
        raise InvalidArgument("the command must be a JSON object", hint='such as {"table": "stats.columns"}')
    refuse_unknown_keys(body, _KEYS, "command")
    name, mode, key = body.get("table"), body.get("mode", "create"), body.get("idempotency_key")
    draft, extra, whole = body.get("draft"), body.get("extra", False), body.get("whole", False)
    if not isinstance(name, str):
        raise InvalidField("table", "is missing or no text", expected="the name of a flight", actual=name)
    if mode not in PUBLIC_MODES:
        raise InvalidField("mode", "is unknown", expected=" | ".join(PUBLIC_MODES), actual=mode)
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= 1000):
        raise InvalidField("idempotency_key", "is not a valid key", expected="text of 1 to 1000 characters", actual=key)
    if not isinstance(draft, str | None) or not isinstance(extra, bool) or not isinstance(whole, bool):
        raise InvalidArgument("draft, extra and whole are for capture workers: text, true | false, true | false")
    if draft is not None:
        return PutRequest(_writable(name), PutMode.FILL if extra else PutMode.CAPTURE, None, draft, whole)
    return PutRequest(_writable(name), PutMode(mode), key)


def _writable(name: str) -> Flight:
    flight_ = find_flight(name)
    if not flight_.writable:
        raise InvalidArgument(
            f"{name} is not written by DoPut", code="NOT_WRITABLE", hint="the flight sys.flights tells which are"
        )
    return flight_


def read_rows(
    request: PutRequest, reader: Any, principal: Principal, policy: ZonePolicy,
    is_cancelled: Callable[[], bool], directory: Path | None = None,
) -> pa.Table:  # fmt: skip
    """The stream's rows, checked, as one table. Nothing is stored yet; many rows wait in a file in the directory.

    Args:
        request: What is put.
        reader: The stream.
        principal: The caller.
        policy: What to do with instants that lack a zone.
        is_cancelled: Whether the caller has left.
        directory: Where rows wait that are too many for memory; None keeps them there.

    Raises:
        InvalidArgument: A row is wrong; names it.
    """
    received, size = 0, 0
    # the schema alone is checked too: a stream without rows must still be one that could have had some
    schema = _whole(lambda: _named(reader.schema))
    buffer = SpillBuffer(_prepared(request.flight, schema, policy), directory)
    checks: deque[Callable[[], pa.Table]] = deque()  # of batches, in their order

    def check(batch: pa.RecordBatch, first_row: int) -> pa.Table:
        clamp = request.draft is not None  # a capture estimates, anybody else claims
        part = records.prepare(request.flight, batch, policy, first_row=first_row, clamp=clamp)
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
        if size > MAX_PUT_BYTES:
            raise InvalidArgument(f"the stream has more than {MAX_PUT_BYTES} bytes", hint="put it in several streams")
        size += batch.get_total_buffer_size()  # unlike nbytes it trusts no offsets
        if batch.num_rows < _FEW_ROWS:
            checks.append(functools.partial(check, batch, received))
        else:
            checks.append(_CHECKERS.submit(check, batch, received).result)
        received += batch.num_rows
        if len(checks) > _CHECKED_AHEAD:
            buffer.add(checks.popleft()())
    for checked in checks:
        buffer.add(checked())
    # a deadline or a cancellation looks like the end of the stream
    if is_cancelled():
        raise Cancelled("the put was cancelled before its stream was complete; nothing was stored")
    rows = buffer.table()
    return target_ids.with_storage_ids(request.flight, rows) if request.flight.name == "stats.sketches" else rows


@functools.lru_cache(128)
def _prepared(flight: Flight, schema: pa.Schema, policy: ZonePolicy) -> pa.Schema:
    """The schema of checked rows of a stream; workers send the same few again and again."""
    return records.prepare(flight, pa.Table.from_batches([], schema), policy).schema


def _check_sketches(rows: pa.Table, first_row: int) -> None:
    """Refuses sketches that nobody could read: they would make the answers that are computed from them fail."""
    if unreadable := first_unreadable(rows["sketch_type"], rows["data"]):
        row, reason = unreadable
        type, data = rows["sketch_type"][row].as_py(), rows["data"][row].as_py()
        raise InvalidField("data", reason, expected=f"the bytes of an {type}", actual=f"{len(data)} bytes",
                           where=f"row {first_row + row + 1}")  # fmt: skip


def _whole(read: Callable[[], Any]) -> Any:
    """Reads a caller's stream; every error that Arrow raises is the caller's, not the server's."""
    try:
        return read()
    except flight.FlightError:  # the caller has left, or its time is over
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as trouble:
        raise InvalidArgument(f"the Arrow stream is malformed: {_reason(trouble)}") from None


def _named(schema: pa.Schema) -> pa.Schema:
    schema.names  # noqa: B018  decoded here: bytes that are not UTF-8 are found while the stream is read
    return schema


def _reason(trouble: BaseException) -> str:
    if isinstance(trouble, UnicodeDecodeError):
        return "a name is not valid UTF-8"
    return next(iter(str(trouble).splitlines()), "")[:300]


def _check_permission(rows: pa.Table, principal: Principal, request: PutRequest) -> None:
    if principal.sees_all or request.draft is not None:
        return
    names = rows.select(["table_catalog", "table_schema", "table_name"])
    for row in names.group_by(names.column_names).aggregate([]).to_pylist():
        name = (row["table_catalog"], row["table_schema"], row["table_name"])
        if not principal.sees(*name):
            raise PermissionDenied(f'"{join_name(*name)}" is not among the tables you may write')


def to_put(request: PutRequest, rows: pa.Table) -> Put:
    """The put of checked rows."""
    return Put(request.flight.name, rows, request.mode)


class _Stream:
    """An IPC stream of bytes, read as Flight's are."""

    def __init__(self, data: bytes | memoryview):
        self._reader = pa.ipc.open_stream(data)
        self.schema = self._reader.schema

    def read_chunk(self) -> Any:
        return SimpleNamespace(data=self._reader.read_next_batch())


def with_streams(items: Sequence[Any], streams: memoryview) -> list[Any]:
    """Items of `rows` with the streams behind the body in place of their lengths.

    Args:
        items: Untrusted; `ipc` is a length in bytes, or base64.
        streams: The streams in the order of the items.

    Returns:
        The items, `ipc` a stream where it was a length.

    Raises:
        InvalidField: A length is not one, or the lengths are not those of the streams.
    """
    filled, start = [], 0
    for item in items:
        if isinstance(item, dict) and isinstance(length := item.get("ipc"), int):
            if isinstance(length, bool) or not 0 < length <= len(streams) - start:
                raise InvalidField("ipc", "is not the length of a stream", expected="bytes that follow", actual=length)
            item = item | {"ipc": streams[start : start + length]}
            start += length
        filled.append(item)
    if start != len(streams):
        raise InvalidField("ipc", "leaves streams over", expected=len(streams), actual=start)
    return filled


def inline(
    item: Any, draft: str, principal: Principal, policy: ZonePolicy, is_cancelled: Callable[[], bool]
) -> tuple[Put, bool]:
    """Rows sent along with an outcome: `{"table", "extra"?, "whole"?, "ipc"}`, an IPC stream or its base64.

    Args:
        item: Untrusted.
        draft: Id of the draft that they go to.
        principal: The caller.
        policy: What to do with instants that lack a zone.
        is_cancelled: Whether the caller has left.

    Returns:
        The put, and whether it is all there is at its snapshots.

    Raises:
        InvalidArgument: The stream is malformed, or a row is wrong.
    """
    if not isinstance(item, dict) or not isinstance(item.get("ipc"), str | memoryview):
        raise InvalidField("rows", "must be a list of IPC streams", expected='{"table", "ipc"}', actual=item)
    request = _parse_command({name: value for name, value in item.items() if name != "ipc"} | {"draft": draft})
    try:
        ipc = item["ipc"]
        stream = _Stream(base64.b64decode(ipc, validate=True) if isinstance(ipc, str) else ipc)
    except (ValueError, pa.ArrowException, OSError):
        raise InvalidArgument("rows: the IPC stream is malformed") from None
    return to_put(request, read_rows(request, stream, principal, policy, is_cancelled)), request.whole


def shared(
    item: Any, members: int, principal: Principal, policy: ZonePolicy, is_cancelled: Callable[[], bool]
) -> list[tuple[int, Put, bool]]:
    """Rows of several leases in one stream: what `inline` takes, and `counts`, the rows of each lease in turn.

    Args:
        item: `{"table", "extra"?, "whole"?, "ipc", "counts": [[which lease, rows], …]}`; untrusted.
        members: How many leases there are.

    Returns:
        Which lease, its rows, and whether they are all there are at their snapshots.

    Raises:
        InvalidField: The counts are not those of the stream, or a value breaks a rule.
        InvalidArgument: The stream is malformed.
    """
    counts = item.get("counts") if isinstance(item, dict) else None
    pairs: list[Any] = counts if isinstance(counts, list) else [None]
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair)):
            raise InvalidField("counts", "must be pairs", expected="[[which lease, rows], …]", actual=counts)
        if pair[0] >= members:
            raise InvalidField("counts", "names a lease that is not finished here", expected=members, actual=pair[0])
    put, whole = inline({k: v for k, v in item.items() if k != "counts"}, "", principal, policy, is_cancelled)
    if sum(rows for _, rows in pairs) != put.rows.num_rows:
        raise InvalidField("counts", "are not the rows of the stream", expected=put.rows.num_rows, actual=counts)
    parts, start = [], 0
    for at, rows in pairs:
        parts.append((at, Put(put.flight, put.rows.slice(start, rows), put.mode), whole))
        start += rows
    return parts
