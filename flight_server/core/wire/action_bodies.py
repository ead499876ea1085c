"""Action bodies: JSON objects with known keys, validated before anything is looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import pyarrow as pa
from msgspec import Meta, field

from capture.spec import CaptureSpec, Engine
from capture.spec_body import SpecBody
from capture.spi import Mode, Outcome
from flight_server.core.wire.lag import Read
from flight_server.core.wire.scan_request import CURRENT, parse_json
from store.model.errors import InvalidArgument, InvalidField, Words
from store.model.schemas import FLIGHTS
from store.model.structs import AnySnapshot, Count, Number, Snapshot, SnapshotId, Struct, Table, Text, Truth, read
from store.model.targets import TargetKind

B = TypeVar("B", bound=Struct)

MAX_REQUESTS: Final = 100_000


def parse_body(data: bytes, type_: type[B], *, exact: bool = False) -> B:
    """Parses and validates the body of an action.

    Args:
        data: The body; empty for an object without keys.
        exact: See `scan_request.loads`.

    Raises:
        InvalidArgument: The body is not such an object.
    """
    return read(parse_json(data, "body", exact=exact) if data else {}, type_)


def split_body(data: bytes) -> tuple[bytes, memoryview]:
    """Splits the body of an action into JSON and the Arrow streams that follow it; empty if there are none.

    Args:
        data: JSON; or four zero bytes, the length of the JSON (four bytes, little-endian), the JSON, and the
            concatenated streams.

    Raises:
        InvalidArgument: The body is shorter than its JSON.
    """
    if data[:4] != bytes(4):
        return data, memoryview(b"")
    end = 8 + int.from_bytes(data[4:8], "little")
    if len(data) < end:
        hint = "send four zero bytes, the length of the JSON, the JSON, and the streams"
        raise InvalidArgument("the body is truncated", hint=hint)
    return data[8:end], memoryview(data)[end:]


class CaptureRequest(SpecBody):
    """One request of `capture`."""

    table: Table | None = None
    table_id: Text | None = None
    snapshot: AnySnapshot = CURRENT
    mode: Mode = Mode.SYNC


class ResolveRequest(CaptureRequest):
    """One request of `resolve`: what it answers besides are true for `sketches`, `constraints` and `ticket`, and with
    `where` an estimate of what that condition leaves."""

    snapshot: Snapshot = CURRENT
    sketches: Truth | None = None
    constraints: Truth | None = None
    ticket: Truth | None = None
    where: Any = None


class CaptureBody(Struct):
    """The body of a `capture`."""

    requests: list[CaptureRequest]
    engine: Engine | None = None


class ResolveBody(Read, kw_only=True):
    """The body of a `resolve`; its requests have the most wanted first.

    Attributes:
        max_bytes: Greatest size of the answers' records in bytes; None for any.
        max_targets: Greatest number of targets; None for any.
    """

    requests: list[ResolveRequest]
    engine: Engine | None = None
    max_bytes: Count | None = None
    max_targets: Count | None = None


@dataclass(frozen=True)
class CaptureItem:
    """One request of `capture` or `resolve`, validated; its table need not exist.

    Attributes:
        table: Full name of the table; None if it is named by its id.
        table_id: Id of the table; None if it is named.
        snapshot: "current", "all" or an id.
        kinds: Kinds of statistics by priority, the most wanted first.
        extras: What `resolve` answers besides, of `sketches`, `constraints` and `ticket`.
        where: Condition of whose rows `resolve` answers an estimate; None for none.
    """

    table: str | None
    table_id: str | None
    snapshot: str | int
    mode: Mode
    spec: CaptureSpec
    kinds: tuple[str, ...] = ()
    extras: frozenset[str] = frozenset()
    where: Any = None

    @property
    def named(self) -> str:
        """The table as the request names it."""
        return self.table or self.table_id or ""


def capture_items(body: CaptureBody | ResolveBody) -> tuple[CaptureItem, ...]:
    """The requests of a `capture` or `resolve`, in order.

    Raises:
        InvalidArgument: There are too many requests, or one is not valid; the message has its position.
    """
    if len(body.requests) > MAX_REQUESTS:
        raise InvalidArgument(f"{len(body.requests)} requests; at most {MAX_REQUESTS} are taken at once")
    return tuple(_item(item, f"requests[{at}]", body.engine) for at, item in enumerate(body.requests))


def _check_table(item: CaptureRequest, where: str) -> None:
    """Refuses a request that names no table, or names it twice."""
    if item.table_id is not None and item.table is not None:
        expected = "the id of a table, instead of its name"
        raise InvalidField(f"{where}.table_id", "is not a table", expected=expected, actual=item.table_id)
    if item.table_id is None and item.table is None:
        raise InvalidField(f"{where}.table", "is missing", expected="catalog.schema.table", actual=None)


def _extras(item: ResolveRequest, spec: CaptureSpec, where: str) -> frozenset[str]:
    """The names of what a request asks for besides its record."""
    extras = frozenset(name for name in ("sketches", "constraints", "ticket") if getattr(item, name))
    if spec.partitions:  # statistics of partitions are those of their files
        expected = "a target; stats.file_columns has what was captured of partitions"
        raise InvalidField(f"{where}.partitions", "are for capture", expected=expected, actual=Words("resolve"))
    if "sketches" in extras and spec.target.kind is TargetKind.FILE:
        expected = "another target; stats.sketches has those of files"
        raise InvalidField(f"{where}.sketches", "are not of files", expected=expected, actual=spec.target.kind)
    if item.where is not None and spec.target.kind not in (TargetKind.TABLE, TargetKind.COLUMN):
        expected = "a target TABLE or COLUMN"
        raise InvalidField(f"{where}.where", "is of tables and columns", expected=expected, actual=spec.target.kind)
    return extras


def _item(item: CaptureRequest, where: str, engine: Engine | None) -> CaptureItem:
    _check_table(item, where)
    spec = item.spec(where, engine)
    extras, condition = frozenset[str](), None
    if isinstance(item, ResolveRequest):
        extras, condition = _extras(item, spec, where), item.where
    return CaptureItem(item.table, item.table_id, item.snapshot, item.mode, spec, item.kinds or (), extras, condition)


# Reports of workers.

LeaseKind = Literal["control", "watch", "sync", "light", "job", "publish"]


_Code = Annotated[
    str, Meta(pattern="^[A-Z][A-Z_]{0,63}$", title="is not a code", description="upper-case letters and _")
]


class ReportedOutcome(Struct, forbid_unknown_fields=False):
    """The outcome of a capture, for one request and snapshot."""

    snapshot_id: SnapshotId
    storage_id: str
    outcome: Outcome
    engine_id: str | None = None
    detail: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


class ReportedDecision(Struct, forbid_unknown_fields=False):
    """A decision of the registry."""

    snapshot_id: SnapshotId
    target_kind: str
    storage_id: str
    outcome: str
    engine_id: str | None = None
    detail: str = ""
    elapsed_ms: Number | None = None


class ReportedError(Struct, forbid_unknown_fields=False, omit_defaults=True):
    """An error in the form of `errors.to_json`, whose code is sent to clients."""

    message: str
    code: _Code | None = None
    status: str | None = None
    hint: str | None = None
    params: dict[str, Any] | None = None
    retryable: bool | None = None


class ReportedListing(Struct):
    """The listing of a snapshot's files."""

    snapshot_id: SnapshotId
    mark: str


class FinishedLease(Struct):
    """The end of a lease."""

    job_id: Text
    lease_token: Text
    outcomes: tuple[ReportedOutcome, ...] = ()
    decisions: tuple[ReportedDecision, ...] = ()
    result: dict[str, Any] | None = None
    error: ReportedError | None = None
    message: str | None = None
    final: Truth = False
    listings: tuple[ReportedListing, ...] = ()


def check_engines(engines: Sequence[Any]) -> list[dict[str, Any]]:
    """Validates the engines that a worker reports, rows of `sys.engines`."""
    try:
        checked = pa.Table.from_pylist(engines, FLIGHTS["sys.engines"].schema).to_pylist()
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        raise InvalidField("engines", "must be rows of sys.engines", expected="its columns", actual=engines) from None
    if not all(engine["engine_id"] for engine in checked):
        raise InvalidField("engines", "engine_id is missing", expected="engine_id", actual=engines)
    return checked
