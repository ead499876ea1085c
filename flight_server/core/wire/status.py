"""Conversion of errors to Flight statuses with one-line messages, without internal details."""

from __future__ import annotations

import json
import logging
import re
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.flight as flight

from store.model.errors import ResourceExhausted, StatflightError, UpstreamError, first_line

log = logging.getLogger("statflight.server")

_FLIGHT_ERRORS: Final[dict[str, type[flight.FlightError]]] = {
    "UNAUTHENTICATED": flight.FlightUnauthenticatedError,
    "PERMISSION_DENIED": flight.FlightUnauthorizedError,
    "UNAVAILABLE": flight.FlightUnavailableError,
    "CANCELLED": flight.FlightCancelledError,
    "DEADLINE_EXCEEDED": flight.FlightTimedOutError,
    "INTERNAL": flight.FlightInternalError,
}
_ARROW_ERRORS: Final[dict[str, type[Exception]]] = {
    "INVALID_ARGUMENT": pa.ArrowInvalid,
    "NOT_FOUND": pa.ArrowKeyError,
    "UNIMPLEMENTED": pa.ArrowNotImplementedError,
}


MESSAGE_BYTES: Final = 4000  # clients refuse a status whose headers, where a byte may take three, exceed 16 KiB
PERMANENT: Final = "UPSTREAM_PERMANENT"  # code of trouble upstream that another try would meet again

to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
"""JSON text of a value in the results of actions."""


def _told(error: StatflightError, correlation_id: str) -> BaseException:
    """The exception for an error whose message is for the caller."""
    status, code = error.status, error.code
    if isinstance(error, UpstreamError) and not error.retryable:  # UNAVAILABLE would tell clients to try again
        status, code = "INVALID_ARGUMENT", PERMANENT if code == UpstreamError.code else code
    message = _bounded(f"[{code}] {error}")
    if plain := _ARROW_ERRORS.get(status):
        return plain(message)
    extra = {
        "code": code,
        "params": error.params,
        "hint": error.hint,
        "retryable": error.retryable,
        "correlation_id": correlation_id,
    }
    told = json.dumps(extra, default=str).encode()
    if len(told) > MESSAGE_BYTES:
        told = json.dumps(extra | {"params": {}, "hint": ""}).encode()
    return _FLIGHT_ERRORS[status](message, told)


def to_flight(error: BaseException, correlation_id: str, *, has_stream: bool = True) -> BaseException:
    """The exception to raise in a Flight method for an error; unexpected errors are logged and hidden.

    Args:
        correlation_id: Id of the call, in the log and in the message of an unexpected error.
        has_stream: The caller sends Arrow data, so that what Arrow calls invalid may be that.
    """
    if isinstance(error, MemoryError):  # Arrow's too
        error = ResourceExhausted("the server has no memory left for this", hint="ask for less, or try again later")
    if isinstance(error, StatflightError):
        return _told(error, correlation_id)
    if isinstance(error, flight.FlightCancelledError | flight.FlightTimedOutError):
        return error
    if has_stream and isinstance(error, pa.ArrowInvalid):  # raised by Arrow for a caller's stream
        return pa.ArrowInvalid(f"[INVALID_ARGUMENT] the Arrow stream is malformed: {first_line(error)}")
    if isinstance(error, duckdb.InterruptException):
        return flight.FlightCancelledError("[CANCELLED] the caller has disconnected")
    log.error("internal error, correlation id %s", correlation_id, exc_info=error)
    extra = {"code": "INTERNAL", "params": {}, "hint": "", "retryable": False, "correlation_id": correlation_id}
    return flight.FlightInternalError(
        f"[INTERNAL] internal error, correlation id {correlation_id}", json.dumps(extra).encode()
    )


def _bounded(message: str) -> str:
    data = message.encode("utf-8", "replace")  # it may contain lone surrogates
    return data.decode() if len(data) <= MESSAGE_BYTES else f"{data[:MESSAGE_BYTES].decode('utf-8', 'ignore')}…"


def code_of(error: BaseException) -> str:
    """The code of an exception that `to_flight` returned."""
    if match := re.match(r"'?\[([A-Z][A-Z_]*)\] ", str(error)):
        return match[1]
    if isinstance(error, flight.FlightCancelledError):
        return "CANCELLED"
    return "DEADLINE_EXCEEDED" if isinstance(error, flight.FlightTimedOutError) else "INTERNAL"
