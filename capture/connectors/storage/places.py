"""Places: file system and path of a URI.

URIs are local paths, `file://`, `s3://`, `gs://` or `abfss://`. Messages show a place as the caller sent it, never
other paths of this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.progress import one_at_a_time, reading
from capture.connectors.storage.clouds import StorageOptions, azure, gcs, missing_credentials, s3
from capture.connectors.storage.metered import metered
from capture.connectors.storage.requests import OPEN, carried, requested
from capture.connectors.storage.secrets import mask_uri, redact
from store.model.errors import InvalidArgument, NotFound, UpstreamError, first_line, nearest

SCHEMES: Final = ("file", "s3", "gs", "abfss")
READERS: Final = 8  # files read concurrently from an object store
ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "az": "abfss", "azure": "abfss"}

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Unreadable(UpstreamError):
    """The lake is reachable, but its content cannot be read; a retry does not help."""

    retryable = False


class NoLake(NotFound):
    """The address of a lake has nothing: it is wrong, or a volume is not mounted for a moment."""

    retryable = True


def unknown_table(namespace: str, name: str, known: list[str]) -> NotFound:
    """The error for a table that does not exist, with the most similar name as hint."""
    return NotFound(
        f'no table "{namespace}.{name}"',
        code="UNKNOWN_TABLE",
        hint=nearest(name, known),
        params={"schema": namespace, "table": name},
    )


def unknown_snapshot(namespace: str, name: str, snapshot_id: int) -> NotFound:
    """The error for a snapshot that does not exist."""
    return NotFound(
        f'table "{namespace}.{name}" has no snapshot {snapshot_id}',
        code="UNKNOWN_SNAPSHOT",
        params={"schema": namespace, "table": name, "snapshot": snapshot_id},
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A directory or file: `path` within `file_system`, and `name`, its absolute path or full URI. `table_id` is the id
    that a catalog gave the table there; it survives a rename."""

    file_system: pafs.FileSystem = field(repr=False, compare=False)
    path: str
    name: str
    table_id: str | None = field(default=None, compare=False)

    @property
    def is_local(self) -> bool:
        """True on the local file system."""
        return isinstance(self.file_system, pafs.LocalFileSystem)

    @property
    def stem(self) -> str:
        """The last part of the name, without slashes."""
        return self.path.rstrip("/").rpartition("/")[2]

    def below(self, relative: str) -> Place:
        """A path within this directory."""
        return Place(self.file_system, f"{self.path.rstrip('/')}/{relative}", f"{self.name.rstrip('/')}/{relative}")

    def open(self) -> pa.NativeFile:
        """Opens the file for reads at any position."""
        self._reading()
        return self.file_system.open_input_file(self.path)

    def read(self) -> bytes:
        """The content of the file."""
        with self.open() as file:
            return bytes(file.readall())

    def _reading(self) -> None:
        """Names the file that is about to be opened, and counts it, if no file system of a store does."""
        reading(self.name)
        if self.is_local:
            requested(OPEN)

    def relative(self, path: str) -> str:
        """A path of the same file system, relative to this directory."""
        return path[len(self.path.rstrip("/")) :].lstrip("/")


def open_place(uri: str, options: Mapping[str, str]) -> Place:
    """The file system and path of a URI; opens nothing.

    Raises:
        InvalidArgument: The URI has an unknown scheme, or an option is invalid.
    """
    if not isinstance(uri, str) or not uri.strip():
        raise InvalidArgument("uri: is empty", hint="expected a path or a URI", params={"field": "uri"})
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", uri)
    if match is None:
        path = _absolute(uri)
        return Place(pafs.LocalFileSystem(), path, path)
    scheme = ALIASES.get(match[1].lower(), match[1].lower())
    if scheme == "file":
        path = _absolute(unquote(re.sub(r"(?i)^file:(//(localhost)?(?=/))?", "", uri)) or "/")
        return Place(pafs.LocalFileSystem(), path, path)
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise InvalidArgument(
            f'uri: scheme "{match[1]}" is not one of a local path, {known}',
            hint="download the file, and name that" if scheme in ("http", "https") else "",
            params={"field": "uri", "actual": mask_uri(uri)},
        )
    # Not urlsplit: a `?` or `#` in an object's name is not a query.
    host, _, path = uri.partition("://")[2].partition("/")
    if not host:
        raise InvalidArgument(f"uri: names no bucket or container: {mask_uri(uri)!r}", params={"field": "uri"})
    storage = StorageOptions(options)
    try:
        if scheme == "s3":
            return Place(metered(s3(storage)), f"{host}/{path}".rstrip("/"), uri.rstrip("/"))
        if scheme == "gs":
            return Place(metered(gcs(storage)), f"{host}/{path}".rstrip("/"), uri.rstrip("/"))
        container, _, server = host.rpartition("@")
        account = server.partition(".")[0] if container else ""
        return Place(metered(azure(storage, account)), f"{container or server}/{path}".rstrip("/"), uri.rstrip("/"))
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        raise InvalidArgument(
            f"options: storage for {scheme}:// refused ({redact(first_line(error), options)})",
            params={"field": "options"},
        ) from None


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  keeps symbolic links, so that messages show the path as sent


def reason(error: BaseException, options: Mapping[str, str], *paths: str) -> str:
    """A library's message for clients: one line, without secrets and without these paths."""
    text = missing_credentials(error) or redact(first_line(error), options)
    for path in sorted(filter(None, paths), key=len, reverse=True):
        for shown in (f"file://{path.rstrip('/')}", path.rstrip("/")):
            text = text.replace(f"{shown}/", "").replace(shown, "the table")
    return text


@contextmanager
def reading_files(namespace: str, name: str) -> Iterator[None]:
    """Prefixes errors of a table's files with its name."""
    try:
        yield
    except UpstreamError as error:
        message = f'table "{namespace}.{name}": {error.message}'
        raise type(error)(message, hint=error.hint, params=error.params) from None


def read_each(
    read: Callable[[Item], Answer], items: Sequence[Item], *, is_local: bool = False, at_once: int = READERS
) -> Iterator[Answer]:
    """Reads each of some items, in order: concurrently from a remote store, in blocks between which the caller can
    stop; one by one locally, where threads are slower."""
    if is_local or len(items) < 2 or one_at_a_time():
        yield from map(read, items)
        return
    with ThreadPoolExecutor(at_once, "lake") as pool:
        for block in batched(items, at_once * 8):
            yield from pool.map(carried(read), block)


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Splits items into lists of `size`; the last one may be shorter."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def local_path(location: str) -> str:
    """A path or URI for file listings: without `file://`. What follows stays as it is, for formats whose locations are
    names of files, such as `p=a%2Fb`, and not percent-encoded."""
    return re.sub(r"^file:(//(localhost)?(?=/))?", "", location)


def plain_path(uri: str) -> str:
    """A path from a percent-encoded URI or reference: without `file://`, decoded."""
    return unquote(local_path(uri))
