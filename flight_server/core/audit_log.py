"""The audit log: an event for each write and each refusal, with the correlation id; none for reads.

The calls of the server's own workers are events of level debug, with a number of jobs in place of their ids.

Events have names of tables, callers and actions, and the code of the answer; never rows, options or tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from flight_server.core.auth.principal import Principal
from flight_server.core.log import event
from flight_server.core.wire.action_bodies import split_body
from store.model.errors import InvalidArgument

log = logging.getLogger("statflight.audit")

WRITES: Final = frozenset(
    {
        "register_connector",
        "drop_connector",
        "discover",
        "capture",
        "cancel_job",
        "finish_job",
        "finish_jobs",
        "delete_stats",
        "expire",
        "publish",
        "withdraw",
        "backup",
    }
)
_LONGEST: Final = 500


class _Ended(msgspec.Struct):
    job_id: str


class _Logged(msgspec.Struct):
    """Fields of bodies that events show, none with secrets. Others, such as the tables of a lake, are not parsed."""

    catalog: Any = None
    table: Any = None
    snapshot: Any = None
    job_id: Any = None
    to: Any = None
    dry_run: Any = None
    requests: list[msgspec.Raw] | None = None
    finishes: list[_Ended] | None = None


# Made before any call: two threads must not be the first to decode a type (`structs.read`).
_BODIES: Final = msgspec.json.Decoder(_Logged)


def write(method: str, caller: Principal, correlation_id: str, **fields: Any) -> None:
    """Logs a caller's write, with further fields; lists of an own worker's call are logged as their lengths."""
    about = {"method": method, "caller": caller.name, "correlation_id": correlation_id}
    if caller.is_own:
        fields = {name: len(value) if isinstance(value, list) else value for name, value in fields.items()}
    _log(logging.DEBUG if caller.is_own else logging.INFO, "write", about | fields)


def action(name: str, body: bytes, caller: Principal, correlation_id: str, results: Sequence[Any] = ()) -> None:
    """Logs an action that writes. The end of an inspection is not one: it stores nothing itself.

    Args:
        results: The first results; of a publication its columns, version and removed orphans are logged.
    """
    if name not in WRITES:
        return
    fields = of_body(body)
    if name == "publish" and results:
        (published,) = results
        fields |= {
            "columns": published["columns"],
            "version": published["snapshot_id"],
            "removed_orphans": published["removed_orphans"],
        }
    ended = fields.get("job_ids", [fields.get("job_id")])
    if not (name in ("finish_job", "finish_jobs") and all(str(job_id).startswith("look-") for job_id in ended)):
        write(f"DoAction/{name}", caller, correlation_id, **fields)


def refusal(method: str, caller: str, correlation_id: str, code: str, message: str, peer: str) -> None:
    """Logs a refused call, with the code and message sent to the caller."""
    fields = {
        "method": method,
        "caller": caller,
        "correlation_id": correlation_id,
        "code": code,
        "peer": peer,
        "message": message,
    }
    _log(logging.WARNING, "refusal", fields)


def of_body(body: bytes) -> dict[str, Any]:
    """Fields of an event from an action's validated body."""
    try:
        keys = _BODIES.decode(split_body(body)[0] or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidArgument):
        return {}
    fields = msgspec.structs.asdict(keys)
    shown: dict[str, Any] = {name: value for name, value in fields.items() if isinstance(value, str | int | bool)}
    if keys.requests is not None:
        shown["requests"] = len(keys.requests)
    if keys.finishes is not None:
        shown["job_ids"] = [end.job_id for end in keys.finishes]
    return shown


def _log(level: int, name: str, fields: Mapping[str, Any]) -> None:
    cut = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in fields.items()}
    event(log, level, name, cut)
