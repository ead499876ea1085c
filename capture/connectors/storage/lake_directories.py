"""Tables of a lake by namespace and name: the interface of its sources, and the source for directories.

If the directory is itself a table, it is one table in schema `default`. Otherwise each subdirectory that is a table is
named after the directory, in schema `default`; tables in nested directories have a dotted schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.options import storage_options
from capture.connectors.progress import report
from capture.connectors.storage.folder import Folder
from capture.connectors.storage.places import NoLake, Place, Unreadable, open_place, read_each, reason, unknown_table
from capture.connectors.storage.requests import LIST, requested
from capture.connectors.storage.secrets import mask_uri
from store.model.errors import NotFound, StatflightError, UpstreamError

DEFAULT_SCHEMA: Final = "default"
LISTED_AT_ONCE: Final = 16  # directories or tables of a remote lake that are read concurrently
MAX_DEPTH: Final = 8  # maximum nesting of namespaces; also ends a loop of symbolic links


class _GcsFolders(AbstractSet[str]):
    """The subdirectories of a directory in Google Cloud Storage.

    pyarrow lists a subdirectory only if there is an object with exactly its name, which few writers create. So
    membership is checked by name, and iteration lists all objects below the directory, once.
    """

    def __init__(self, place: Place):
        self._place = place
        self._all: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._all is None:
            path = f"{self._place.path.rstrip('/')}/{name}"
            info = self._place.file_system.get_file_info(path)
            return bool(info.type == pafs.FileType.Directory)
        return name in self._all

    def __iter__(self) -> Iterator[str]:
        if self._all is None:
            below = self._place.file_system.get_file_info(pafs.FileSelector(self._place.path, recursive=True))
            parts = ((info, self._place.relative(info.path).partition("/")) for info in below)
            self._all = frozenset(
                first for info, (first, slash, _) in parts if slash or info.type == pafs.FileType.Directory
            )
        return iter(self._all)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def folder_at(place: Place) -> tuple[list[pafs.FileInfo], AbstractSet[str]]:
    """The files of a directory, and the names of its subdirectories, without links to a directory around them."""
    system = place.file_system
    if place.is_local:
        requested(LIST)
    at_google = system.type_name.endswith("gcs")
    entries = system.get_file_info(pafs.FileSelector(place.path, allow_not_found=at_google, recursive=False))
    files = [entry for entry in entries if entry.type == pafs.FileType.File]
    if not at_google:
        folders = (entry for entry in entries if entry.type == pafs.FileType.Directory)
        return files, frozenset(entry.base_name for entry in folders if not (place.is_local and _is_loop(entry.path)))
    if not entries and system.get_file_info(place.path).type != pafs.FileType.Directory:
        raise FileNotFoundError(place.name)  # pyarrow raises a plain OSError here
    return files, _GcsFolders(place)


def files_below(
    root: Place, follows: Callable[[str, str], bool], *, by_directory: bool = False
) -> Iterator[tuple[pafs.FileInfo, str]]:
    """The files in and below a directory, with their paths relative to it.

    A store lists all objects below a path in pages, whatever their directories: that takes fewer requests than to list
    each directory.

    Args:
        follows: Called with the path of a directory, empty or with a slash at its end, and the name of one in it: false
            to leave that out.
        by_directory: Lists each directory by itself, because most are left out.
    """
    if root.is_local or by_directory:
        pending = [(root, "")]
        while pending:
            folder, prefix = pending.pop()
            infos, folders = folder_at(folder)
            pending.extend(
                (folder.below(base), f"{prefix}{base}/") for base in sorted(folders) if follows(prefix, base)
            )
            yield from ((info, f"{prefix}{info.base_name}") for info in infos)
        return
    known: dict[str, bool] = {"": True}

    def is_followed(prefix: str) -> bool:
        if prefix not in known:
            above, _, base = prefix.rstrip("/").rpartition("/")
            above = f"{above}/" if above else ""
            known[prefix] = is_followed(above) and follows(above, base)
        return known[prefix]

    at_google = root.file_system.type_name.endswith("gcs")
    for info in root.file_system.get_file_info(pafs.FileSelector(root.path, allow_not_found=at_google, recursive=True)):
        relative = root.relative(info.path)
        if info.type == pafs.FileType.File and is_followed(relative[: -len(info.base_name)]):
            yield info, relative


def _is_loop(path: str) -> bool:
    """True for a symbolic link to a directory that contains it."""
    link = Path(path)
    return link.is_symlink() and link.parent.resolve().is_relative_to(link.resolve())


def listing_digest(place: Place, *folders: str) -> str:
    """Digest of the names, sizes and times of the entries of some directories of a table; one that does not exist is
    empty."""
    found = []
    for folder in folders:
        at = place.below(folder)
        if place.is_local:
            requested(LIST)
        infos = at.file_system.get_file_info(pafs.FileSelector(at.path, allow_not_found=True))
        found.append(sorted((info.base_name, info.size, info.mtime_ns) for info in infos))
    return hashlib.sha256(repr(found).encode("utf-8", "surrogatepass")).hexdigest()


def _digest(folder: Folder) -> str:
    """Digest of the names in a directory."""
    names = repr((sorted(folder.files), sorted(folder.folders)))
    return hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()


TableName = tuple[str, str]
_MISSING: Final = re.compile(r"/([\w.=-]+)['\"\s]*(?:$|does not exist)")


class Tables(ABC):
    """The tables of a directory or a catalog.

    Attributes:
        options: Options of the connector.
        storage: Storage options of the tables' directories.
    """

    options: Mapping[str, str]
    storage: dict[str, str]

    @property
    def tables_at_once(self) -> int:
        """Number of tables to describe concurrently."""
        return 1

    @abstractmethod
    def namespaces(self) -> list[str]:
        """Namespaces, sorted.

        Raises:
            StatflightError: The lake does not exist, cannot be reached, or rejects the request.
        """

    @abstractmethod
    def names(self, namespace: str) -> list[str]:
        """Tables of a namespace, sorted; empty if it does not exist."""

    @abstractmethod
    def find(self, namespace: str, name: str) -> Place:
        """The directory of a table.

        Raises:
            NotFound: The table does not exist.
        """

    def storage_of(self, place: Place) -> dict[str, str]:  # noqa: ARG002  catalogs may have options per table
        """The storage options of a table."""
        return self.storage

    def reason(self, error: BaseException, place: Place | None = None) -> str:
        """A library's message without secrets and paths of this machine."""
        options = self.options if place is None else {**self.options, **self.storage_of(place)}
        return reason(error, options, *([place.path, place.name] if place else []), *self._paths())

    def _paths(self) -> Sequence[str]:
        """Paths of this machine that messages do not show."""
        return ()

    def unreached(self, error: Exception) -> str | None:  # noqa: ARG002
        """The message of a library's own error that a store is not reached; None for any other error."""
        return None

    @contextmanager
    def reading_table(self, namespace: str, name: str, place: Place) -> Iterator[None]:
        """Translates errors of a table's library; messages have the table's name and the reason in one line."""
        try:
            yield
        except StatflightError:
            raise
        except Exception as raised:  # libraries pass errors of Avro, JSON and Arrow on
            unreached = self.unreached(raised)
            error = raised if unreached is None else OSError(unreached)
            reason = self.reason(error, place)
            if isinstance(error, FileNotFoundError):
                missing = _MISSING.search(str(error.filename or error))
                reason = f"no such file: {missing[1]}" if missing else "no such file"
            what = f'table "{namespace}.{name}" cannot be read ({reason})'
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and not place.is_local:
                raise UpstreamError(what) from raised
            raise Unreadable(what) from raised


