"""The order of inspections of lakes: later findings about a table are kept, whichever are stored last."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import TypeAlias

Name: TypeAlias = tuple[str, str]  # schema and name of a table in a lake


class Findings:
    """The inspections whose findings are stored, by number. `begin` is for any thread, all else for the writer's."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._stored: dict[tuple[str, ...], int] = {}
        """(catalog,), or (catalog, schema, name) → number of the newest inspection whose findings are stored."""

    def begin(self) -> int:
        """The number of an inspection that begins now."""
        return next(self._numbers)

    def are_newest(self, catalog: str, name: Name | None, begun: int) -> bool:
        """True if no findings of a later inspection are stored: about a table; None: about all tables of the lake."""
        places: list[tuple[str, ...]] = [(catalog,)] if name is None else [(catalog,), (catalog, *name)]
        return max(self._stored.get(place, 0) for place in places) <= begun

    def note(self, catalog: str, names: Collection[Name] | None, begun: int) -> None:
        """Notes that the findings of an inspection are stored: about some tables; None: about all of the lake."""
        places: list[tuple[str, ...]] = [(catalog,)] if names is None else [(catalog, *name) for name in names]
        if names is None:
            self._stored = {place: at for place, at in self._stored.items() if place[0] != catalog or at > begun}
        for place in places:
            self._stored[place] = max(begun, self._stored.get(place, 0))

    def outdate(self, tables: Iterable[tuple[str, str, str]]) -> None:
        """Lets what other servers have stored of tables be newer than the findings of inspections that run."""
        number = self.begin()
        for table in tables:
            self._stored[table] = number
