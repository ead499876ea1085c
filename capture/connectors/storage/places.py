"""Where the tables of a lake are: a uri becomes a file system and a path, a directory becomes namespaces and tables.

A table's own directory is one table in schema `default`; a directory of tables gives each sub-directory
that holds one, by its name, in schema `default`; nested directories give a dotted schema. Paths are local, `file://`,
`s3://`, `gs://` or `abfss://`. Messages name a place as the caller sent it, never another path of this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.progress import report
from capture.connectors.secrets import mask_uri, redact, storage_options, timeout_of
from capture.connectors.storage import google_tokens
from store.errors import InvalidArgument, NotFound, StatflightError, UpstreamError, nearest

DEFAULT_SCHEMA: Final = "default"
LOOKS: Final = 16  # directories or tables of a lake far away that are looked at at once
MAX_DEPTH: Final = 8  # nested namespaces; also ends a loop of links
SCHEMES: Final = ("file", "s3", "gs", "abfss")
ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "az": "abfss", "azure": "abfss"}


class Unreadable(UpstreamError):
    """The lake answers, but what it holds cannot be read; another try will not help."""

    retryable = False


def unknown_table(namespace: str, name: str, known: list[str]) -> NotFound:
    """NotFound for a table that is not there, with the nearest name that is."""
    return NotFound(
        f'no table "{namespace}.{name}"',
        code="UNKNOWN_TABLE",
        hint=nearest(name, known),
        params={"schema": namespace, "table": name},
    )


def unknown_snapshot(namespace: str, name: str, snapshot_id: int) -> NotFound:
    return NotFound(
        f'table "{namespace}.{name}" has no snapshot {snapshot_id}',
        code="UNKNOWN_SNAPSHOT",
        params={"schema": namespace, "table": name, "snapshot": snapshot_id},
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A directory or file: `path` is its name on `file_system`, `name` its public one (absolute path or full URI)."""

    file_system: pafs.FileSystem = field(repr=False, compare=False)
    path: str
    name: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.file_system, pafs.LocalFileSystem)

    @property
    def stem(self) -> str:
        """The last part of the name, without slashes."""
        return self.path.rstrip("/").rpartition("/")[2]

    def below(self, relative: str) -> Place:
        return Place(self.file_system, f"{self.path.rstrip('/')}/{relative}", f"{self.name.rstrip('/')}/{relative}")

    def relative(self, path: str) -> str:
        """A path of the same file system as seen from here."""
        return path[len(self.path.rstrip("/")) :].lstrip("/")


def open_place(uri: str, options: Mapping[str, str]) -> Place:
    """The file system and path of a uri. Opens nothing.

    Raises:
        InvalidArgument: The uri has no scheme we know, or an option is no good.
    """
    if not isinstance(uri, str) or not uri.strip():
        raise InvalidArgument("uri: is empty", hint="expected a path or a URI", params={"field": "uri"})
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", uri)
    if found is None:
        path = _absolute(uri)
        return Place(pafs.LocalFileSystem(), path, path)
    scheme = ALIASES.get(found[1].lower(), found[1].lower())
    if scheme == "file":
        path = _absolute(unquote(re.sub(r"(?i)^file:(//(localhost)?(?=/))?", "", uri)) or "/")
        return Place(pafs.LocalFileSystem(), path, path)
    if scheme not in SCHEMES:
        raise InvalidArgument(
            f'uri: scheme "{found[1]}" is not one of a local path, {", ".join(f"{s}://" for s in SCHEMES)}',
            params={"field": "uri", "actual": mask_uri(uri)},
        )
    # Not urlsplit: a `?` or `#` in an object's name is no query.
    host, _, path = uri.partition("://")[2].partition("/")
    if not host:
        raise InvalidArgument(f"uri: names no bucket or container: {mask_uri(uri)!r}", params={"field": "uri"})
    storage = _Options(options)
    try:
        if scheme == "s3":
            return Place(_s3(storage), f"{host}/{path}".rstrip("/"), uri.rstrip("/"))
        if scheme == "gs":
            return Place(_gcs(storage), f"{host}/{path}".rstrip("/"), uri.rstrip("/"))
        container, _, server = host.rpartition("@")
        account = server.partition(".")[0] if container else ""
        return Place(_azure(storage, account), f"{container or server}/{path}".rstrip("/"), uri.rstrip("/"))
    except (ValueError, TypeError, OSError, pa.ArrowException) as trouble:
        raise InvalidArgument(
            f"options: storage for {scheme}:// refused ({redact(first_line(trouble), options)})",
            params={"field": "options"},
        ) from None


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  links stay: a path is told as it was sent


