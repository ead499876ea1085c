"""Lakes that are built once and put back for each test that wants one alike: libraries of formats take 30 ms for a
small table, whose files name each other by their paths, and copies of these take one."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

from capture.connectors.storage.immutable_cache import COLUMNS, FILES

T = TypeVar("T")


def kept_lake(build: Callable[[Path], T]) -> T:
    """The result of `build`, which is called once; its directory is put back as `build` left it.

    The directory is the same each time: a test has one such lake, and connectors have cached nothing of it.
    """
    lake, copy, built = _first(build)
    FILES.clear()
    COLUMNS.clear()
    shutil.rmtree(lake, ignore_errors=True)
    shutil.copytree(copy, lake)
    return built


@cache
def _first(build: Callable[[Path], T]) -> tuple[Path, Path, T]:
    directory = Path(mkdtemp(prefix="lakes-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    lake, copy = directory / "lake", directory / "copy"
    built = build(lake)
    shutil.copytree(lake, copy)
    return lake, copy, built
