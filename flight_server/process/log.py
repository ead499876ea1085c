"""One structured log on standard error for the server, its workers and the audit, as text or JSON lines.

Everything goes through the standard library's `logging`, which includes libraries; structlog formats the lines. The
server's own workers write JSON to a pipe, which the server relays; each run of other lines that a worker writes there
(a JVM's, a traceback of PySpark) becomes the text of one event.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import structlog

FORMATS: Final = ("text", "json")
_LONGEST: Final = 20_000  # characters of foreign output in one event
_READ_BYTES: Final = 1 << 16


def configure(level: str, format: str, stream: TextIO | None = None) -> None:
    """Sends the log of this process to a stream.

    Args:
        level: debug, info, warning or error; at `info` the events of libraries begin at `warning`.
        stream: Standard error when not given.
    """
    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        _timestamp,
    ]
    if format == "json":
        ending: list[Any] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ]
    else:
        plain = structlog.dev.plain_traceback
        ending = [
            structlog.dev.ConsoleRenderer(
                colors=False, pad_event_to=0, timestamp_key="at", sort_keys=False, exception_formatter=plain
            )
        ]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _in_order, *ending],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper() if level != "info" else "WARNING", force=True)
    logging.getLogger("statflight").setLevel(level.upper())
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _timestamp(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the time of the event in UTC, milliseconds; a relayed event keeps its own."""
    event.setdefault("at", datetime.now(UTC).isoformat(timespec="milliseconds"))
    return event


def _in_order(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    first = {name: event[name] for name in ("at", "level", "logger", "event") if name in event}
    return first | dict(event)


def _to_json(event: Mapping[str, Any], **_: Any) -> str:
    return json.dumps(event, default=str, ensure_ascii=False)


def relay(descriptor: int, **fields: Any) -> None:
    """Logs a worker's output from a pipe until the worker closes it.

    Args:
        descriptor: The pipe's read end; closed afterwards.
        fields: Fields of every event, such as `worker`.
    """
    rest = b""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while data := pipe.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            _log_lines(lines, fields)
            if len(rest) > _READ_BYTES:
                _log_lines([rest], fields)
                rest = b""
    _log_lines([rest], fields)


def _log_lines(lines: list[bytes], fields: Mapping[str, Any]) -> None:
    """Logs events as they are, and each run of other lines as one event."""
    foreign: list[str] = []
    for line in lines:
        text = line.decode("utf-8", "replace").rstrip()
        if (event := _event_of(text)) is None:
            if text:
                foreign.append(text)
            continue
        _log_foreign(foreign, fields)
        foreign = []
        level = logging.getLevelNamesMapping().get(str(event.pop("level", "info")).upper(), logging.INFO)
        logger = structlog.get_logger(str(event.pop("logger", "statflight.worker")))
        logger.log(level, str(event.pop("event", "")), **{**fields, **event})
    _log_foreign(foreign, fields)


def _event_of(line: str) -> dict[str, Any] | None:
    """The event in a line written with the format `json`; None for any other line."""
    if not line.startswith('{"at": '):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _log_foreign(lines: list[str], fields: Mapping[str, Any]) -> None:
    if lines:
        structlog.get_logger("statflight.worker").info("output", text="\n".join(lines)[:_LONGEST], **fields)
