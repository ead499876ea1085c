"""One base, few leaves. Every error says what was wrong, where, and what would be right.

`code` is the word in brackets that a message on the wire begins with; `status` is the gRPC status it maps to. The
message must be fit for strangers: no SQL, no server path, no secret.
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
    """A field of a record or request: names field, reason, expected and actual."""

    def __init__(self, field: str, reason: str, *, expected: object, actual: object, where: str = ""):
        place = f" ({where})" if where else ""
        super().__init__(
            f"{field}: {reason}{place}: expected {expected}, got {_shown(actual)}",
            params={"field": field, "reason": reason, "expected": str(expected), "actual": _shown(actual)},
        )
        self.field = field


class Conflict(StatflightError):
    """The request contradicts what is stored."""

    code = "CONFLICT"
    status = "INVALID_ARGUMENT"


class NotFound(StatflightError):
    """No such flight, table, snapshot, job or connector; `code` names which."""

    code = status = "NOT_FOUND"


class Unauthenticated(StatflightError):
    """No credentials, or bad ones."""

    code = status = "UNAUTHENTICATED"


class PermissionDenied(StatflightError):
    """Known caller, not allowed."""

    code = status = "PERMISSION_DENIED"


class ResourceExhausted(StatflightError):
    """Over a limit: streams in flight, queue, bytes."""

    code = "RESOURCE_EXHAUSTED"
    status = "UNAVAILABLE"
    retryable = True


class ShuttingDown(StatflightError):
    """The server is draining."""

    code = "SHUTTING_DOWN"
    status = "UNAVAILABLE"
    retryable = True


class Unimplemented(StatflightError):
    """Not built for this target."""

    code = status = "UNIMPLEMENTED"


class Cancelled(StatflightError):
    """The caller went away."""

    code = status = "CANCELLED"


class DeadlineExceeded(StatflightError):
    """The caller's time is spent."""

    code = status = "DEADLINE_EXCEEDED"
    retryable = True


class UpstreamError(StatflightError):
    """A lake, catalog or file could not be read; `retryable` tells whether another try may help."""

    code = "UPSTREAM"
    status = "UNAVAILABLE"
    retryable = True


def nearest(name: str, known: list[str]) -> str:
    """` did you mean …?` for the closest known name, or nothing."""
    import difflib

    found = difflib.get_close_matches(name, known, 1, 0.6)
    return f'did you mean "{found[0]}"?' if found else ""


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def to_json(error: StatflightError) -> dict[str, Any]:
    """An error as it travels between processes."""
    return {"status": error.status, "code": error.code, "message": error.message, "hint": error.hint,
            "params": error.params, "retryable": error.retryable}  # fmt: skip


def from_json(body: Mapping[str, Any]) -> StatflightError:
    """The error that `to_json` described, as the leaf its status names; retryable as it was there."""
    leaves: list[type[StatflightError]] = [
        InvalidArgument, NotFound, Unauthenticated, PermissionDenied, Unimplemented, UpstreamError,
    ]  # fmt: skip
    leaf = next((leaf for leaf in leaves if leaf.status == body.get("status")), UpstreamError)
    error = leaf(str(body["message"]), code=body.get("code"), hint=body.get("hint", ""), params=body.get("params"))
    error.retryable = bool(body.get("retryable", leaf.retryable))
    return error


_BUGS: Final = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NotImplementedError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip
"""Exceptions that repeat: malformed data, unsupported types (Arrow's own are among these), missing modules, bugs."""


def may_pass(trouble: BaseException) -> bool:
    """True if a retry may help: our own exceptions have a flag, others are judged by their type."""
    return trouble.retryable if isinstance(trouble, StatflightError) else not isinstance(trouble, _BUGS)
