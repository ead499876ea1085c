"""Access rules for tables and lakes: who may do what with which of them."""

from __future__ import annotations

from typing import Any

from flight_server.auth.principal import Principal
from store.catalog_store import Catalog, TableEntry
from store.errors import NotFound, PermissionDenied


class Access:
    """Checks callers. Order of refusals: malformed, then NOT_FOUND, then PERMISSION_DENIED."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

    def require(self, principal: Principal, scope: str) -> None:
        """Checks that the caller has a scope.

        Raises:
            PermissionDenied: The caller does not have it.
        """
        if not principal.may(scope):
            yours = ", ".join(sorted(principal.scopes)) or "none"
            raise PermissionDenied(f"this needs the scope {scope}", hint=f"yours: {yours}")

    def table(self, name: str, principal: Principal, scope: str) -> TableEntry:
        """Finds a table by its full name, and checks that the caller has the scope for it.

        Raises:
            NotFound: The table does not exist; a caller limited to some tables gets no hint.
            PermissionDenied: The caller does not have the scope or does not see the table.
        """
        try:
            entry = self._catalog.get(name)
        except NotFound as missing:
            if not principal.sees_all:  # the hint may name a table that this caller does not see
                missing.hint = ""
            raise
        self.require(principal, scope)
        if not principal.sees(*entry.name):
            raise PermissionDenied(f'"{name}" is not among the tables you may use')
        return entry

    def connector(self, catalog: str, principal: Principal) -> dict[str, Any]:
        """Finds a connector, secrets masked, and checks that the caller is an admin of its whole catalog.

        Raises:
            NotFound: The connector does not exist.
            PermissionDenied: The caller is not an admin of the whole catalog.
        """
        try:
            connector = self._catalog.connector(catalog)
        except NotFound as missing:
            if not principal.sees_all:
                missing.hint = ""
            raise
        self.require_catalog(principal, catalog)
        return connector

    def require_catalog(self, principal: Principal, catalog: str) -> None:
        """Checks that the caller is an admin who sees every table of a catalog.

        Raises:
            PermissionDenied: The caller is not.
        """
        self.require(principal, "admin")
        if not principal.sees_catalog(catalog):
            raise PermissionDenied(f'this needs all tables of "{catalog}"', hint="yours are limited")

    def require_worker(self, principal: Principal) -> None:
        """Checks that the caller may work: workers receive the options of every lake and put statistics of any table.

        Raises:
            PermissionDenied: The caller does not have `capture.run`, or is limited to some tables.
        """
        self.require(principal, "capture.run")
        if not principal.sees_all:
            raise PermissionDenied("capture workers need a token for all tables", hint="its tables are limited")
