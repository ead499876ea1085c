"""A follower's database: the content of its copy, which nobody may change before the follower becomes the writer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from store.duckdb.database import Connection, Database
from store.duckdb.opening import MEMORY, connect
from store.model.errors import InvalidArgument

T = TypeVar("T")


def note_of(path: Path) -> Path:
    """The note beside a follower's copy; a database without one is no copy."""
    return path.with_name(f"{path.name}.replica")


class FollowedDatabase(Database):
    """A database that refuses writes until it is promoted, and whose content is replaced as a whole."""

    def __init__(self, path: Path):
        self._is_followed = True
        self._promoting = 0  # id of the thread that may write before everybody may
        self.is_promoted = False  # the file is opened for writing, which can be done once
        super().__init__(path)
        self._files = None

    def _open(self) -> Connection:
        """A view of nothing: an empty database."""
        return connect(MEMORY)

    def submit(
        self,
        function: Callable[[Connection], T],
        *,
        alone: bool = False,
        may_wait: bool = False,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Future[T]:
        if self._is_followed and threading.get_ident() != self._promoting:
            self.phases.guard.check_writes()
        return super().submit(function, alone=alone, may_wait=may_wait, is_cancelled=is_cancelled)

    def backup(self, path: str | Path) -> int:
        if self._is_followed:
            raise InvalidArgument("a follower has no backup", code="BACKUP", hint="statflight restore makes one")
        return super().backup(path)

    def promote(self) -> None:
        """Opens the file for writing by the calling thread."""
        self._promoting, self.is_promoted = threading.get_ident(), True
        self.replace(super()._open())
        self.watch_files()

    def accept(self) -> None:
        """Lets every thread write."""
        self._is_followed = False
