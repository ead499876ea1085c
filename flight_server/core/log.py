"""One structured log on standard error for the server, its workers and the audit, as text or JSON lines.

Everything goes through the standard library's `logging`, which includes libraries. The server's own workers write
JSON to a pipe, which the server relays; each run of other lines that a worker writes there (a JVM's, a traceback of
PySpark) becomes the text of one event.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

FORMATS: Final = ("text", "json")
_FIRST: Final = ("at", "level", "logger", "event")
_FIELDS: Final = "statflight_fields"  # attribute of a record
_LONGEST: Final = 20_000  # characters of foreign output in one event
_READ_BYTES: Final = 1 << 16


def configure(level: str, format: str, stream: TextIO | None = None) -> None:
    """Sends the log of this process to a stream.

    Args:
        level: debug, info, warning or error; at `info` the events of libraries begin at `warning`.
        stream: Standard error when not given.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if format == "json" else _Text())
    logging.basicConfig(handlers=[handler], level=level.upper() if level != "info" else "WARNING", force=True)
    logging.getLogger("statflight").setLevel(level.upper())
    logging.captureWarnings(True)


def event(logger: logging.Logger, level: int, text: str, fields: Mapping[str, Any]) -> None:
    """Logs an event with fields of its own, of which `at` replaces its time."""
    logger.log(level, text, extra={_FIELDS: fields})


class _Json(logging.Formatter):
    """Formats an event as a JSON object: its time in UTC, level, logger and text, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self._event(record), default=str, ensure_ascii=False)

    def _event(self, record: logging.LogRecord) -> dict[str, Any]:
        found = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        } | getattr(record, _FIELDS, {})
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return found


class _Text(_Json):
    """Formats an event as a line for people, and a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        found = self._event(record)
        trace = found.pop("exception", None)
        line = "{at} [{level:<8}] {event} [{logger}]".format(**found)
        fields = "".join(f" {name}={value}" for name, value in found.items() if name not in _FIRST)
        return line + fields + ("" if trace is None else f"\n{trace}")


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
        if (found := _event_of(text)) is None:
            if text:
                foreign.append(text)
            continue
        _log_foreign(foreign, fields)
        foreign = []
        level = logging.getLevelNamesMapping().get(str(found.pop("level", "info")).upper(), logging.INFO)
        logger = logging.getLogger(str(found.pop("logger", "statflight.worker")))
        event(logger, level, str(found.pop("event", "")), {**fields, **found})
    _log_foreign(foreign, fields)


def _event_of(line: str) -> dict[str, Any] | None:
    """The event in a line written with the format `json`; None for any other line."""
    if not line.startswith('{"at": '):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _log_foreign(lines: list[str], fields: Mapping[str, Any]) -> None:
    if lines:
        text = "\n".join(lines)[:_LONGEST]
        event(logging.getLogger("statflight.worker"), logging.INFO, "output", {"text": text, **fields})
