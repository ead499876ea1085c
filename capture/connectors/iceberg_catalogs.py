"""Where Iceberg tables are found: a directory, one metadata file, or a catalog that pyiceberg knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchIdentifierError, NoSuchNamespaceError, NoSuchTableError, RESTError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from capture.connectors.iceberg_io import LakeIO, io_properties, plain_path, read_metadata, tolerate_answers
from capture.connectors.spi import ConnectorConfig
from store.errors import InvalidArgument, NotFound, StatflightError, UpstreamError, nearest

OWN_OPTIONS = ("type", "name", "warehouse", "path_rewrite", "secret")
# Properties of pyiceberg: exact names, and first words of dotted ones.
_PROPERTIES = frozenset({
    "token", "credential", "scope", "audience", "resource", "oauth2-server-uri", "prefix", "snapshot-loading-mode",
    "echo", "pool_pre_ping", "init_catalog_tables", "schema_version", "py-io-impl", "cert", "ugi",
})  # fmt: skip
_PREFIXES = frozenset({
    "s3", "gcs", "adls", "hdfs", "hf", "client", "glue", "dynamodb", "hive", "rest", "auth", "header", "ssl", "gcp",
    "sql", "policy", "pyarrow",
})  # fmt: skip
_TYPES = ("sql", "rest", "glue", "hive", "dynamodb", "bigquery")
_STORES = frozenset({"", "file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs", "oss", "hdfs", "hf"})
_BY_SCHEME = {"http": "rest", "https": "rest", "glue": "glue", "thrift": "hive"}
_METADATA = re.compile(r"v?(?P<number>\d+).*\.metadata\.json(?:\.gz)?")
_MAX_DEPTH = 8
ATTEMPTS = 3


class Unreadable(UpstreamError):  # noqa: N818  named like the leaves of store.errors
    """Upstream trouble that another try will not mend."""

    retryable: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table's metadata as it is now; `handle` is pyiceberg's own where a catalog keeps the table."""

    namespace: str
    name: str
    metadata: TableMetadata
    io: LakeIO
    location: str
    handle: Table | None = None

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


class Tables(Protocol):
    """The tables a uri leads to."""

    def namespaces(self) -> list[str]: ...

    def names(self, namespace: str) -> list[str]: ...

    def load(self, namespace: str, name: str) -> LoadedTable: ...

    def close(self) -> None: ...


def open_tables(config: ConnectorConfig) -> Tables:
    """Chosen by the option `type`, else by the uri; opens nothing yet."""
    options = _checked(config.options)
    rewrite = options.get("path_rewrite", "")
    if rewrite and "=" not in rewrite:
        raise InvalidArgument("option path_rewrite: expected FROM=TO, the prefix of paths and what replaces it")
    if not config.uri:
        raise InvalidArgument("uri: expected a directory, a metadata file or a catalog, got nothing")
    kind, scheme = options.get("type", ""), urlsplit(config.uri).scheme
    if kind and kind not in _TYPES:
        raise InvalidArgument(f'option type: expected one of {", ".join(_TYPES)}, got "{kind}"')
    if not kind and scheme not in _STORES:
        kind = _BY_SCHEME.get(scheme, "sql")
    if kind:
        return CatalogTables(config.catalog, kind, config.uri, options, rewrite)
    io = LakeIO(io_properties(_of_pyiceberg(options), rewrite))
    uri = plain_path(config.uri)
    if uri.endswith((".metadata.json", ".metadata.json.gz")):
        return OneFile(uri, io)
    return Directory(uri.rstrip("/") or "/", io)


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    for name in options:
        if name in OWN_OPTIONS or name in _PROPERTIES or name.partition(".")[0] in _PREFIXES:
            continue
        known = [*OWN_OPTIONS, *sorted(_PROPERTIES)]
        raise InvalidArgument(
            f'options: "{name}" is no option of an iceberg connector; expected {", ".join(OWN_OPTIONS)} or a property '
            f"of pyiceberg such as s3.endpoint, token, credential",
            hint=nearest(name, known),
        )
    return dict(options)


def _of_pyiceberg(options: Mapping[str, str]) -> dict[str, str]:
    ours = ("type", "name", "path_rewrite", "secret")
    return {n: v for n, v in options.items() if n not in ours and n.partition(".")[0] != "policy"}


# Directories.


