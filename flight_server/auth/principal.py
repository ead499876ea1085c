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
        """True when every table is visible."""
        return any(pattern.strip("*") == "" for pattern in self.tables if pattern)

    def sees(self, catalog: str, schema: str, table: str) -> bool:
        """True when the table is visible, by its quoted name: a catalog `lake.sales` is not in `lake`."""
        if self.sees_all:
            return True
        return bool(matcher(self.tables).fullmatch(join_name(catalog, schema, table)))

    def sees_catalog(self, catalog: str) -> bool:
        """True when every possible table of the catalog is visible: some pattern is its name and a star, or wider."""
        start = join_name(catalog, "s", "t").removesuffix("s.t")
        stars = (pattern.rstrip("*") for pattern in self.tables if pattern.endswith("*"))
        return any(start.startswith(prefix) for prefix in stars)


ANONYMOUS: Final = Principal("anonymous", ALL_SCOPES)
