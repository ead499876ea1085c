"""Footers that outlive the process: where to look before a file is opened, and where to leave what was read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from capture.connectors.footers.metadata import read_bytes

FooterKey: TypeAlias = tuple[str, int, int]
"""Path or URI of a file, its size, and its modification time or 0; files with equal keys have equal footers."""


class KeptFooters(Protocol):
    """Footers by their files, as the bytes that stand in them."""

    def get(self, keys: Collection[FooterKey]) -> Mapping[FooterKey, bytes]:
        """Those that are kept, of these files."""

    def put(self, footers: Mapping[FooterKey, bytes]) -> None:
        """Keeps footers that were read."""


class _Nowhere:
    """Keeps nothing."""

    def get(self, keys: Collection[FooterKey]) -> Mapping[FooterKey, bytes]:  # noqa: ARG002
        return {}

    def put(self, footers: Mapping[FooterKey, bytes]) -> None:
        pass


_beneath: Final[list[KeptFooters]] = [_Nowhere()]


def kept_footers() -> KeptFooters:
    """Where this process keeps footers beyond its own cache; nowhere by default."""
    return _beneath[-1]


@contextmanager
def keeping(place: KeptFooters) -> Iterator[None]:
    """Footers of the process are kept there for the block."""
    _beneath.append(place)
    try:
        yield
    finally:
        _beneath.remove(place)


def footers_of(files: Mapping[FooterKey, Callable[[], pa.NativeFile]]) -> Iterator[tuple[FooterKey, bytes]]:
    """The footers of some files: those that are kept, then the others, which are read and kept, also if one fails.

    Args:
        files: What opens each of them.

    Raises:
        ValueError: As of `metadata.read_bytes`, with any error of opening a file.
    """
    place = kept_footers()
    kept = place.get(files.keys()) if files else {}
    yield from kept.items()
    found: dict[FooterKey, bytes] = {}
    try:
        for key in [key for key in files if key not in kept]:
            with files[key]() as file:
                found[key] = read_bytes(file)
            yield key, found[key]
    finally:
        if found:
            place.put(found)
