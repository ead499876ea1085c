"""How old what is served may be: the headers of answers and calls, and the keys of commands and bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from msgspec import Meta

from store.model.errors import InvalidField
from store.model.structs import Count, Struct
from store.role import Role

MAX_LAG: Final = "x-statflight-max-lag-ms"
MIN_GENERATION: Final = "x-statflight-min-generation"
_MOST: Final = 2**63 - 1


class Read(Struct):
    """Keys of reads.

    Attributes:
        max_lag_ms: Greatest age of what is served, in milliseconds; None for any.
        min_generation: Commit that is served at least; None for none.
    """

    max_lag_ms: Annotated[Count, Meta(title="must be milliseconds ≥ 0")] | None = None
    min_generation: Annotated[Count, Meta(title="must be an integer ≥ 0")] | None = None


def check(role: Role, header: Callable[[str], str | None]) -> None:
    """Waits for the commit that a call's headers name, and refuses the call if what is served is older than they allow.

    Args:
        role: That of the server.
        header: Returns the value of a header; None if the call does not have it.

    Raises:
        InvalidField: A header is not a number.
        Lagging: What is served is older.
    """
    most_ms = _number(header, MAX_LAG, "must be milliseconds ≥ 0")
    role.check_read(most_ms, _number(header, MIN_GENERATION, "must be an integer ≥ 0"))


def _number(header: Callable[[str], str | None], name: str, reason: str) -> int | None:
    given = header(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and int(given[:20]) <= _MOST):
        raise InvalidField(name, reason, expected="digits", actual=given[:100])
    return int(given)


def headers(lag_ms: int, generation: int | None) -> dict[str, str]:
    """The headers of answers that are of a generation, which may be an older one."""
    return {"x-statflight-generation": str(generation), "x-statflight-lag-ms": str(lag_ms)}
