"""Delta tables of a Unity Catalog: `uc://host[:port]/catalog`.

This module requests a table's location and temporary credentials from the catalog and opens the location itself,
because deltalake's `uc://` hangs on some locations. Options: `token` (or `unity_access_token`),
`unity_allow_http_url=true` for plain HTTP. Schemas of the catalog are namespaces.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from capture.connectors.options import storage_options
from capture.connectors.spi import Constraint
from capture.connectors.storage.catalog_api import CatalogApi
from capture.connectors.storage.lake_directories import LISTED_AT_ONCE, Tables
from capture.connectors.storage.places import Place, Unreadable, open_place, unknown_table
from capture.connectors.storage.secrets import mask_uri
from store.model.errors import InvalidArgument, NotFound

API: Final = "/api/2.1/unity-catalog"
_LEASE: Final = 600  # seconds; maximum time for which credentials are cached, usually valid for an hour


class UnityCatalog(Tables):
    """The Delta tables of one catalog."""

    def __init__(self, uri: str, options: Mapping[str, str]):
        match = re.fullmatch(r"uc://(?P<host>[^/@\s?#]+)/(?P<catalog>[^/\s?#]+)/?", uri, re.IGNORECASE)
        if match is None:
            raise InvalidArgument(
                f"uri: {mask_uri(uri)!r} is not a Unity Catalog",
                hint="expected uc://host/catalog",
                params={"field": "uri"},
            )
        self.uri = uri
        self.options = options
        self.catalog = match["catalog"]
        plain = str(options.get("unity_allow_http_url", options.get("allow_http", ""))).lower() in ("true", "1")
        token = options.get("token") or options.get("unity_access_token") or options.get("bearer_token")
        base = f"http{'' if plain else 's'}://{match['host']}{API}"
        self._api = CatalogApi("Unity Catalog", uri, base, token, options)
        own = {"token", "bearer_token"}
        self.storage = {
            name: value
            for name, value in storage_options(options).items()
            if name.lower() not in own and not name.lower().startswith("unity_")
        }
        self._leased: dict[str, tuple[float, dict[str, str]]] = {}
        self._storage_of: dict[str, dict[str, str]] = {}

    @property
    def tables_at_once(self) -> int:
        return LISTED_AT_ONCE

    def namespaces(self) -> list[str]:
        """Schemas that have at least one Delta table, sorted."""
        names = [str(item["name"]) for item in self._pages("schemas", catalog_name=self.catalog)]
        return sorted(name for name in names if name != "information_schema" and self.names(name))

    def names(self, namespace: str) -> list[str]:
        try:
            tables = list(self._pages("tables", catalog_name=self.catalog, schema_name=namespace))
        except NotFound:
            return []
        return sorted(str(item["name"]) for item in tables if _is_delta(item))

    def find(self, namespace: str, name: str) -> Place:
        """The location of a table, opened with credentials from the catalog."""
        table = self._table(namespace, name)
        location = table.get("storage_location")
        if not isinstance(location, str) or not location:
            raise Unreadable(f'table "{namespace}.{name}": the catalog has no storage location for it')
        storage = dict(self.storage)
        if re.match(r"[a-zA-Z0-9]+://", location) and not location.lower().startswith("file:"):
            storage |= self._credentials(str(table.get("table_id", "")))
        place = open_place(location, storage)
        self._storage_of[place.name] = storage
        return place

    def storage_of(self, place: Place) -> dict[str, str]:
        """Storage options of a table: credentials from the catalog, else the connector's own."""
        return self._storage_of.get(place.name, self.storage)

    def declared(self, namespace: str, name: str) -> tuple[Constraint, ...]:
        """Primary and foreign keys, which are in the catalog but not in the Delta log."""
        tables = []
        for item in self._table(namespace, name).get("table_constraints") or ():
            for kind, word in (("primary_key_constraint", "PRIMARY KEY"), ("foreign_key_constraint", "FOREIGN KEY")):
                if isinstance(key := item.get(kind), Mapping):
                    columns = tuple(map(str, key.get("child_columns") or ()))
                    parent, referred = str(key.get("parent_table") or "").split(".")[-2:], key.get("parent_columns")
                    clause = json.dumps([*parent, referred]) if referred and len(parent) == 2 else None
                    called = str(key.get("name") or f"{name}_{word[:7].lower()}_key")
                    tables.append(Constraint(word, called, columns, clause))
        return tuple(tables)

    # The REST API.

    def _table(self, namespace: str, name: str) -> Mapping[str, Any]:
        full = ".".join(quote(part, safe="") for part in (self.catalog, namespace, name))
        try:
            table = self._api.ask(f"tables/{full}")
        except NotFound:
            raise unknown_table(namespace, name, self.names(namespace)) from None
        if not _is_delta(table):
            raise unknown_table(namespace, name, self.names(namespace))
        return table

    def _credentials(self, table_id: str) -> dict[str, str]:
        leased = self._leased.get(table_id)
        if leased is not None and leased[0] > time.monotonic():
            return leased[1]
        try:
            answer = self._api.ask("temporary-table-credentials", {"table_id": table_id, "operation": "READ"})
        except NotFound:
            return {}  # an open store, or credentials given as options
        credentials = _storage_credentials(answer)
        self._leased[table_id] = time.monotonic() + _lease(answer), credentials
        return credentials

    def _pages(self, path: str, **query: str) -> Iterator[Mapping[str, Any]]:
        items = self._api.pages(path, query, path, "page_token", "next_page_token")
        return (item for item in items if isinstance(item, Mapping) and "name" in item)


def _lease(answer: Mapping[str, Any]) -> float:
    """Seconds for which credentials are cached: at most `_LEASE`, and until a minute before they expire."""
    ends = answer.get("expiration_time")  # milliseconds since 1970
    left = ends / 1000 - time.time() - 60 if isinstance(ends, int | float) and ends > 0 else _LEASE
    return min(_LEASE, left)


def _is_delta(table: Mapping[str, Any]) -> bool:
    return str(table.get("data_source_format", "")).upper() == "DELTA"


def _storage_credentials(answer: Mapping[str, Any]) -> dict[str, str]:
    """Credentials from the catalog, under the names of storage libraries."""
    credentials: dict[str, Any] = {}
    if isinstance(aws := answer.get("aws_temp_credentials"), Mapping):
        credentials = {f"aws_{name}": aws.get(name) for name in ("access_key_id", "secret_access_key", "session_token")}
    elif isinstance(azure := answer.get("azure_user_delegation_sas"), Mapping):
        credentials = {"azure_storage_sas_token": azure.get("sas_token")}
    elif isinstance(gcp := answer.get("gcp_oauth_token"), Mapping):
        credentials = {"google_access_token": gcp.get("oauth_token")}
    return {name: str(value) for name, value in credentials.items() if value}
