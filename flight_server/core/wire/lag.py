"""The headers by which a follower's answers tell their age, and callers limit it."""

from __future__ import annotations

from typing import Final

from store.model.errors import InvalidField

MAX_LAG: Final = "x-statflight-max-lag-ms"


def most_ms(given: str | None) -> int | None:
    """The greatest age in milliseconds of what the caller accepts, by its header; None for any.

    Raises:
        InvalidField: The header is not a number of milliseconds.
    """
    if given is None:
        return None
    if not (given.isascii() and given.isdigit()):
        raise InvalidField(MAX_LAG, "must be milliseconds ≥ 0", expected="digits", actual=given)
    return int(given)


def headers(lag_ms: int, generation: int | None) -> dict[str, str]:
    """The headers of a follower's answers, which are of a generation."""
    return {"x-statflight-generation": str(generation), "x-statflight-lag-ms": str(lag_ms)}
