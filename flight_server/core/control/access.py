"""Access rules for tables and lakes: who may do what with which of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from flight_server.core.auth.principal import Principal
from store.catalog.catalog import Catalog
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, NotFound, PermissionDenied, nearest
from store.model.names import name_parts, readings

MOST_NAMED: Final = 5  # tables that the message about an ambiguous name lists


class Access:
    """Checks callers. Order of refusals: malformed, then NOT_FOUND, then PERMISSION_DENIED.

    The patterns of a token decide before the look-up: a name that they hide is PERMISSION_DENIED, in the same words
    whether there is such a table or not.
    """

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
            NotFound: The caller would see the table, but it does not exist; suggests one that the caller sees.
            PermissionDenied: The caller does not have the scope, or the name is hidden from it.
        """
        if principal.sees_all:
            entry = self._catalog.get(name)
        elif any(principal.sees(*each) for each in readings(name)):
            entry = self._catalog.get(name, principal.sees)
        else:
            self.require(principal, scope)
            raise PermissionDenied(f'"{name}" is not among the tables you may use')
        self.require(principal, scope)
        return entry

    def full_name(self, name: str, principal: Principal) -> str:
        """The full name of the one table that the caller sees and whose name ends so; a full name is returned as it is.

        Raises:
            NotFound: No table ends so; suggests the nearest name.
            InvalidArgument: Several do; the hint names them.
        """
        parts = tuple(name_parts(name))
        if len(parts) > 2:
            return name
        seen = [table for table in self._catalog.tables() if principal.sees(*table.name)]
        found = [table.full_name for table in seen if table.name[-len(parts) :] == parts]
        if not found:
            ends = [".".join(table.name[-len(parts) :]) for table in seen]
            raise NotFound(f'no table "{name}"', code="UNKNOWN_TABLE", hint=nearest(name, ends), params={"table": name})
        if len(found) > 1:
            raise InvalidArgument(
                f'"{name}" may be {" or ".join(sorted(found)[:MOST_NAMED])}',
                code="AMBIGUOUS_TABLE",
                hint="name one in full",
                params={"table": name},
            )
        return found[0]

    def tables_by_id(self, ids: Collection[str], principal: Principal, scope: str) -> dict[str, TableEntry]:
        """Finds tables by their ids, among those that the caller sees, and checks that it has the scope.

        Raises:
            NotFound: No table has the id.
            InvalidArgument: Several tables have the id; the hint names them.
            PermissionDenied: The caller does not have the scope.
        """
        found: dict[str, TableEntry] = {}
        for table in self._catalog.tables():
            if table.table_id not in ids or not principal.sees(*table.name):
                continue
            if (other := found.get(table.table_id)) is not None:
                raise InvalidArgument(
                    f'several tables have the id "{table.table_id}"',
                    code="AMBIGUOUS_TABLE",
                    hint=f"name one: {other.full_name} or {table.full_name}",
                    params={"table_id": table.table_id},
                )
            found[table.table_id] = table
        for table_id in ids:
            if table_id not in found:
                hint = "the flight sys.tables has the ids"
                raise NotFound(f'no table has the id "{table_id}"', code="UNKNOWN_TABLE", hint=hint)
        self.require(principal, scope)
        return found

    def connector(self, catalog: str, principal: Principal) -> dict[str, Any]:
        """Finds a connector, secrets masked, and checks that the caller is an admin of its whole catalog.

        Raises:
            NotFound: The connector does not exist; a caller limited to some tables gets no hint.
            PermissionDenied: The caller is not an admin of the whole catalog.
        """
        if not principal.sees_catalog(catalog):
            self.require_catalog(principal, catalog)
        try:
            connector = self._catalog.connectors.get(catalog)
        except NotFound as missing:
            if not principal.sees_all:  # the hint may name a catalog that this caller does not see
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