class _Options:
    """Storage options looked up by any of the names that libraries have for one thing."""

    def __init__(self, options: Mapping[str, str]):
        self._held = {name.lower().replace("-", "_"): value for name, value in options.items()}
        self.timeout = timeout_of(options)

    def text(self, *names: str) -> str | None:
        return next((self._held[name] for name in names if self._held.get(name)), None)

    def flag(self, *names: str) -> bool | None:
        value = self.text(*names)
        return None if value is None else value.strip().lower() in ("true", "1", "yes", "on")


def _s3(options: _Options) -> pafs.FileSystem:
    def of(*names: str) -> str | None:
        return options.text(*(p + n for n in names for p in ("aws_", "", "s3.", "s3_", "client.")))

    endpoint = of("endpoint_url", "endpoint", "endpoint_override")
    # The library tries three times before it gives up.
    settings: dict[str, Any] = {"connect_timeout": min(5.0, options.timeout), "request_timeout": options.timeout / 3}
    if endpoint:
        scheme, separator, host = endpoint.rpartition("://")
        settings |= {"endpoint_override": host.rstrip("/"), "scheme": scheme if separator else "https"}
        if not separator and options.flag("aws_allow_http", "allow_http"):
            settings["scheme"] = "http"
    keys = {
        "access_key": of("access_key_id"),
        "secret_key": of("secret_access_key"),
        "session_token": of("session_token", "token"),
    }
    if keys["access_key"]:
        settings |= {name: value for name, value in keys.items() if value}
    if region := of("region", "default_region"):
        settings["region"] = region
    elif endpoint:
        settings["region"] = "us-east-1"
    if options.flag("aws_skip_signature", "skip_signature", "s3.anonymous", "anonymous"):
        settings["anonymous"] = True
    virtual = options.flag("aws_virtual_hosted_style_request", "s3.force_virtual_addressing")
    path_style = options.flag("s3.path_style_access", "aws_path_style_access")
    if virtual or path_style is False:
        settings["force_virtual_addressing"] = True
    return pafs.S3FileSystem(**settings)


def _gcs(options: _Options) -> pafs.FileSystem:
    def of(*names: str) -> str | None:
        return options.text(*(p + n for n in names for p in ("google_", "")))

    settings: dict[str, Any] = {"retry_time_limit": timedelta(seconds=options.timeout)}
    given = of("service_account_key", "service_account", "service_account_path", "application_credentials")
    key = google_tokens.parse_key(given) if given else {}
    anonymous = options.flag("google_skip_signature", "skip_signature", "anonymous", "gcs.anonymous")
    if token := options.text("google_access_token", "gcs.oauth2.token", "token"):
        expires = datetime.now(UTC) + timedelta(hours=1)
        settings |= {"access_token": token, "credential_token_expiration": expires}
    elif anonymous or key.get("disable_oauth"):
        settings["anonymous"] = True
    elif key:
        token, expires = google_tokens.access_token(key, options.timeout)
        settings |= {"access_token": token, "credential_token_expiration": expires}
    endpoint = options.text("google_endpoint", "gcs.service.host", "gcs.endpoint", "endpoint") or key.get(
        "gcs_base_url"
    )
    if endpoint:
        scheme, separator, host = str(endpoint).rpartition("://")
        settings |= {"endpoint_override": host.rstrip("/"), "scheme": scheme if separator else "https"}
    return pafs.GcsFileSystem(**settings)


def _azure(options: _Options, account: str) -> pafs.FileSystem:
    def of(*names: str) -> str | None:
        return options.text(*(p + n for n in names for p in ("azure_storage_", "azure_", "", "adls.")))

    settings: dict[str, Any] = {"account_name": of("account_name") or account}
    given = {
        "account_key": of("account_key", "access_key"),
        "sas_token": of("sas_token", "sas_key"),
        "tenant_id": of("tenant_id", "authority_id"),
        "client_id": of("client_id"),
        "client_secret": of("client_secret"),
    }
    settings |= {name: value for name, value in given.items() if value}
    if endpoint := of("endpoint", "account_host"):
        settings |= _azure_hosts(endpoint, settings["account_name"])
    return pafs.AzureFileSystem(**settings)


