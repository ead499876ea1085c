"""Lists of tables as values: which tables, in which order, and how many have what in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

STATES: Final = ("stale", "failing", "not captured")
"""States that a list may be limited to."""
ORDERS: Final = ("name", "rows", "size", "age", "files", "changed")


class Tally(NamedTuple):
    """The number of tables that have these properties in common."""

    catalog: str
    schema: str
    format: str | None
    owner: str | None
    is_unreadable: bool
    is_stale: bool
    is_captured: bool
    tables: int


@dataclass(frozen=True)
class TableFilter:
    """The tables of a list.

    Attributes:
        search: A part of the full name, in any case; empty for all.
        state: One of `STATES`; None for any, as of the others.
    """

    search: str = ""
    catalog: str | None = None
    schema: str | None = None
    state: str | None = None
    format: str | None = None
    owner: str | None = None


@dataclass(frozen=True)
class TableOrder:
    """The order of a list: by name, or by another one of `ORDERS` with unknown values last."""

    key: str = "name"
    is_descending: bool = False
