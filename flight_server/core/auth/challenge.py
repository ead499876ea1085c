"""What an HTTP answer with status 401 asks for, in the words of RFC 6750."""

from __future__ import annotations


def challenge(authorization: str | None) -> str:
    """The value of `WWW-Authenticate`.

    Args:
        authorization: The header of the request; an error is named only to those who sent one.
    """
    return 'Bearer realm="statflight"' + (', error="invalid_token"' if authorization else "")
