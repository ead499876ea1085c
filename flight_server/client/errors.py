"""Errors of pyarrow reduced to the server's message, without the text that gRPC and pyarrow add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.flight as flight

UNAVAILABLE: Final = "[UNAVAILABLE]"  # begins gRPC's own errors of connections; the server's errors have other codes
_PREFIX = re.compile(r"^(?:(?:Flight|gRPC) returned [a-z ]+ error, with message: )+")
_DETAIL = "Python exception|Internal|Unavailable|Unauthenticated|Unauthorized|TimedOut|Cancelled|Failed"
_SUFFIX = re.compile(rf"\. (?:Detail: (?:{_DETAIL})\b|gRPC client debug context:|Client context:).*", re.DOTALL)
_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (flight.FlightUnavailableError, "UNAVAILABLE"),
    (flight.FlightTimedOutError, "DEADLINE_EXCEEDED"),
    (flight.FlightCancelledError, "CANCELLED"),
    (flight.FlightUnauthenticatedError, "UNAUTHENTICATED"),
    (flight.FlightUnauthorizedError, "PERMISSION_DENIED"),
    (pa.ArrowNotImplementedError, "UNIMPLEMENTED"),
    (pa.ArrowKeyError, "NOT_FOUND"),
    (pa.ArrowInvalid, "INVALID_ARGUMENT"),
)


def reason(error: BaseException) -> str:
    """An error as `[CODE] message`, without the text that gRPC and pyarrow add."""
    message = _plain(error)
    if message.startswith("["):
        return message
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL")
    return f"[{code}] {message}"


def _plain(error: BaseException) -> str:
    text = str(error.args[0]) if error.args else str(error)
    return _SUFFIX.sub("", _PREFIX.sub("", text)).strip() or type(error).__name__


@contextmanager
def clear_errors() -> Iterator[None]:
    """Re-raises pyarrow's errors with the server's message only, with the same class and `extra_info`."""
    try:
        yield
    except (pa.ArrowException, flight.FlightError) as error:
        message = _plain(error)
        if message == str(error.args[0] if error.args else ""):
            raise
        extra = getattr(error, "extra_info", None)
        raise (type(error)(message, extra) if extra else type(error)(message)) from None
