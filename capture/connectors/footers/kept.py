"""Footers that outlive the process: where to look before a file is opened, and where to leave what was read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol, Self, TypeAlias

import pyarrow as pa

from capture.connectors.footers.metadata import read_bytes

FooterKey: TypeAlias = tuple[str, int, int]
"""Path or URI of a file, its size, and its modification time or 0; files with equal keys have equal footers."""


class KeptFooters(Protocol):
    """Footers by their files, as the bytes that stand in them."""

    def get(self, keys: Collection[FooterKey]) -> Mapping[FooterKey, bytes]:
        """The kept footers of some files; a file whose footer is not kept is left out."""

    def put(self, footers: Mapping[FooterKey, bytes]) -> None:
        """Keeps footers that were read."""


class _Nowhere:
    """Keeps nothing."""

    def get(self, keys: Collection[FooterKey]) -> Mapping[FooterKey, bytes]:  # noqa: ARG002
        return {}

    def put(self, footers: Mapping[FooterKey, bytes]) -> None:
        pass


_AT_ONCE: Final = 256  # footers that are kept in one step, so that few are in memory
_beneath: Final[list[KeptFooters]] = [_Nowhere()]
"""The last one is where this process keeps footers beyond its own cache. By default that is nowhere."""


@contextmanager
def keeping(place: KeptFooters) -> Iterator[None]:
    """Footers of the process are kept there for the block."""
    _beneath.append(place)
    try:
        yield
    finally:
        _beneath.remove(place)


class KnownFooters:
    """The footers of some files that are kept; those that are read beside them are kept, too, once the block ends.

    Args:
        keys: The files.
    """

    def __init__(self, keys: Collection[FooterKey]):
        self._place = _beneath[-1]
        self._kept = self._place.get(keys) if keys else {}
        self._read: dict[FooterKey, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put()

    def get(self, key: FooterKey) -> bytes | None:
        """The footer of a file, if it was kept."""
        return self._kept.get(key)

    def add(self, key: FooterKey, footer: bytes) -> None:
        """Keeps a footer that was read."""
        if key not in self._kept:
            self._read[key] = footer
            if len(self._read) >= _AT_ONCE:
                self._put()

    def _put(self) -> None:
        if self._read:
            self._place.put(self._read)
            self._read = {}


def footers_of(files: Mapping[FooterKey, Callable[[], pa.NativeFile]]) -> Iterator[tuple[FooterKey, bytes]]:
    """The footers of some files, in their order.

    Args:
        files: What opens each of them, if its footer is not kept.

    Raises:
        ValueError: As of `metadata.read_bytes`, with any error of opening a file.
    """
    with KnownFooters(files.keys()) as known:
        for key, opened in files.items():
            footer = known.get(key)
            if footer is None:
                with opened() as file:
                    footer = read_bytes(file)
                known.add(key, footer)
            yield key, footer