class Directory:
    """A table's own directory, or one that holds tables at any depth; nested directories are dotted namespaces."""

    def __init__(self, root: str, io: LakeIO):
        self._root, self._io = root, io
        self._files = _Listing(io)
        self._found: dict[tuple[str, str], str] = {}
        self._parsed: dict[str, TableMetadata] = {}

    def namespaces(self) -> list[str]:
        self._scan()
        return sorted({namespace for namespace, _ in self._found})

    def names(self, namespace: str) -> list[str]:
        self._scan()
        return sorted(name for held, name in self._found if held == namespace)

    def load(self, namespace: str, name: str) -> LoadedTable:
        if (namespace, name) not in self._found:
            self._scan()
        home = self._found.get((namespace, name))
        if home is None:
            raise unknown_table(namespace, name, [known for held, known in self._found if held == namespace])
        location = self._latest(home)
        if location not in self._parsed:  # a metadata file never changes
            if len(self._parsed) >= 8:
                self._parsed.clear()
            self._parsed[location] = read_metadata(self._io, location)
        return LoadedTable(namespace, name, self._parsed[location], self._io, location)

    def close(self) -> None:
        self._found.clear()
        self._parsed.clear()

    def _scan(self) -> None:
        if not self._files.is_directory(self._root):
            raise NotFound("uri: no such directory", hint="expected a directory that holds Iceberg tables")
        if self._holds_table(self._root):
            self._found = {("default", PurePosixPath(self._root).name): self._root}
        else:
            self._found = {}
            for namespace, home in self._tables_below(self._root, ()):
                self._found.setdefault((".".join(namespace) or "default", PurePosixPath(home).name), home)

    def _tables_below(self, folder: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        for child in self._files.directories(folder):
            name = PurePosixPath(child).name
            if name.startswith((".", "_")):
                continue
            if self._holds_table(child):
                yield path, child
            elif len(path) < _MAX_DEPTH:
                yield from self._tables_below(child, (*path, name))

    def _holds_table(self, folder: str) -> bool:
        return any(_METADATA.fullmatch(name) for name in self._files.names(f"{folder}/metadata"))

    def _latest(self, home: str) -> str:
        """The metadata file that `version-hint.text` names, else the one of the greatest number."""
        folder = f"{home}/metadata"
        names = self._files.names(folder)
        if "version-hint.text" in names:
            hint = self._files.text(f"{folder}/version-hint.text").strip()
            endings = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
            for named in (hint, *(f"{v}{hint}{ending}" for v in ("v", "") for ending in endings)):
                if named in names:
                    return f"{folder}/{named}"
        numbered = [(int(match["number"]), name) for name in names if (match := _METADATA.fullmatch(name))]
        if not numbered:
            raise Unreadable("no metadata file is left in the table's directory")
        return f"{folder}/{max(numbered)[1]}"


class OneFile:
    """One metadata file; the table is named after the directory above `metadata/`."""

    def __init__(self, location: str, io: LakeIO):
        self._location, self._io = location, io
        folder = PurePosixPath(location).parent
        self._name = (folder.parent if folder.name == "metadata" else folder).name or "table"

    def namespaces(self) -> list[str]:
        if not self._io.new_input_here(self._location).exists():
            raise NotFound("uri: no such metadata file")
        return ["default"]

    def names(self, namespace: str) -> list[str]:
        return [self._name] if namespace == "default" else []

    def load(self, namespace: str, name: str) -> LoadedTable:
        if name not in self.names(namespace):
            raise unknown_table(namespace, name, [self._name])
        return LoadedTable(namespace, name, read_metadata(self._io, self._location), self._io, self._location)

    def close(self) -> None: ...


class _Listing:
    """Directories and names, local or in an object store."""

    def __init__(self, io: LakeIO):
        self._io = io

    def is_directory(self, folder: str) -> bool:
        if not urlsplit(folder).scheme:
            return Path(folder).is_dir()
        return bool(self._infos(folder))

    def directories(self, folder: str) -> list[str]:
        if not urlsplit(folder).scheme:
            return sorted(str(child) for child in Path(folder).iterdir() if child.is_dir())
        return sorted(f"{folder}/{info.base_name}" for info in self._infos(folder) if info.type.name == "Directory")

    def names(self, folder: str) -> set[str]:
        if not urlsplit(folder).scheme:
            return {child.name for child in Path(folder).iterdir()} if Path(folder).is_dir() else set()
        return {info.base_name for info in self._infos(folder)}

    def text(self, location: str) -> str:
        with self._io.new_input_here(location).open() as stream:
            content: bytes = stream.read()
        return content.decode()

    def _infos(self, folder: str) -> list[Any]:
        from pyarrow.fs import FileSelector
        from pyiceberg.io.pyarrow import PyArrowFileIO

        scheme, netloc, path = PyArrowFileIO.parse_location(folder, self._io.properties)
        filesystem = PyArrowFileIO(self._io.properties).fs_by_scheme(scheme, netloc)
        infos: list[Any] = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        return infos


# Catalogs.


class CatalogTables:
    """A catalog that pyiceberg opens: SQL, REST, Glue, Hive and so on."""

    def __init__(self, own_name: str, kind: str, uri: str, options: dict[str, str], rewrite: str):
        self._own_name, self._kind, self._uri = own_name, kind, uri
        self._options, self._rewrite = options, rewrite
        self._catalog: Catalog | None = None
        self._paths: dict[str, tuple[str, ...]] = {}
        self._foreign_blobs: set[str] = set()

    def namespaces(self) -> list[str]:
        return sorted(".".join(path) for path in self._below(()) if self._list_tables(path))

    def names(self, namespace: str) -> list[str]:
        return sorted(identifier[-1] for identifier in self._list_tables(self._path(namespace)))

    def load(self, namespace: str, name: str) -> LoadedTable:
        try:
            table = retried(self._opened().load_table, (*self._path(namespace), name))
        except (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError):
            raise unknown_table(namespace, name, self.names(namespace)) from None
        assert isinstance(table.io, LakeIO)
        table.io.foreign_blobs |= self._foreign_blobs
        return LoadedTable(namespace, name, table.metadata, table.io, table.metadata_location, table)

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _below(self, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        try:
            children = retried(self._opened().list_namespaces, parent)
        except (NoSuchNamespaceError, NotImplementedError):
            return
        for child in children:
            path = tuple(child)
            if len(path) > len(parent) and path not in self._paths.values():
                self._paths[".".join(path)] = path
        for path in [tuple(child) for child in children if len(child) > len(parent)]:
            yield path
            if self._kind in ("sql", "rest") and len(path) < _MAX_DEPTH:
                yield from self._below(path)

    def _path(self, namespace: str) -> tuple[str, ...]:
        return self._paths.get(namespace, tuple(namespace.split(".")))

    def _list_tables(self, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        try:
            tables: list[tuple[str, ...]] = retried(self._opened().list_tables, path)
        except NoSuchNamespaceError:
            return []
        return tables

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = retried(self._open)
        return self._catalog

    def _open(self) -> Catalog:
        properties = io_properties(_of_pyiceberg(self._options), self._rewrite) | {"type": self._kind}
        if self._kind != "glue" or not self._uri.startswith("glue:"):
            properties["uri"] = self._uri
        name = self._options.get("name", "")
        if self._kind == "sql":
            _check_sqlite(self._uri)
            # A reader makes no tables in somebody's database.
            properties.setdefault("init_catalog_tables", "false")
            name = name or _only_catalog(self._uri)
        catalog = load_catalog(name or self._own_name, **properties)
        if (session := getattr(catalog, "_session", None)) is not None:
            tolerate_answers(session, self._foreign_blobs)
        return catalog


def _check_sqlite(uri: str) -> None:
    path = uri.partition(":///")[2].partition("?")[0]
    if uri.startswith("sqlite") and path and not path.startswith(":memory:") and not Path(path).exists():
        raise NotFound("uri: no such SQLite file")


def _only_catalog(uri: str) -> str:
    """The name under which a SQL database holds its tables, when it is the only one: pyiceberg filters by it."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import create_engine, distinct, select
    from sqlalchemy.orm import Session

    engine = create_engine(uri)
    try:
        with Session(engine) as session:
            names = list(session.execute(select(distinct(IcebergTables.catalog_name)).limit(2)).scalars())
    finally:
        engine.dispose()
    return names[0] if len(names) == 1 else ""


def unknown_table(namespace: str, name: str, known: list[str]) -> NotFound:
    return NotFound(f'no table "{namespace}.{name}"', code="UNKNOWN_TABLE", hint=nearest(name, known))


# Trouble upstream.


def _connection_errors() -> tuple[type[Exception], ...]:
    from requests.exceptions import ConnectionError as RequestsConnectionError
    from requests.exceptions import Timeout

    return (ConnectionError, TimeoutError, RequestsConnectionError, Timeout)


def retried(call: Callable[..., Any], *args: Any) -> Any:
    """Calls a catalog, three times at most when the connection fails; once where stamina is not installed."""
    try:
        import stamina
    except ModuleNotFoundError:
        return call(*args)
    for attempt in stamina.retry_context(on=_connection_errors(), attempts=ATTEMPTS, wait_initial=0.2, wait_max=2.0):
        with attempt:
            return call(*args)
    raise AssertionError("a retry either returns or raises")


@contextmanager
def upstream(what: str, secrets: Mapping[str, str]) -> Iterator[None]:
    """Turns whatever goes wrong below into an error of ours that names the table and the reason, and no secret."""
    try:
        yield
    except StatflightError as error:
        if isinstance(error, Unreadable) and not error.message.startswith(what):
            raise Unreadable(f"{what} cannot be read: {error.message}") from error
        raise
    except _connection_errors() as error:
        raise UpstreamError(f"{what} cannot be reached: {reason(error, secrets)}") from error
    except FileNotFoundError as error:
        raise Unreadable(f"{what} cannot be read: a file that its metadata names is missing") from error
    except RESTError as error:
        raise UpstreamError(f"{what} cannot be read: the catalog answered {reason(error, secrets)}") from error
    except Exception as error:  # libraries raise anything; one table's trouble must not stop the next
        raise Unreadable(f"{what} cannot be read: {reason(error, secrets)}") from error


_PATHS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/{1,3}[^\s'\"\],)]+")


def reason(error: BaseException, secrets: Mapping[str, str]) -> str:
    """Type and first line of an error, without paths and without the values of options."""
    lines = str(error).strip().splitlines()
    text = _PATHS.sub("…", lines[0] if lines else "")
    for value in sorted(secrets.values(), key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "****")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
