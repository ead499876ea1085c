"""Places of objects that outlive a machine: a directory, or a prefix of an object store.

The one primitive that everything relies on is `create`: it writes an object whole, or not at all if there is one of
that name. Objects are never changed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from store.model.errors import InvalidArgument, StatflightError, UpstreamError

IDENTITY: Final = "replica.json"  # the first object of most places


class Use(NamedTuple):
    """What a place is for.

    Attributes:
        name: Its name in messages.
        code: Code of the errors of one that is out of reach.
        call_seconds: Longest request to an object store.
        mark: The first object of a directory, without which it is out of reach, as a disk that is not mounted; None if
            a directory that is not there is an empty one.
        mode: Of the folders of a directory.
    """

    name: str
    code: str
    call_seconds: int
    mark: str | None = IDENTITY
    mode: int = 0o700


REPLICA: Final = Use("replica", "REPLICA", 20)  # a request that hangs must not outlive the lease for long


class Place(Protocol):
    """A directory or bucket. Names are paths with `/`; methods raise `UpstreamError` if it is away."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Stores an object durably; False if there is one of this name."""

    def read(self, name: str) -> bytes | None:
        """The object's bytes; None if there is none."""

    def names(self, folder: str, after: str = "") -> list[str]:
        """The sorted full names of all objects below a folder that are greater than `after`."""

    def folders(self, folder: str) -> list[str]:
        """The sorted names of the folders directly in a folder."""

    def delete(self, name: str) -> None:
        """Deletes an object, if it is there."""

    def is_empty(self) -> bool:
        """True if nothing at all is stored here."""


def open_place(url: str, use: Use = REPLICA) -> Place:
    """The place of a URL: a directory (a path or `file://`), `s3://`, `gs://` or `abfss://`.

    Args:
        use: What it is for.

    Raises:
        InvalidArgument: The scheme is unknown, or its library is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Directory(url, Path(url).expanduser().absolute(), use)
    if scheme == "file":
        return Directory(url, Path(rest), use)
    if scheme not in ("s3", "s3a", "gs", "az", "abfs", "abfss"):
        raise InvalidArgument(f'{use.name} "{url}": cannot be written to', hint="a directory, s3://, gs:// or abfss://")
    if find_spec("obstore") is None:
        raise InvalidArgument(f'{use.name} "{url}": needs obstore', hint="pip install 'statflight[replicas]'")
    return Bucket(url, use)


def _out_of_reach(url: str, error: Exception, use: Use) -> UpstreamError:
    reason = (error.strerror if isinstance(error, OSError) else None) or next(iter(str(error).splitlines()), "")[:300]
    return UpstreamError(f'{use.name} "{url}": {reason or type(error).__name__}', code=use.code)


class Directory(Place):
    """A place in a file system. An object is written under another name, synced, and then linked to its own."""

    def __init__(self, url: str, root: Path, use: Use = REPLICA):
        self.url, self._root, self._use = url, root, use

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _out_of_reach(self.url, error, self._use) from None

    def _look(self) -> None:
        """Fails if the place is not there."""
        if self._use.mark is not None:
            (self._root / self._use.mark).stat()

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        partial = path.with_name(f".{uuid.uuid4().hex}")
        with self._reaching():
            if path.exists():
                return False
            if name != self._use.mark:
                self._look()
            path.parent.mkdir(parents=True, exist_ok=True, mode=self._use.mode)
            try:
                with partial.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(partial, path)
                except FileExistsError:
                    return False
            finally:
                partial.unlink(missing_ok=True)
            _sync(path.parent)
        return True

    def read(self, name: str) -> bytes | None:
        with self._reaching():
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                if name != self._use.mark:
                    self._look()
                return None

    def names(self, folder: str, after: str = "") -> list[str]:
        with self._reaching():
            self._look()
            return sorted(self._below(folder.rstrip("/"), after))

    def _below(self, folder: str, after: str) -> Iterator[str]:
        for entry in self._entries(folder):
            name = f"{folder}/{entry.name}"
            if entry.is_dir():
                if f"{name}/\U0010ffff" > after:
                    yield from self._below(name, after)
            elif name > after and not entry.name.startswith("."):
                yield name

    def folders(self, folder: str) -> list[str]:
        with self._reaching():
            self._look()
            return sorted(entry.name for entry in self._entries(folder) if entry.is_dir())

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        path = self._root / name
        with self._reaching():
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others are in it
                for folder in path.parents:
                    if folder == self._root:
                        break
                    folder.rmdir()

    def is_empty(self) -> bool:
        with self._reaching():
            return not self._root.exists() or not any(self._root.iterdir())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_http_allowed() -> bool:
    """True if the environment says so: obstore itself looks there only without `client_options`."""
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        return True
    return any(os.environ.get(f"{cloud}_ALLOW_HTTP", "").lower() == "true" for cloud in ("AWS", "AZURE", "GOOGLE"))


class Bucket(Place):
    """A place in an object store, with the credentials of the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`)."""

    def __init__(self, url: str, use: Use = REPLICA):
        from obstore.store import from_url

        self.url, self._use = url, use
        options: dict[str, Any] = {"timeout": f"{use.call_seconds}s", "connect_timeout": "5s"}
        if _is_http_allowed():
            options["allow_http"] = True
        with self._reaching():
            self._store: Any = from_url(url.replace("s3a://", "s3://", 1), client_options=options)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except StatflightError:
            raise
        except Exception as error:  # obstore has a class of its own for each kind of failure
            raise _out_of_reach(self.url, error, self._use) from None

    def create(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._reaching():
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return self.read(name) == data  # a retried request may meet its own object
        return True

    def read(self, name: str) -> bytes | None:
        from obstore.exceptions import NotFoundError

        with self._reaching():
            try:
                return bytes(self._store.get(name).bytes())
            except (NotFoundError, FileNotFoundError):
                return None

    def names(self, folder: str, after: str = "") -> list[str]:
        with self._reaching():
            found = self._store.list(folder.rstrip("/") + "/", offset=after or None)
            return sorted(item["path"] for items in found for item in items if item["path"] > after)

    def folders(self, folder: str) -> list[str]:
        with self._reaching():
            found = self._store.list_with_delimiter(folder.rstrip("/") + "/")["common_prefixes"]
            return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found)

    def delete(self, name: str) -> None:
        from obstore.exceptions import NotFoundError

        with self._reaching(), contextlib.suppress(NotFoundError, FileNotFoundError):
            self._store.delete(name)

    def is_empty(self) -> bool:
        with self._reaching():
            return not any(self._store.list())
