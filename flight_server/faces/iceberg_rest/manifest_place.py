"""The place of manifests: a directory or bucket of the server's own, in no lake, that engines read too."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from store.duckdb.database import Database
from store.model.errors import InvalidArgument, UpstreamError
from store.places import Use, open_place

_USE: Final = Use("iceberg-manifests", "UPSTREAM", 20)
_SAME_SCHEME: Final = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}


class ManifestPlace(Protocol):
    """A directory or bucket; methods raise `UpstreamError` if it is away."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Stores an object whole, or not at all; False if there is one of this name."""

    def names(self, folder: str) -> list[str]:
        """The sorted full names of all objects below a folder."""

    def folders(self, folder: str) -> list[str]:
        """The sorted names of the folders directly in a folder."""

    def delete(self, name: str) -> None:
        """Deletes an object, if it is there."""


class Folder(ManifestPlace):
    """A directory, whose files others may read as the process's umask lets them."""

    def __init__(self, root: Path):
        self._root = root
        self.url = f"file://{root}"

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UpstreamError(f'iceberg-manifests "{self.url}": {reason}', code=_USE.code) from None

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        with self._reaching():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{uuid.uuid4().hex}")
            try:
                with partial.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(partial, path)
            except FileExistsError:
                return False
            finally:
                partial.unlink(missing_ok=True)
        return True

    def names(self, folder: str) -> list[str]:
        with self._reaching():
            found = (path for path in (self._root / folder).rglob("*") if path.is_file())
            return sorted(str(path.relative_to(self._root)) for path in found if not path.name.startswith("."))

    def folders(self, folder: str) -> list[str]:
        with self._reaching():
            path = self._root / folder
            return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []

    def delete(self, name: str) -> None:
        path = self._root / name
        with self._reaching():
            path.unlink(missing_ok=True)
            for folder in list(path.parents)[:2]:
                with contextlib.suppress(OSError):  # others are in it
                    folder.rmdir()


def place_at(location: str) -> ManifestPlace:
    """The place at a path or URL.

    Raises:
        InvalidArgument: The URL's scheme is unknown, or its library is not installed.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return Folder(Path(rest if separator else location).expanduser().absolute())
    return open_place(location.rstrip("/"), _USE)


def check_outside(location: str, database: Database) -> None:
    """Checks that a place is in no lake.

    Raises:
        InvalidArgument: It lies in a registered lake, or in a table.
    """
    place = _plain(location)
    rows = database.rows(
        "SELECT DISTINCT root, what FROM (SELECT uri AS root, catalog AS what FROM connectors"
        " UNION ALL SELECT location, table_catalog FROM tables) WHERE root IS NOT NULL"
    )
    for root, catalog in rows:
        lake = _plain(root)
        if place == lake or place.startswith(f"{lake.rstrip('/')}/"):
            raise InvalidArgument(
                f'iceberg-manifests "{location}" lies in the lake "{catalog}", at {root}',
                hint="name a directory or bucket of the server's own: nothing is written into a lake",
            )


def _plain(location: str) -> str:
    """A location in a form in which two of one place begin alike."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        scheme, rest = "file", location.removeprefix("file:")
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        rest = os.path.realpath(Path(rest).expanduser())
    return f"{scheme}://{re.sub('/+', '/', rest).rstrip('/')}"
