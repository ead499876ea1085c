"""Iceberg catalogs, opened with pyiceberg, and the choice between them and directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchIdentifierError, NoSuchNamespaceError, NoSuchTableError

from capture.connectors.iceberg.directories import Directory, OneFile
from capture.connectors.iceberg.errors import retried
from capture.connectors.iceberg.io import LakeIO, io_properties
from capture.connectors.iceberg.rest import TimedRestCatalog, structured_options
from capture.connectors.iceberg.tables import LoadedTable, Tables
from capture.connectors.options import check_options, timeout_of
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import NoLake, open_place, unknown_table
from capture.connectors.storage.requests import GET, requested
from capture.connectors.storage.retry import ATTEMPTS
from store.model.errors import InvalidArgument

OWN_OPTIONS = ("type", "name", "warehouse")
# Properties of pyiceberg: full names, and first parts of dotted names.
PROPERTIES = frozenset(
    {
        "token",
        "credential",
        "scope",
        "audience",
        "resource",
        "oauth2-server-uri",
        "prefix",
        "snapshot-loading-mode",
        "echo",
        "pool_pre_ping",
        "init_catalog_tables",
        "schema_version",
        "py-io-impl",
        "cert",
        "ugi",
    }
)
PREFIXES = frozenset(
    {
        "s3",
        "gcs",
        "adls",
        "hdfs",
        "hf",
        "client",
        "glue",
        "dynamodb",
        "hive",
        "rest",
        "auth",
        "header",
        "ssl",
        "gcp",
        "sql",
        "policy",
        "publish",
        "pyarrow",
    }
)
_TYPES = ("sql", "rest", "glue", "hive", "dynamodb", "bigquery")
_STORES = frozenset({"", "file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs", "oss", "hdfs", "hf"})
_BY_SCHEME = {"http": "rest", "https": "rest", "glue": "glue", "thrift": "hive"}
_MAX_DEPTH = 8


def open_tables(config: ConnectorConfig) -> Tables:
    """The source for a configuration, chosen by the option `type`, else by the URI; opens nothing yet."""
    options = dict(config.options)
    check_options(config.format, options, (*OWN_OPTIONS, *PROPERTIES), PREFIXES)
    structured_options(options)
    rewrite = options.get("path_rewrite", "")
    if not config.uri:
        raise InvalidArgument("uri: expected a directory, a metadata file or a catalog, got nothing")
    kind, scheme = options.get("type", ""), urlsplit(config.uri).scheme
    if kind and kind not in _TYPES:
        raise InvalidArgument(f'option type: expected one of {", ".join(_TYPES)}, got "{kind}"')
    if not kind and scheme not in _STORES:
        kind = _BY_SCHEME.get(scheme, "sql")
    if kind:
        return CatalogTables(config.catalog, kind, config.uri, options, rewrite)
    io = LakeIO(io_properties(_pyiceberg_options(options), rewrite))
    if config.uri.endswith((".metadata.json", ".metadata.json.gz")):
        return OneFile(open_place(config.uri, options).name, io)
    return Directory(config, io)


def _pyiceberg_options(options: Mapping[str, str]) -> dict[str, str]:
    ours = ("type", "name", "path_rewrite", "secret")
    excluded = ("policy", "publish", "auth", "ssl")  # `auth` and `ssl` become objects, see `structured_options`
    return {n: v for n, v in options.items() if n not in ours and n.partition(".")[0] not in excluded}


class CatalogTables(Tables):
    """A catalog opened with pyiceberg: SQL, REST, Glue, Hive and so on."""

    def __init__(self, own_name: str, kind: str, uri: str, options: dict[str, str], rewrite: str):
        self._own_name, self._kind, self._uri = own_name, kind, uri
        self._options, self._rewrite = options, rewrite
        self._catalog: Catalog | None = None
        self._paths: dict[str, tuple[str, ...]] = {}

    def namespaces(self) -> list[str]:
        return sorted(map(".".join, self._below(())))

    def names(self, namespace: str) -> list[str]:
        try:
            tables = retried(self._opened().list_tables, self._path(namespace))
        except NoSuchNamespaceError:
            return []
        return sorted(identifier[-1] for identifier in tables)

    def load(self, namespace: str, name: str) -> LoadedTable:
        try:
            table = retried(self._opened().load_table, (*self._path(namespace), name))
        except (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError):
            raise unknown_table(namespace, name, self.names(namespace)) from None
        io = table.io if isinstance(table.io, LakeIO) else LakeIO(io_properties(table.io.properties, self._rewrite))
        return LoadedTable(
            namespace, name, table.metadata, io, table.metadata_location, table, server_commits=self._kind == "rest"
        )

    def mark(self, namespace: str, name: str, before: str | None) -> str | None:
        """The address of the table's metadata file, which never changes; from a REST catalog with the tag by which it
        answers that nothing has changed."""
        path = self._path(namespace)
        match self._kind:
            case "sql":
                return retried(_location_in_sql, self._opened(), ".".join(path), name)
            case "glue":
                return retried(_location_in_glue, self._opened(), ".".join(path), name)
            case "rest":
                catalog = self._opened()
                return retried(catalog.mark, (*path, name), before) if isinstance(catalog, TimedRestCatalog) else None
        return None

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

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = retried(self._open)
        return self._catalog

    def _open(self) -> Catalog:
        properties = io_properties(_pyiceberg_options(self._options), self._rewrite) | {"type": self._kind}
        if self._kind != "glue" or not self._uri.startswith("glue:"):
            properties["uri"] = self._uri
        name = self._options.get("name", "")
        if self._kind == "sql":
            _check_sqlite(self._uri)
            # do not create catalog tables in a database that is only read
            properties.setdefault("init_catalog_tables", "false")
            name = name or _only_catalog(self._uri)
        name = name or self._own_name
        if self._kind == "rest":
            if str(properties.get("rest.sigv4-enabled", "")).lower() == "true":
                _check_aws_credentials(properties)
            return TimedRestCatalog(name, **{**properties, **structured_options(self._options)})
        if self._kind == "glue":
            return _glue(name, properties, timeout_of(self._options))
        return load_catalog(name, **properties)


def _glue(name: str, properties: Mapping[str, str], seconds: float) -> Catalog:
    """pyiceberg's Glue catalog, with timeouts and fewer retries than its defaults of a minute and ten attempts."""
    from botocore.config import Config
    from botocore.session import get_session

    session = get_session()
    waits = Config(connect_timeout=min(10.0, seconds), read_timeout=seconds)
    session.set_default_client_config(waits)
    session.register("before-send.glue", lambda **_: requested(GET))
    limits: dict[str, Any] = {"glue.max-retries": ATTEMPTS, "botocore_session": session}
    return load_catalog(name, **{**limits, **properties})


