"""Action bodies: JSON objects with known keys, validated before anything is looked up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from capture.spec import KEYS, CaptureSpec, Engine, enum_of, parse_engine
from capture.spi import Mode, Outcome
from flight_server.wire.scan_request import CURRENT, parse_json, refuse_unknown_keys
from store.model.errors import InvalidArgument, InvalidField, Words
from store.model.names import split_name
from store.model.schemas import FLIGHTS
from store.model.targets import TargetKind

MAX_REQUESTS: Final = 100_000
ALL: Final = "all"
_KEYS: Final = ("table", "table_id", "snapshot", "mode", *KEYS)
_EXTRAS: Final = ("sketches", "constraints", "ticket")


def parse_body(data: bytes, required: Mapping[str, type], optional: Mapping[str, type] | None = None) -> dict[str, Any]:
    """Parses and validates the body of an action.

    Args:
        data: The body; empty for an object without keys.
        required: Key → type of keys that must be present and not empty.
        optional: Key → type of other allowed keys.

    Raises:
        InvalidArgument: The body is not such an object.
    """
    return check_object(parse_json(data, "body") if data else {}, required, optional or {})


def split_body(data: bytes) -> tuple[bytes, memoryview]:
    """Splits the body of an action into JSON and the Arrow streams that follow it.

    Args:
        data: JSON; or four zero bytes, the length of the JSON (four bytes, little-endian), the JSON, and the
            concatenated streams.

    Returns:
        The JSON, and the streams; empty if there are none.

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


def check_object(body: Any, required: Mapping[str, type], optional: Mapping[str, type]) -> dict[str, Any]:
    """`parse_body` for an object that is parsed already."""
    if not isinstance(body, dict):
        takes = ", ".join([*required, *optional]) or "no keys"
        raise InvalidArgument("the body must be a JSON object", hint=f"it takes {takes}")
    refuse_unknown_keys(body, (*required, *optional), "body")
    for name, type_ in (dict(required) | dict(optional)).items():
        value = body.get(name)
        if value is None:
            if name in required:
                raise InvalidField(name, "is missing", expected=_expected(type_), actual=None)
            continue
        fits = isinstance(value, type_) and not (type_ is not bool and isinstance(value, bool) and type_ is not object)
        if type_ is float:
            fits = _is_number(value)
        if not fits:
            raise InvalidField(name, "has the wrong type", expected=_expected(type_), actual=value)
        if name in required and value == "":
            raise InvalidField(name, "is empty", expected=_expected(type_), actual="")
    return body