class Lake(Tables):
    """The tables below a URI.

    Args:
        holds_table: Recognizes the directory of a table; other directories are searched.
        schema_suffix: Suffix of directories that stand for schemas, removed from their names.
    """

    def __init__(
        self,
        format: str,
        uri: str,
        options: Mapping[str, str],
        holds_table: Callable[[Folder], bool],
        schema_suffix: str = "",
    ):
        self.format = format
        self._suffix = schema_suffix
        self.uri = mask_uri(uri)
        self.options = options
        self.storage = storage_options(options)
        self.root = open_place(uri, options)
        self._holds_table = holds_table
        self._found: dict[TableName, Place] | None = None
        self._walked: str | None = None  # mark of the last walk
        self._ancestors: dict[str, Folder] = {}  # path → content of directories that are not tables

    @property
    def tables_at_once(self) -> int:
        return 1 if self.root.is_local else LISTED_AT_ONCE

    def namespaces(self) -> list[str]:
        """Schemas with tables; walks the directory again.

        Raises:
            NotFound: The URI does not exist, or contains no table.
        """
        self._found = self._walk_again()
        return sorted({namespace for namespace, _ in self._found})

    def mark(self, namespace: str, name: str, before: str | None, state: Callable[[Place], str]) -> str | None:
        """The mark of a table (`Connector.mark`): its directory, and what is there.

        Args:
            state: Reads a text from the directory that changes with the table.
        """
        place = None if before is None else self._marked(before)
        if place is not None:
            with suppress(NotFound), self.reading():
                return self._mark_of(place, state)
        place = self.find(namespace, name)
        with self.reading_table(namespace, name, place):
            return self._mark_of(place, state)

    def _marked(self, mark: str) -> Place:
        """The directory in a mark."""
        relative = str(json.loads(mark)[0])
        return self.root.below(relative) if relative else self.root

    def _mark_of(self, place: Place, state: Callable[[Place], str]) -> str:
        return json.dumps([self.root.relative(place.path), state(place)])

    def lake_mark(self, before: str | None) -> str | None:
        """A digest of each directory around tables, see `Connector.lake_mark`."""
        if before is None:
            return self._walked
        now: dict[str, str] = {}
        for relative in json.loads(before):
            folder = self._list_directory(self.root.below(relative) if relative else self.root)
            now[relative] = "" if folder is None else _digest(folder)
        return json.dumps(now)

    def names(self, namespace: str) -> list[str]:
        if self._found is None:
            self._found = self._walk_again()
        return sorted(name for schema, name in self._found if schema == namespace)

    def find(self, namespace: str, name: str) -> Place:
        """The directory of a table, derived from its name if possible, else by walking the directory again."""
        if (place := self.directly(namespace, name)) is not None:
            return place
        self._found = self._walk_again()
        if (known_place := self._found.get((namespace, name))) is None:
            raise unknown_table(namespace, name, self.names(namespace))
        return known_place

    def directly(self, namespace: str, name: str) -> Place | None:
        """The directory of a table, derived from its name; None if it cannot be."""
        with self.reading():
            return self._direct(namespace, name)

    def _direct(self, namespace: str, name: str) -> Place | None:
        """The directory of a table, found by its name since walking a large remote lake is slow; None if not found."""
        if not name or name.startswith((".", "_")) or "/" in name:
            return None
        if namespace == DEFAULT_SCHEMA:
            if name == self.root.stem and self._is_table(self.root):
                return self.root
            if (place := self._below(self.root, [], name)) is not None:
                return place
        return self._below(self.root, namespace.split("."), name)

    def _below(self, place: Place, parts: Sequence[str], name: str) -> Place | None:
        """The directory of a table in a namespace below a directory; names of directories may have dots."""
        folder = self._ancestor(place)
        if folder is None:
            return None
        if not parts:
            table = place.below(name)
            return table if self._is_table(table) else None
        for count in range(1, len(parts) + 1):
            joined = ".".join(parts[:count])
            for directory in dict.fromkeys((f"{joined}{self._suffix}", joined)):
                if directory in folder.folders and not directory.startswith((".", "_")):
                    found = self._below(place.below(directory), parts[count:], name)
                    if found is not None:
                        return found
        return None

    def _is_table(self, place: Place) -> bool:
        folder = self._list_directory(place)
        return folder is not None and self._holds_table(folder)

    def _ancestor(self, place: Place) -> Folder | None:
        """The content of a parent directory, cached since the last walk, because large ones are slow to list; None for
        a table."""
        folder = self._ancestors.get(place.path)
        if folder is None and (folder := self._list_directory(place)) is not None:
            if self._holds_table(folder):
                return None
            self._ancestors[place.path] = folder
        return folder

    def _list_directory(self, place: Place) -> Folder | None:
        """The content of a directory; None if it is not a directory."""
        try:
            with self.reading():
                files, folders = folder_at(place)
        except NotFound:
            return None
        return Folder(frozenset(file.base_name for file in files), folders)

    def _walk_again(self) -> dict[TableName, Place]:
        self._ancestors = {}
        with self.reading():
            return self._walk()

    def _walk(self) -> dict[TableName, Place]:
        self._walked = None
        top = self._list_directory(self.root)
        if top is None:
            raise self.not_there()
        around = {"": _digest(top)}
        if self._holds_table(top):
            self._walked = json.dumps(around)
            return {(DEFAULT_SCHEMA, self.root.stem): self.root}
        tables: dict[TableName, Place] = {}
        pending: list[tuple[Place, tuple[str, ...], Folder]] = [(self.root, (), top)]
        listed = 0  # directories read so far
        while pending:
            place, parents, folder = pending.pop()
            names = [name for name in sorted(folder.folders) if not name.startswith((".", "_"))]
            inside = [place.below(name) for name in names]
            listings = read_each(self._list_directory, inside, is_local=self.root.is_local, at_once=LISTED_AT_ONCE)
            for name, inner, is_table in zip(names, inside, listings, strict=True):
                report(f"{listed} directories, {len(tables)} tables found")
                listed += 1
                if is_table is None:
                    continue
                if self._holds_table(is_table):
                    schema = ".".join(parent.removesuffix(self._suffix) for parent in parents)
                    tables.setdefault((schema or DEFAULT_SCHEMA, name), inner)
                else:
                    around[self.root.relative(inner.path)] = _digest(is_table)
                    if len(parents) < MAX_DEPTH:
                        pending.append((inner, (*parents, name), is_table))
        if not tables:
            raise NoLake(
                f'uri "{self.uri}" holds no {self.format} table, and neither does a directory below it',
                params={"field": "uri"},
            )
        self._walked = json.dumps(around)
        return tables

    def not_there(self) -> NotFound:
        """The error for a lake whose directory does not exist."""
        return NoLake(f'uri "{self.uri}" does not exist, or is not a directory', params={"field": "uri"})

    @contextmanager
    def reading(self, what: str = "") -> Iterator[None]:
        """Translates errors of the file system; `what` names the table or file, by default the URI."""
        subject = what or f'uri "{self.uri}"'
        try:
            yield
        except StatflightError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{subject} does not exist", params={"field": "uri"}) from None
        except PermissionError as error:
            raise Unreadable(f"{subject} may not be read ({self.reason(error)})") from None
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno in (20, 40, 36):  # ENOTDIR, ELOOP, ENAMETOOLONG
                raise NotFound(f"{subject} does not exist", params={"field": "uri"}) from None
            raise UpstreamError(f"{subject} cannot be reached ({self.reason(error)})") from None

    def _paths(self) -> Sequence[str]:
        return [path for path in (self.root.path, self.root.name) if len(path) > 1]
