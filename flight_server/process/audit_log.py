"""One JSON line on standard error for each write and each refusal, with the correlation id. Reads leave none.

Lines hold names of tables, callers and actions, and what a caller was told; never rows, options or tokens.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

log = logging.getLogger("statflight.audit")

WRITES: Final = frozenset({
    "register_connector", "drop_connector", "discover", "capture", "cancel_job", "finish_job", "delete_stats", "expire",
    "publish", "backup",
})  # fmt: skip
_TOLD: Final = ("catalog", "table", "snapshot", "job_id", "to", "dry_run")  # keys of a body that are no secret
_LONGEST: Final = 500


def start() -> None:
    """Sends the lines to standard error, as they are. Without it they go where the program's logging sends them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def write(method: str, caller: str, correlation_id: str, **told: Any) -> None:
    _line("write", {"method": method, "caller": caller, "correlation_id": correlation_id} | told)


def refusal(method: str, caller: str, correlation_id: str, code: str, message: str, peer: str) -> None:
    line = {"method": method, "caller": caller, "correlation_id": correlation_id, "code": code, "peer": peer,
            "message": message}  # fmt: skip
    _line("refusal", line)


def of_body(body: bytes) -> dict[str, Any]:
    """What a line tells of an action's body, which has been read without complaint."""
    try:
        keys = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(keys, Mapping):
        return {}
    told = {name: keys[name] for name in _TOLD if isinstance(keys.get(name), str | int | bool)}
    if isinstance(requests := keys.get("requests"), list):
        told["requests"] = len(requests)
    return told


def _line(event: str, fields: Mapping[str, Any]) -> None:
    if log.isEnabledFor(logging.INFO):
        cut = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in fields.items()}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        log.info("%s", json.dumps({"at": now, "event": event} | cut, default=str))
