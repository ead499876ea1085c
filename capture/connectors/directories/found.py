"""Recognizes the table at an address, or the tables of a directory.

Each package of a format recognizes its own: `holds_table` a directory, `holds_file` the name of a file, and `WILD` the
patterns that it takes. Only these are imported, not the connector and its library.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors import FORMATS
from capture.connectors.spi import Connector, ConnectorConfig
from capture.connectors.storage.clouds import missing_credentials
from capture.connectors.storage.folder import Folder
from capture.connectors.storage.lake_directories import folder_at
from capture.connectors.storage.places import Place, Unreadable, open_place
from capture.connectors.storage.secrets import mask_uri, resolve
from store.model.errors import InvalidArgument, NotFound, StatflightError, UpstreamError, first_line

MAX_FOLDERS: Final = 1000  # most directories that are listed to find the tables below one
MAX_DEPTH: Final = 4
_SUFFIX: Final = re.compile(r"\.(parquet|parq|pqt|lance)$", re.IGNORECASE)
NAMED: Final = 5  # most tables that a message names
LOOKED_THROUGH: Final = 10_000  # most entries of a directory that are compared with a misspelt name


@dataclass(frozen=True, slots=True)
class Found:
    """A table at an address.

    Attributes:
        uri: The address in full: an absolute path, or a URI.
        format: The format's name.
        name: Last part of the address, after which the table is called.
    """

    uri: str
    format: str
    name: str

    @property
    def table(self) -> str:
        """The table's name: without the suffix of the format, such as `.parquet`."""
        return _SUFFIX.sub("", self.name) or self.name


def table_at(path: str) -> Found:
    """The table at a path or URI.

    Raises:
        NotFound: There is none; the message says what was looked for, or which tables are below.
        Unreadable: The place may not be read.
        UpstreamError: The store cannot be reached.
    """
    place = _place(path, {})
    with _reading(path):
        if (found := _recognized(path, place)) is not None:
            return found
        info = place.file_system.get_file_info(place.path)
        if info.type == pafs.FileType.NotFound and (place.is_local or not _has_entries(place)):
            what = "no such file or directory" if place.is_local else "nothing is there"
            raise _nothing(path, what, _similar(path) if place.is_local else "")
        if info.type == pafs.FileType.File:
            raise _nothing(path, "is a file, and of no format that is known")
        below = [found for _, found in zip(range(NAMED + 1), _below(place), strict=False)]
    if not below:
        raise _nothing(path, "no table there, nor in the directories below it")
    raise _several(path, place, below)


def _several(path: str, place: Place, below: Sequence[Found]) -> NotFound:
    """The error for a directory with tables."""
    names = ", ".join(place.relative(_path_of(found, place)) for found in below[:NAMED])
    more = " and more" if len(below) > NAMED else ""
    first = f"{path.rstrip('/')}/{place.relative(_path_of(below[0], place))}"
    return NotFound(
        f"{path}: a directory of tables, not a table; it has {names}{more}",
        code="NO_TABLE",
        hint=f"name one, such as {first}; `statflight serve {path}` serves them all",
    )


def tables_at(path: str, options: Mapping[str, str] | None = None) -> list[Found]:
    """The table at a path or URI, or those in the directories below it.

    Args:
        options: Storage options; those of the environment by default.

    Raises:
        NotFound: There is none; the message says what was looked for.
        StatflightError: As `table_at`.
    """
    place = _place(path, options or {})
    with _reading(path):
        if (found := _recognized(path, place)) is not None:
            return [found]
        if place.file_system.get_file_info(place.path).type == pafs.FileType.Directory or not place.is_local:
            below = list(_below(place))
            if below:
                return below
    if place.is_local and not Path(place.path).exists():
        raise _nothing(path, "no such file or directory", _similar(path))
    raise _nothing(path, "no table there, nor in the directories below it")


def lies_in(path: str) -> Found | None:
    """The table that a local directory is, or the first that lies in it; None if it is missing or has neither."""
    place = _place(path, {})
    try:
        return _first(path, place, 1)
    except OSError:
        return None


def hint_of_other_format(config: ConnectorConfig) -> str:
    """A hint at the tables of another format that a lake's address has; empty if there are none.

    Args:
        config: That of a connector that has found no table of its own; a named secret in its options is resolved.
    """
    try:
        place = open_place(config.uri, resolve(config.options))
        with _reading(config.uri):
            found = _first(config.uri, place)
    except StatflightError:
        return ""
    if found is None or found.format == config.format:
        return ""
    what = f"is a table of format {found.format}"
    if (name := place.relative(_path_of(found, place))) != "":
        what = f"has {found.format} tables, such as {name}"
    return f"it {what}: statflight connect {config.catalog} {found.format} {mask_uri(config.uri)}"


def _place(path: str, options: Mapping[str, str]) -> Place:
    """The file system and path of a path or URI.

    Raises:
        InvalidArgument: It has an unknown scheme, or an option is invalid; the message begins with the path.
    """
    try:
        return open_place(path, options)
    except InvalidArgument as error:
        error.message = f"{mask_uri(path)}: {error.message.removeprefix('uri: ')}"
        raise