def _location_in_sql(catalog: Any, namespace: str, name: str) -> str | None:
    """The address of a table's metadata file in an SQL catalog; None if it does not have the table."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    is_it = (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == name,
    )
    with Session(catalog.engine) as session:
        location: str | None = session.scalar(select(IcebergTables.metadata_location).where(*is_it))
    return location


def _location_in_glue(catalog: Any, namespace: str, name: str) -> str | None:
    """The address of a table's metadata file in a Glue catalog; None if it does not have the table."""
    try:
        table = catalog.glue.get_table(DatabaseName=namespace, Name=name)["Table"]
    except catalog.glue.exceptions.EntityNotFoundException:
        return None
    location: str | None = (table.get("Parameters") or {}).get("metadata_location")
    return location


def _check_aws_credentials(properties: Mapping[str, str]) -> None:
    """Checks that botocore finds credentials, because signing without any fails with a useless message."""
    from botocore.session import Session

    given = all(properties.get(f"client.{name}") for name in ("access-key-id", "secret-access-key"))
    if not given and Session(profile=properties.get("client.profile-name")).get_credentials() is None:
        raise InvalidArgument(
            "options: rest.sigv4-enabled needs AWS credentials, and there are none",
            hint="set client.access-key-id and client.secret-access-key, or the environment of the worker",
            params={"field": "options"},
        )


def _check_sqlite(uri: str) -> None:
    path = uri.partition(":///")[2].partition("?")[0]
    if uri.startswith("sqlite") and path and not path.startswith(":memory:") and not Path(path).exists():
        raise NoLake(f'uri "{uri}" is not a SQLite file', params={"field": "uri"})


def _only_catalog(uri: str) -> str:
    """The name of the only catalog in a SQL database, since pyiceberg filters by name; empty if there are several."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import create_engine, select
    from sqlalchemy.orm import Session

    engine = create_engine(uri)
    try:
        with Session(engine) as session:
            names = list(session.execute(select(IcebergTables.catalog_name).distinct().limit(2)).scalars())
    finally:
        engine.dispose()
    return names[0] if len(names) == 1 else ""
