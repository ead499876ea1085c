"""Paimon tables of a REST catalog: `http://host[:port]` with option `warehouse`, and `token` if it asks for one.

The catalog lists the tables and names their directories, which are read with the connector's own storage options. Its
figures of partitions, which commits send to it, belong to no snapshot, so they are not taken: the manifests of a
snapshot have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode

from capture.connectors.options import storage_options
from capture.connectors.storage.catalog_api import CatalogApi
from capture.connectors.storage.places import Place, Unreadable, open_place, reason, unknown_table
from store.model.errors import InvalidArgument, NotFound

_TYPES: Final = (None, "table", "materialized-table")  # others have no snapshots and manifests of Paimon


class RestCatalog:
    """A REST catalog, with the interface of `catalogs.Catalog`."""

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
        """Databases, sorted."""
        return sorted(map(str, self._pages("databases", "databases")))

    def names(self, namespace: str) -> list[str]:
        """Tables of Paimon in a database, sorted; empty if the database does not exist."""
        tables = self._pages(f"databases/{quote(namespace, safe='')}/table-details", "tableDetails")
        try:
            return sorted(str(table["name"]) for table in tables if _is_paimon(table))
        except NotFound:
            return []

    def find(self, namespace: str, name: str) -> Place:
        """The directory of a table.

        Raises:
            NotFound: The table does not exist.
        """
        path = f"databases/{quote(namespace, safe='')}/tables/{quote(name, safe='')}"
        try:
            table = self._api.ask(f"{self._prefix}/{path}")
        except NotFound:
            table = {}
        if not table or not _is_paimon(table):
            raise unknown_table(namespace, name, self.names(namespace))
        if not table.get("path"):
            raise Unreadable(f'table "{namespace}.{name}": the catalog has no path for it')
        return replace(open_place(str(table["path"]), self.storage), table_id=str(table.get("id") or "") or None)

    def reason(self, error: BaseException, place: Place | None = None) -> str:
        """The message of an error without secrets and the table's path."""
        return reason(error, self.options, *([place.path, place.name] if place else []))

    @cached_property
    def _prefix(self) -> str:
        config = self._api.ask(f"v1/config?{urlencode({'warehouse': self._warehouse})}")
        prefix = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}.get("prefix")
        return "v1" if not prefix else f"v1/{prefix}"

    def _pages(self, path: str, key: str) -> Iterator[Any]:
        return self._api.pages(f"{self._prefix}/{path}", {}, key, "pageToken", "nextPageToken")


def _is_paimon(table: Mapping[str, Any]) -> bool:
    return ((table.get("schema") or {}).get("options") or {}).get("type") in _TYPES
