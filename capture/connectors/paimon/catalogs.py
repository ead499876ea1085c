"""Sources of Paimon tables: a directory, a JDBC catalog in SQLite, or a REST catalog.

A JDBC catalog is read with SQL, not with the library, which would create missing catalog tables.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from capture.connectors.options import storage_options
from capture.connectors.paimon.rest import RestCatalog
from capture.connectors.secrets import mask_uri
from capture.connectors.storage.lake_directories import Folder, Lake
from capture.connectors.storage.places import Place, open_place, reason, unknown_table
from store.model.errors import InvalidArgument, NotFound, UpstreamError

DATABASE_SUFFIX: Final = ".db"
JDBC: Final = "jdbc:"
_SQLITE: Final = "jdbc:sqlite:"
_DEFAULT_KEY: Final = "jdbc"


class Catalog(Protocol):
    """Common interface of `lake_directories.Lake` and the catalogs.

    Attributes:
        storage: Storage options of the tables' directories.
    """

    storage: dict[str, str]

    def namespaces(self) -> list[str]:
        """Databases, sorted."""

    def names(self, namespace: str) -> list[str]:
        """Tables of a database, sorted."""

    def find(self, namespace: str, name: str) -> Place:
        """The directory of a table.

        Raises:
            NotFound: The table does not exist.
        """

    def reason(self, error: BaseException, place: Place | None = None) -> str:
        """The message of an error without secrets and the table's path."""


def open_catalog(uri: str, options: Mapping[str, str]) -> Catalog:
    """The JDBC catalog of a `jdbc:` URI, the REST catalog of a web address, else the warehouse directory."""
    if uri.startswith(JDBC):
        return JdbcCatalog(uri, options)
    if uri.lower().startswith(("http://", "https://")):
        return RestCatalog(uri, options)
    return Lake("paimon", uri, options, holds_table, DATABASE_SUFFIX)


def holds_table(folder: Folder) -> bool:
    """True for a table's directory: it has a subdirectory `schema`, and `snapshot` unless nothing was ever written."""
    return "schema" in folder.folders and ("snapshot" in folder.folders or folder.folders == {"schema"})


class JdbcCatalog(Catalog):
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

    def reason(self, error: BaseException, place: Place | None = None) -> str:
        return reason(error, self.options, *([place.path, place.name] if place else []), str(self._file))

    def _rows(self, sql: str, *values: str) -> list[Any]:
        with (
            self._reading(),
            closing(sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=ro", uri=True)) as connection,
        ):
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if not self._file.is_file():
            raise NotFound(f'uri "{self.uri}" does not exist', params={"field": "uri"})
        try:
            yield
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise NotFound(f'uri "{self.uri}" has no Paimon catalog', params={"field": "uri"}) from None
            raise UpstreamError(f'uri "{self.uri}" cannot be read ({self.reason(error)})') from None
