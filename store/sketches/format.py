"""What is said of bytes that are no sketch."""

from __future__ import annotations

from store.errors import InvalidArgument


def no_sketch(kind: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"data: no {kind} sketch of Apache DataSketches: {what}")
