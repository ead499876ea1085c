"""Files that are read again when they change, while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from store.model.errors import InvalidArgument

log = logging.getLogger("statflight.server")

T = TypeVar("T")


class Reloaded(Generic[T]):
    """The content of files as they were when they last were valid.

    Invalid files change nothing: they may be half written, and what was read before may be valid for long.

    Args:
        what: The content, for the log, such as `TLS files`.
        paths: The files, None for those that are not given; symbolic links are followed (Kubernetes renews those).

    Raises:
        InvalidArgument: The files are invalid.
    """

    def __init__(self, what: str, paths: Sequence[Path | None], load: Callable[[], T]):
        self._what, self._paths, self._load = what, [path for path in paths if path is not None], load
        self._seen = self._stamps()
        self.value = load()

    def renew(self) -> bool:
        """Reads the files again if one has changed; True if their new content is in use."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.value = self._load()
        except InvalidArgument as error:
            log.warning("the %s have changed, and those before stay in use: %s", self._what, error)
            return False
        log.info("the %s have changed and are in use", self._what)
        return True

    def _stamps(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for path in self._paths:
            try:
                stat = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((stat.st_mtime_ns, stat.st_ino))
        return stamps