def _azure_hosts(endpoint: str, account: str) -> dict[str, str]:
    """Where the services of an account are: its name leads the host, or is the first part of an emulator's path.

    The file system puts it in its place itself: before an authority with a leading dot, after any other.
    """
    scheme, separator, host = endpoint.rstrip("/").rpartition("://")
    host = host.removesuffix(f"/{account}")
    host = host[len(account) :] if host.startswith(f"{account}.") else host
    blob, dfs = host.replace(".dfs.", ".blob.", 1), host.replace(".blob.", ".dfs.", 1)
    scheme = scheme if separator else "https"
    return {"blob_storage_authority": blob, "dfs_storage_authority": dfs,
            "blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}  # fmt: skip


def first_line(trouble: BaseException, limit: int = 300) -> str:
    """A library's message in one line of reasonable length."""
    line = next((part.strip() for part in str(trouble).splitlines() if part.strip()), type(trouble).__name__)
    return line if len(line) <= limit else f"{line[:limit]}…"


def reason(trouble: BaseException, options: Mapping[str, str], *paths: str) -> str:
    """A library's message fit for strangers: one line, no secret, and none of these paths."""
    text = redact(first_line(trouble), options)
    for path in sorted(filter(None, paths), key=len, reverse=True):
        for shown in (f"file://{path.rstrip('/')}", path.rstrip("/")):
            text = text.replace(f"{shown}/", "").replace(shown, "the table")
    return text


@dataclass(frozen=True, slots=True)
class Folder:
    """What one directory holds, by plain name. A table is recognised from this alone."""

    files: AbstractSet[str]
    folders: AbstractSet[str]


class _GcsFolders(AbstractSet[str]):
    """The directories below a place in Google's store.

    Its pyarrow file system lists a directory only where there is an object of just that name, which few writers leave.
    Whether one is there takes a look at one name; to go through all means to list every object below, which is done
    once.
    """

    def __init__(self, place: Place):
        self._place = place
        self._all: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._all is None:
            path = f"{self._place.path.rstrip('/')}/{name}"
            found = self._place.file_system.get_file_info(path)
            return bool(found.type == pafs.FileType.Directory)
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
    """The files of a directory, and the names of the directories in it."""
    system = place.file_system
    at_google = system.type_name == "gcs"
    entries = system.get_file_info(pafs.FileSelector(place.path, allow_not_found=at_google, recursive=False))
    files = [entry for entry in entries if entry.type == pafs.FileType.File]
    if not at_google:
        return files, frozenset(entry.base_name for entry in entries if entry.type == pafs.FileType.Directory)
    if not entries and system.get_file_info(place.path).type != pafs.FileType.Directory:
        raise FileNotFoundError(place.name)  # which it says in words alone
    return files, _GcsFolders(place)


TableName = tuple[str, str]


class Lake:
    """The tables below a uri: `holds_table` tells a table's directory from others, which are looked into."""

    def __init__(
        self,
        format: str,
        uri: str,
        options: Mapping[str, str],
        holds_table: Callable[[Folder], bool],
        schema_suffix: str = "",
    ):
        self.format = format
        self._suffix = schema_suffix  # of the directories that stand for schemas, no part of their names
        self.uri = mask_uri(uri)
        self.options = options
        self.storage = storage_options(options)
        self.root = open_place(uri, options)
        self._holds_table = holds_table
        self._found: dict[TableName, Place] | None = None
        self._ancestors: dict[str, Folder] = {}  # directories that are not tables, by path

    @property
    def tables_at_once(self) -> int:
        """How many tables are worth a look at once."""
        return 1 if self.root.is_local else LOOKS

    def namespaces(self) -> list[str]:
        """Schemas that hold a table, looked up anew.

        Raises:
            NotFound: The uri is not there, or holds no table.
        """
        self._found = self._walked()
        return sorted({namespace for namespace, _ in self._found})

    def names(self, namespace: str) -> list[str]:
        if self._found is None:
            self._found = self._walked()
        return sorted(name for schema, name in self._found if schema == namespace)

    def find(self, namespace: str, name: str) -> Place:
        """The directory of a table: where its name says it is, else looked up anew."""
        with self.reading():
            if (place := self._direct(namespace, name)) is not None:
                return place
        self._found = self._walked()
        if (found := self._found.get((namespace, name))) is None:
            raise unknown_table(namespace, name, self.names(namespace))
        return found

    def _direct(self, namespace: str, name: str) -> Place | None:
        """A table without a look at all others: a large lake far away takes long to list."""
        parts = [*([] if namespace == DEFAULT_SCHEMA else namespace.split(".")), name]
        if any(not part or part.startswith((".", "_")) or "/" in part for part in parts):
            return None
        place, folder = self.root, self._ancestor(self.root)
        for depth, part in enumerate(parts, 1):
            if folder is None or (place.path not in self._ancestors and self._holds_table(folder)):
                break
            marked = depth < len(parts) and self._suffix and f"{part}{self._suffix}" in folder.folders
            place = place.below(f"{part}{self._suffix}" if marked else part)
            folder = self._ancestor(place) if depth < len(parts) else self._look(place)
        else:
            return place if folder is not None and self._holds_table(folder) else None
        return place if place is self.root and folder and (namespace, name) == (DEFAULT_SCHEMA, place.stem) else None

    def _ancestor(self, place: Place) -> Folder | None:
        """A directory of directories, as it was at the last walk: a large one takes long to list for each table."""
        folder = self._ancestors.get(place.path)
        if folder is None and (folder := self._look(place)) is not None and not self._holds_table(folder):
            self._ancestors[place.path] = folder
        return folder

    def _look(self, place: Place) -> Folder | None:
        """What a directory holds; None when it is none."""
        try:
            with self.reading():
                files, folders = folder_at(place)
        except NotFound:
            return None
        return Folder(frozenset(file.base_name for file in files), folders)

    def _looks(self, places: Sequence[Place]) -> Iterator[Folder | None]:
        """What directories hold, in their order; several at once where they are far away."""
        if self.root.is_local or len(places) < 2:
            yield from map(self._look, places)
            return
        with ThreadPoolExecutor(LOOKS, "lake") as pool:
            for start in range(0, len(places), LOOKS * 8):  # so that whoever stops the walk need not wait for its end
                yield from pool.map(self._look, places[start : start + LOOKS * 8])

    def _walked(self) -> dict[TableName, Place]:
        self._ancestors = {}
        with self.reading():
            return self._walk()

    def _walk(self) -> dict[TableName, Place]:
        top = self._look(self.root)
        if top is None:
            raise self.not_there()
        if self._holds_table(top):
            return {(DEFAULT_SCHEMA, self.root.stem): self.root}
        found: dict[TableName, Place] = {}
        pending: list[tuple[Place, tuple[str, ...], Folder]] = [(self.root, (), top)]
        looked = 0  # directories
        while pending:
            place, parents, folder = pending.pop()
            names = [name for name in sorted(folder.folders) if not name.startswith((".", "_"))]
            inside = [place.below(name) for name in names]
            for name, inner, held in zip(names, inside, self._looks(inside), strict=True):
                report(f"{looked} directories, {len(found)} tables found")
                looked += 1
                if held is None:
                    continue
                if self._holds_table(held):
                    schema = ".".join(parent.removesuffix(self._suffix) for parent in parents)
                    found.setdefault((schema or DEFAULT_SCHEMA, name), inner)
                elif len(parents) < MAX_DEPTH:
                    pending.append((inner, (*parents, name), held))
        if not found:
            raise NotFound(
                f'uri "{self.uri}" holds no {self.format} table, and neither does a directory below it',
                params={"field": "uri"},
            )
        return found

    def storage_of(self, place: Place) -> dict[str, str]:  # noqa: ARG002  a catalog may tell them apart
        """The storage options that a table is read with."""
        return self.storage

    def not_there(self) -> NotFound:
        return NotFound(f'uri "{self.uri}" is not there, or is no directory', params={"field": "uri"})

    @contextmanager
    def reading(self, what: str = "") -> Iterator[None]:
        """Turns a file system's trouble into ours; `what` names the table or file when it is not the uri itself."""
        subject = what or f'uri "{self.uri}"'
        try:
            yield
        except StatflightError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{subject} is not there", params={"field": "uri"}) from None
        except PermissionError as trouble:
            raise Unreadable(f"{subject} may not be read ({self.reason(trouble)})") from None
        except (OSError, pa.ArrowException) as trouble:
            if isinstance(trouble, OSError) and trouble.errno in (20, 40, 36):  # no directory, link loop, name too long
                raise NotFound(f"{subject} is not there", params={"field": "uri"}) from None
            raise UpstreamError(f"{subject} cannot be reached ({self.reason(trouble)})") from None

    def reason(self, trouble: BaseException, place: Place | None = None) -> str:
        """A library's message without secrets and without this machine's paths."""
        paths = [self.root.path, self.root.name] + ([place.path, place.name] if place else [])
        return reason(trouble, self.options, *(path for path in paths if len(path) > 1))


def plain_path(path: str) -> str:
    """A path or URI as it is written in a file listing: no `file://`, nothing percent-encoded."""
    return unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", path))