def _similar(path: str) -> str:
    """A hint at the entry of the directory around a local path that has the most similar name; empty if none has."""
    around = Path(path).parent
    try:
        entries = [entry.name for entry in itertools.islice(around.iterdir(), LOOKED_THROUGH)]
    except OSError:
        return ""
    near = difflib.get_close_matches(Path(path).name, entries, 1, 0.7)
    return f"did you mean {path.rstrip('/').removesuffix(Path(path).name)}{near[0]}?" if near else ""


def only_table(connector: Connector) -> tuple[str, str]:
    """Namespace and name of the table of a connector whose address is one table."""
    (namespace, *_) = connector.list_namespaces()
    (name, *_) = connector.list_tables(namespace)
    return namespace, name


def _recognized(path: str, place: Place) -> Found | None:
    """The table of a file, a pattern, or a directory; None if it is none."""
    if (pattern := _pattern(path, place)) is not None:
        return pattern
    format = _format_of_file(place.stem)
    is_file = place.file_system.get_file_info(place.path).type == pafs.FileType.File
    if is_file:
        return None if format is None else Found(place.name, format, place.stem)
    if (folder := _listed(place)) is not None and (format := _format_of(folder)) is not None:
        return Found(place.name, format, place.stem)
    return None


def _pattern(path: str, place: Place) -> Found | None:
    """The files that a pattern matches, as a table; None if the path has no `*`, `?` or `[`, or is there as it is."""
    for format, module in _formats():
        wild = getattr(module, "WILD", None)
        if wild is None or not wild.search(path) or (place.is_local and Path(place.path).exists()):
            continue
        return Found(place.name, format, place.stem)
    return None


def _format_of_file(name: str) -> str | None:
    return next((format for format, module in _formats() if getattr(module, "holds_file", _no_file)(name)), None)


def _no_file(_: str) -> bool:
    return False


def _format_of(folder: Folder) -> str | None:
    return next((format for format, module in _formats() if module.holds_table(folder)), None)


def _formats() -> Iterator[tuple[str, ModuleType]]:
    """Name and package of each format that recognizes its tables, in the order in which they are asked."""
    for name, point in FORMATS.known.items():
        try:
            module = import_module(point.module.rpartition(".")[0] or point.module)
        except ImportError:  # not part of this build; a plug-in that fails is told when it is loaded
            continue
        if hasattr(module, "holds_table"):
            yield name, module


def _listed(place: Place) -> Folder | None:
    """The content of a directory; None if it is none."""
    try:
        files, folders = folder_at(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Folder(frozenset(file.base_name for file in files), folders)


def _has_entries(place: Place) -> bool:
    folder = _listed(place)
    return folder is not None and bool(folder.files or folder.folders)


def _first(path: str, place: Place, most_depth: int = MAX_DEPTH) -> Found | None:
    """The table at a place, or else the nearest below it."""
    return _recognized(path, place) or next(_below(place, most_depth), None)


def _below(place: Place, most_depth: int = MAX_DEPTH) -> Iterator[Found]:
    """The tables in the directories below one, the nearest first."""
    pending, listed = deque([(place, 0)]), 0
    while pending and listed < MAX_FOLDERS:
        at, depth = pending.popleft()
        folder = _listed(at)
        listed += 1
        if folder is None:
            continue
        if depth and (format := _format_of(folder)) is not None:
            yield Found(at.name, format, at.stem)
        elif depth < most_depth:
            names = sorted(name for name in folder.folders if not name.startswith((".", "_")))
            pending.extend((at.below(name), depth + 1) for name in names)


def _path_of(found: Found, place: Place) -> str:
    """The path of a table below a place, within the file system."""
    return place.path.rstrip("/") + found.uri[len(place.name.rstrip("/")) :]


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Translates errors of the file system; messages begin with the path."""
    try:
        yield
    except PermissionError:
        raise Unreadable(f"{mask_uri(path)}: may not be read by this user") from None
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno in (20, 36, 40):  # ENOTDIR, ENAMETOOLONG, ELOOP
            raise _nothing(path, os.strerror(error.errno).lower()) from None
        if (missing := missing_credentials(error)) is not None:
            raise UpstreamError(f"{mask_uri(path)}: cannot be reached ({missing})") from None
        reason = re.sub(r"\s+", " ", first_line(error, 300))
        raise UpstreamError(f"{mask_uri(path)}: cannot be reached ({reason})", hint=_credentials(path)) from None


def _credentials(path: str) -> str:
    """The variables from which a store's credentials are taken."""
    variables: Mapping[str, str] = {
        "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "abfss": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    }
    names = variables.get(path.partition("://")[0].lower().replace("s3a", "s3"))
    return "" if names is None else f"credentials come from {names}"


def _nothing(path: str, what: str, hint: str = "") -> NotFound:
    names = [format.capitalize() for format, _ in _formats()]
    message = f"{mask_uri(path)}: {what}; looked for a table of {', '.join(names[:-1])} or {names[-1]}"
    return NotFound(message, code="NO_TABLE", hint=hint)
