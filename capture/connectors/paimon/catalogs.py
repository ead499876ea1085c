"""Sources of Paimon tables: a directory, a JDBC catalog in SQLite, or a REST catalog.

A JDBC catalog is read with SQL, not with the library, which would create missing catalog tables. A REST catalog,
`http://host[:port]` with option `warehouse`, and `token` if it asks for one, lists the tables and names their
directories, which are read with the connector's own storage options. Its figures of partitions, which commits send to
it, belong to no snapshot, so they are not taken: the manifests of a snapshot have the same ones.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from capture.connectors.options import storage_options
from capture.connectors.paimon import holds_table
from capture.connectors.storage.catalog_api import CatalogApi
from capture.connectors.storage.lake_directories import Lake, Tables
from capture.connectors.storage.places import NoLake, Place, Unreadable, open_place, unknown_table
from capture.connectors.storage.secrets import mask_uri
from store.model.errors import InvalidArgument, NotFound, UpstreamError

DATABASE_SUFFIX: Final = ".db"
JDBC: Final = "jdbc:"
_SQLITE: Final = "jdbc:sqlite:"
_DEFAULT_KEY: Final = "jdbc"


def open_catalog(uri: str, options: Mapping[str, str]) -> Tables:
    """The JDBC catalog of a `jdbc:` URI, the REST catalog of a web address, else the warehouse directory."""
    if uri.startswith(JDBC):
        return JdbcCatalog(uri, options)
    if uri.lower().startswith(("http://", "https://")):
        return RestCatalog(uri, options)
    return Lake("paimon", uri, options, holds_table, DATABASE_SUFFIX)


class JdbcCatalog(Tables):
    """A catalog of pypaimon or Flink in a SQLite file."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        if not uri.startswith(_SQLITE):
            raise InvalidArgument(
                f"uri: of JDBC catalogs only {_SQLITE}<path> is read, got {mask_uri(uri)!r}", params={"field": "uri"}
            )
        if not (warehouse := options.get("warehouse")):
            raise InvalidArgument(
                "options.warehouse: a JDBC catalog needs it, the directory of its tables",
                params={"field": "options.warehouse"},
            )
        self.uri = mask_uri(uri)
        self.options, self.storage = options, storage_options(options)
        self._warehouse = warehouse.rstrip("/")
        self._key = options.get("catalog-key", _DEFAULT_KEY)
        self._file = Path(re.sub(r"^file:(//(?=/))?", "", uri.removeprefix(_SQLITE)).partition("?")[0])

    def namespaces(self) -> list[str]:
        rows = self._rows("SELECT DISTINCT database_name FROM paimon_tables WHERE catalog_key = ?", self._key)
        return sorted(str(row[0]) for row in rows)

    def names(self, namespace: str) -> list[str]:
        sql = "SELECT table_name FROM paimon_tables WHERE catalog_key = ? AND database_name = ?"
        return sorted(str(row[0]) for row in self._rows(sql, self._key, namespace))

    def find(self, namespace: str, name: str) -> Place:
        names = self.names(namespace)
        if name not in names:
            raise unknown_table(namespace, name, names)
        sql = (
            "SELECT property_value FROM paimon_database_properties"
            " WHERE catalog_key = ? AND database_name = ? AND property_key = 'location'"
        )
        rows = self._rows(sql, self._key, namespace)
        base = str(rows[0][0]).rstrip("/") if rows else f"{self._warehouse}/{namespace}{DATABASE_SUFFIX}"
        return open_place(f"{base}/{name}", self.storage)

    def _paths(self) -> Sequence[str]:
        return [str(self._file)]

    def _rows(self, sql: str, *values: str) -> list[Any]:
        with (
            self._reading(),
            closing(sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=ro", uri=True)) as connection,
        ):
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if not self._file.is_file():
            raise NoLake(f'uri "{self.uri}" does not exist', params={"field": "uri"})
        try:
            yield
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise NotFound(f'uri "{self.uri}" has no Paimon catalog', params={"field": "uri"}) from None
            raise UpstreamError(f'uri "{self.uri}" cannot be read ({self.reason(error)})') from None


# REST catalogs.

_TYPES: Final = (None, "table", "materialized-table")  # others have no snapshots and manifests of Paimon


class RestCatalog(Tables):
    """A REST catalog."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        if not options.get("warehouse"):
            raise InvalidArgument(
                "options.warehouse: a REST catalog needs it, the name of the warehouse there",
                params={"field": "options.warehouse"},
            )
        self.options = options
        self._warehouse = options["warehouse"]
        self.storage = {name: value for name, value in storage_options(options).items() if name.lower() != "token"}
        self._api = CatalogApi("Paimon REST catalog", uri, uri, options.get("token"), options)

    def namespaces(self) -> list[str]:
        return sorted(map(str, self._pages("databases", "databases")))

    def names(self, namespace: str) -> list[str]:
        tables = self._pages(f"databases/{quote(namespace, safe='')}/table-details", "tableDetails")
        try:
            return sorted(str(table["name"]) for table in tables if _is_paimon(table))
        except NotFound:
            return []

    def find(self, namespace: str, name: str) -> Place:
        path = f"databases/{quote(namespace, safe='')}/tables/{quote(name, safe='')}"
        try:  # a catalog may answer for `t$snapshots` or `t$branch_b` with `t`, whose rows these are not
            table = {} if "$" in name else self._api.ask(f"{self._prefix}/{path}")
        except NotFound:
            table = {}
        if not table or not _is_paimon(table):
            raise unknown_table(namespace, name, self.names(namespace))
        if not table.get("path"):
            raise Unreadable(f'table "{namespace}.{name}": the catalog has no path for it')
        return replace(open_place(str(table["path"]), self.storage), table_id=str(table.get("id") or "") or None)

    @cached_property
    def _prefix(self) -> str:
        config = self._api.ask(f"v1/config?{urlencode({'warehouse': self._warehouse})}")
        prefix = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}.get("prefix")
        return "v1" if not prefix else f"v1/{prefix}"

    def _pages(self, path: str, key: str) -> Iterator[Any]:
        return self._api.pages(f"{self._prefix}/{path}", {}, key, "pageToken", "nextPageToken")


def _is_paimon(table: Mapping[str, Any]) -> bool:
    return ((table.get("schema") or {}).get("options") or {}).get("type") in _TYPES
