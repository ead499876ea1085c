"""The errors of the project: one base, one class for each status. Messages name the problem, its place and a remedy.

`code` is the word in brackets at the start of a message on the wire; `status` is the gRPC status it maps to. Messages
are sent to clients, so they must not contain SQL, server paths or secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final


class StatflightError(Exception):
    """Base of every error this project raises on purpose."""

    code: str = "INTERNAL"
    status: ClassVar[str] = "INTERNAL"
    retryable: bool = False

    def __init__(
        self, message: str, *, code: str | None = None, hint: str = "", params: Mapping[str, Any] | None = None
    ):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.params = dict(params or {})
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidArgument(StatflightError):
    """Malformed input or a breach of the contract."""

    code = status = "INVALID_ARGUMENT"


class InvalidField(InvalidArgument):
    """An invalid field of a record or request; has field, reason, expected and actual value."""

    def __init__(self, field: str, reason: str, *, expected: object, actual: object, where: str = "", hint: str = ""):
        place = f" ({where})" if where else ""
        super().__init__(
            f"{field}: {reason}{place}: expected {expected}, got {_quoted(actual)}",
            hint=hint,
            params={"field": field, "reason": reason, "expected": str(expected), "actual": _shown(actual)},
        )
        self.field = field


class Conflict(StatflightError):
    """The request contradicts what is stored."""

    code = "CONFLICT"
    status = "INVALID_ARGUMENT"


class NotCaptured(StatflightError):
    """Statistics of a table that the request needs have not been captured."""

    code = "NOT_CAPTURED"
    status = "INVALID_ARGUMENT"  # Arrow has no error for FAILED_PRECONDITION


class NotFound(StatflightError):
    """A flight, table, snapshot, job or connector that does not exist; `code` names which."""

    code = status = "NOT_FOUND"


class Unauthenticated(StatflightError):
    """Missing or invalid credentials."""

    code = status = "UNAUTHENTICATED"


class PermissionDenied(StatflightError):
    """An authenticated caller without the permission."""

    code = status = "PERMISSION_DENIED"


class ResourceExhausted(StatflightError):
    """A limit was reached: concurrent streams, queue length, bytes."""

    code = "RESOURCE_EXHAUSTED"
    status = "UNAVAILABLE"
    retryable = True


class DatabaseMoved(StatflightError):
    """The database file was deleted, moved or replaced while it is open."""

    code = "DATABASE_MOVED"
    status = "UNAVAILABLE"
    retryable = True


class ShuttingDown(StatflightError):
    """The server is draining."""

    code = "SHUTTING_DOWN"
    status = "UNAVAILABLE"
    retryable = True


class Unimplemented(StatflightError):
    """Not implemented for this target."""

    code = status = "UNIMPLEMENTED"


class Cancelled(StatflightError):
    """The caller cancelled the call or disconnected."""

    code = status = "CANCELLED"


class DeadlineExceeded(StatflightError):
    """The caller's deadline has passed."""

    code = status = "DEADLINE_EXCEEDED"
    retryable = True


class UpstreamError(StatflightError):
    """A lake, catalog or file could not be read; `retryable` is true if another try may succeed."""

    code = "UPSTREAM"
    status = "UNAVAILABLE"
    retryable = True


def first_line(error: BaseException, limit: int = 300) -> str:
    """The first line of an error's message that is not blank, else its type's name; for messages of our own.

    Args:
        limit: Most characters.
    """
    line = next((part.strip() for part in str(error).splitlines() if part.strip()), type(error).__name__)
    return line if len(line) <= limit else f"{line[:limit]}…"


def nearest(name: str, known: list[str]) -> str:
    """`did you mean "…"?` with the closest known name other than this one; empty if none is close."""
    import difflib

    matches = difflib.get_close_matches(name, [other for other in known if other != name], 1, 0.6)
    return f'did you mean "{matches[0]}"?' if matches else ""


class Words(str):
    """Words about a value, which an error shows without quotes."""

    __slots__ = ()


def _quoted(value: object) -> str:
    """A value as an error shows it: texts in quotes, so that "5" and 5 differ."""
    return f'"{_shown(value)}"' if type(value) is str else _shown(value)


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def to_json(error: StatflightError) -> dict[str, Any]:
    """An error as JSON, for another process; see `from_json`."""
    return {
        "status": error.status,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "params": error.params,
        "retryable": error.retryable,
    }


def from_json(body: Mapping[str, Any]) -> StatflightError:
    """The error of a `to_json` document, as the class of its status."""
    leaves: list[type[StatflightError]] = [
        InvalidArgument,
        NotFound,
        Unauthenticated,
        PermissionDenied,
        Unimplemented,
        UpstreamError,
    ]
    leaf = next((leaf for leaf in leaves if leaf.status == body.get("status")), UpstreamError)
    error = leaf(str(body["message"]), code=body.get("code"), hint=body.get("hint", ""), params=body.get("params"))
    error.retryable = bool(body.get("retryable", leaf.retryable))
    return error


_BUGS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions that a retry would repeat: malformed data, unsupported types (also of Arrow), missing modules, bugs."""


def may_pass(error: BaseException) -> bool:
    """True if a retry may succeed: by the flag of the project's own errors, by the type of others."""
    return error.retryable if isinstance(error, StatflightError) else not isinstance(error, _BUGS)
