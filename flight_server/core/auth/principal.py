"""The caller of a request: its scopes and visible tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from store.model.names import join_name, matcher


class Permission(StrEnum):
    """Permissions of a token."""

    READ = "stats.read"
    WRITE = "stats.write"
    CAPTURE = "capture.run"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(map(str, Permission))
EVERYTHING: Final = ("*",)
_ANY: Final = "\0"  # stands for any name: no pattern has it, so only a `*` matches it


@dataclass(frozen=True)
class Principal:
    """A caller: its scopes and visible tables.

    Attributes:
        tables: Patterns of full table names, quoted as usual (`lake.sales.orders`, `lake.sales."a.b"`); `*` matches any
            characters, dots included.
        is_own: True for the worker that the server itself has started.
    """

    name: str
    scopes: frozenset[str]
    tables: tuple[str, ...] = EVERYTHING
    is_own: bool = False

    def may(self, scope: str) -> bool:
        """True when the caller has a scope."""
        return scope in self.scopes

    @cached_property
    def sees_all(self) -> bool:
        """True when every possible table is visible."""
        return self._matches(_ANY, _ANY, _ANY)

    def sees(self, catalog: str, schema: str, table: str) -> bool:
        """True when the table is visible, by its quoted name: a catalog `lake.sales` is not in `lake`."""
        return self.sees_all or self._matches(catalog, schema, table)

    def sees_catalog(self, catalog: str) -> bool:
        """True when every possible table of the catalog is visible."""
        return self._matches(catalog, _ANY, _ANY)

    def _matches(self, catalog: str, schema: str, table: str) -> bool:
        return bool(matcher(self.tables).fullmatch(join_name(catalog, schema, table)))


ANONYMOUS: Final = Principal("anonymous", ALL_SCOPES)
