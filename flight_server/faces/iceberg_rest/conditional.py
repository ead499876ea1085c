"""Headers by which a client says what it has, and in which form it takes an answer (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_QUALITY = re.compile(r"q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def is_known(if_none_match: Iterable[str], tag: str) -> bool:
    """True if a client has the answer with an entity tag, or any (`*`). Tags are compared without regard to `W/`.

    Args:
        if_none_match: Values of the header.
        tag: The opaque part of the tag, without quotes.
    """
    return any(value.strip() == "*" or tag in _TAG.findall(value) for value in if_none_match)


def takes_gzip(accept_encoding: Iterable[str]) -> bool:
    """True if a client takes answers in gzip.

    Args:
        accept_encoding: Values of the header; none if it is absent, which allows no encoding here.
    """
    qualities: dict[str, float] = {}
    for part in ",".join(accept_encoding).split(","):
        coding, _, parameter = part.partition(";")
        quality = _QUALITY.fullmatch(parameter.strip()) if parameter.strip() else None
        if parameter.strip() and quality is None:
            continue  # malformed
        qualities[coding.strip().lower()] = float(quality[1]) if quality else 1.0
    return qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0))) > 0