def _is_number(value: Any) -> bool:
    """True for finite numbers within the range of a float; JSON allows greater ones, and Python's parser NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _expected(type_: type) -> str:
    return {str: "text", int: "an integer", float: "a number", bool: "true | false", dict: "an object",
            list: "a list"}.get(type_, "a value")  # fmt: skip


@dataclass(frozen=True)
class CaptureItem:
    """One request of `capture` or `resolve`, validated; its table need not exist.

    Attributes:
        table: Full name of the table; None if it is named by its id.
        table_id: Id of the table; None if it is named.
        snapshot: "current", "all" or an id.
        mode: Whether the caller waits.
        spec: What is wanted.
        kinds: Kinds of statistics by priority, the most wanted first.
        extras: What `resolve` answers besides, of `sketches`, `constraints` and `ticket`.
    """

    table: str | None
    table_id: str | None
    snapshot: str | int
    mode: Mode
    spec: CaptureSpec
    kinds: tuple[str, ...] = ()
    extras: frozenset[str] = frozenset()

    @property
    def named(self) -> str:
        """The table as the request names it."""
        return self.table or self.table_id or ""


@dataclass(frozen=True)
class ResolveBody:
    """The body of a `resolve`.

    Attributes:
        items: The requests, the most wanted first.
        max_bytes: Greatest size of the answers' records in bytes; None for any.
        max_targets: Greatest number of targets; None for any.
    """

    items: tuple[CaptureItem, ...]
    max_bytes: int | None = None
    max_targets: int | None = None


def parse_resolve(data: bytes) -> ResolveBody:
    """The body of a `resolve`.

    Args:
        data: `{"requests": […], "engine"?, "max_bytes"?, "max_targets"?}` as JSON.

    Raises:
        InvalidArgument: There are too many requests, or one or a budget is not valid; the message has its place.
    """
    body = parse_body(data, {"requests": list}, {"engine": str, "max_bytes": int, "max_targets": int})
    for name in ("max_bytes", "max_targets"):
        if (limit := body.get(name)) is not None and not 0 <= limit < 2**63:
            raise InvalidField(name, "is not a budget", expected="an integer ≥ 0", actual=limit)
    return ResolveBody(_items(body, capture=False), body.get("max_bytes"), body.get("max_targets"))


def parse_items(data: bytes) -> tuple[CaptureItem, ...]:
    """The requests of a `capture`, in order.

    Args:
        data: `{"requests": […], "engine"?}` as JSON.

    Raises:
        InvalidArgument: There are too many requests, or one is not valid; the message has its position.
    """
    return _items(parse_body(data, {"requests": list}, {"engine": str}), capture=True)


def _items(body: Mapping[str, Any], *, capture: bool) -> tuple[CaptureItem, ...]:
    engine = parse_engine(body.get("engine"))
    if len(body["requests"]) > MAX_REQUESTS:
        raise InvalidArgument(f"{len(body['requests'])} requests; at most {MAX_REQUESTS} are taken at once")
    return tuple(_item(item, f"requests[{at}]", capture, engine) for at, item in enumerate(body["requests"]))


def _item(item: Any, where: str, capture: bool, engine: Engine | None) -> CaptureItem:
    if not isinstance(item, dict):
        raise InvalidField(where, "must be an object", expected='{"table": …}', actual=item)
    refuse_unknown_keys(item, _KEYS if capture else (*_KEYS, *_EXTRAS), where)
    table_id = item.get("table_id")
    if table_id is None:
        table = check_table_name(item.get("table"), where)
    elif item.get("table") is not None or not isinstance(table_id, str) or not table_id:
        expected = "the id of a table, instead of its name"
        raise InvalidField(f"{where}.table_id", "is not a table", expected=expected, actual=table_id)
    else:
        table = None
    snapshot = check_snapshot(item.get("snapshot", CURRENT), where, capture)
    spec = CaptureSpec.from_json(item, where)
    if spec.partitions and not capture:  # statistics of partitions are those of their files
        expected = "a target; stats.file_columns has what was captured of partitions"
        raise InvalidField(f"{where}.partitions", "are for capture", expected=expected, actual=Words("resolve"))
    mode = enum_of(Mode, item.get("mode", "SYNC"), f"{where}.mode")
    extras = frozenset(name for name in _EXTRAS if _truth(item.get(name), f"{where}.{name}"))
    if "sketches" in extras and spec.target.kind is TargetKind.FILE:
        expected = "another target; stats.sketches has those of files"
        raise InvalidField(f"{where}.sketches", "are not of files", expected=expected, actual=spec.target.kind)
    kinds = tuple(item.get("kinds") or ())
    return CaptureItem(table, table_id, snapshot, mode, replace(spec, engine=engine), kinds, extras)


def _truth(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidField(where, "must be true or false", expected="true | false", actual=value)
    return value is True


def check_table_name(table: Any, where: str = "body") -> str:
    """Validates the full name of a table, and returns it unchanged.

    Args:
        table: The name.
        where: Name of the object that has it, for messages.

    Raises:
        InvalidField: The name is not `catalog.schema.table`.
    """
    if not isinstance(table, str):
        raise InvalidField(f"{where}.table", "must be a string", expected="catalog.schema.table", actual=table)
    try:
        split_name(table)
    except ValueError:
        reason = "is not a full table name"
        raise InvalidField(f"{where}.table", reason, expected="catalog.schema.table", actual=table) from None
    return table


def check_snapshot(value: Any, where: str = "body", allow_all: bool = False) -> str | int:
    """Validates the snapshot of a request.

    Args:
        value: "current" or an id, or "all" if `allow_all`.
        where: Name of the object that has it, for messages.
        allow_all: Allow "all".

    Raises:
        InvalidField: The value is neither.
    """
    if (value == CURRENT and isinstance(value, str)) or (allow_all and value == ALL):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        expected = '"current", "all" or an id' if allow_all else '"current" or an id'
        raise InvalidField(f"{where}.snapshot", "is not a snapshot", expected=expected, actual=value)
    return value


# Reports of workers.

LEASES: Final = ("control", "watch", "sync", "light", "job", "publish")
_OUTCOME: Final[Mapping[str, type]] = {
    "snapshot_id": int, "storage_id": str, "outcome": str, "engine_id": str, "detail": str, "attributes": dict,
}  # fmt: skip
_DECISION: Final[Mapping[str, type]] = {
    "snapshot_id": int, "target_kind": str, "storage_id": str, "outcome": str, "engine_id": str, "detail": str,
    "elapsed_ms": float,
}  # fmt: skip
_REQUIRED: Final = ("snapshot_id", "target_kind", "storage_id", "outcome")


def check_leases(kinds: list[Any]) -> list[str]:
    """Validates kinds of leases.

    Raises:
        InvalidField: A kind is not in `LEASES`.
    """
    for kind in kinds:
        if kind not in LEASES:
            raise InvalidField("kinds", "is unknown", expected=" | ".join(LEASES), actual=kind)
    return kinds


def check_engines(engines: list[Any]) -> list[dict[str, Any]]:
    """Validates the engines that a worker reports, rows of `sys.engines`."""
    schema = FLIGHTS["sys.engines"].schema
    try:
        rows = [{name: engine.get(name) for name in schema.names} for engine in engines]
        checked = pa.Table.from_pylist(rows, schema).to_pylist()
    except (AttributeError, TypeError, ValueError, OverflowError, pa.ArrowException):
        raise InvalidField("engines", "must be rows of sys.engines", expected="its columns", actual=engines) from None
    if not all(engine["engine_id"] for engine in checked):
        raise InvalidField("engines", "engine_id is missing", expected="engine_id", actual=engines)
    return checked


def check_outcomes(items: Any, where: str = "outcomes") -> list[dict[str, Any]]:
    """Validates the outcomes that a worker reports; returns them with all keys.

    Raises:
        InvalidField: A key is missing, of the wrong type or out of range.
    """
    outcomes = [_reported(item, _OUTCOME, f"{where}[{at}]") for at, item in enumerate(items or [])]
    for at, outcome in enumerate(outcomes):
        enum_of(Outcome, outcome["outcome"], f"{where}[{at}].outcome")
    return outcomes


def check_decisions(items: Any, where: str = "decisions") -> list[dict[str, Any]]:
    """Validates the decisions of the registry that a worker reports; returns them with all keys.

    Raises:
        InvalidField: A key is missing, of the wrong type or out of range.
    """
    return [_reported(item, _DECISION, f"{where}[{at}]") for at, item in enumerate(items or [])]


def check_error(error: Any) -> dict[str, Any] | None:
    """Validates an error in the form of `errors.to_json`, whose code is sent to clients; None stays None."""
    if error is None:
        return None
    for name, type_ in {"message": str, "code": str, "status": str, "hint": str, "params": dict}.items():
        value = error.get(name)
        if not isinstance(value, type_) and (value is not None or name == "message"):
            reason = "is missing or of the wrong type"
            raise InvalidField(f"error.{name}", reason, expected=_expected(type_), actual=value)
    if not re.fullmatch("[A-Z][A-Z_]{0,63}", error.get("code") or "UPSTREAM"):
        raise InvalidField("error.code", "is not a code", expected="upper-case letters and _", actual=error["code"])
    return {name: value for name, value in error.items() if value is not None}


def _reported(item: Any, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    """Validates an object; returns it with all keys, absent ones null or, for detail and attributes, empty."""
    if not isinstance(item, dict):
        raise InvalidField(where, "must be an object", expected=", ".join(fields), actual=item)
    for name, type_ in fields.items():
        value = item.get(name)
        fits = _is_number(value) if type_ is float else isinstance(value, type_) and not isinstance(value, bool)
        if not fits and (value is not None or name in _REQUIRED):
            reason = "is missing or of the wrong type"
            raise InvalidField(f"{where}.{name}", reason, expected=_expected(type_), actual=value)
        if type_ is int and value is not None and not 0 <= value < 2**63:
            raise InvalidField(f"{where}.{name}", "is out of range", expected="a 63-bit integer ≥ 0", actual=value)
    empty = {"detail": "", "attributes": {}}
    return {name: empty.get(name) if item.get(name) is None else item[name] for name in fields}
