"""The columns of a table, as the conditions of scans name them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, nearest
from store.model.predicates.plain_conditions import Column


class Columns:
    """The columns of a table by name: as written, else without regard to case."""

    def __init__(self, table: TableEntry, columns: Sequence[tuple[Column, Sequence[str]]]):
        self._table, self._columns = table, columns
        self._exact: dict[str, dict[int, Column]] = {}
        self._folded: dict[str, dict[int, Column]] = {}
        for column, _ in columns:
            self._exact.setdefault(column.name, {}).setdefault(column.id, column)
            self._folded.setdefault(column.name.lower(), {}).setdefault(column.id, column)

    def find(self, name: str) -> Column:
        """The column of a name.

        Raises:
            InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN.
        """
        found = self._exact.get(name) or self._folded.get(name.strip().lower()) or {}
        if len(found) == 1:
            return next(iter(found.values()))
        shown = name.encode("utf-8", "replace").decode()[:100]
        if found:
            raise InvalidArgument(
                f'several columns of "{self._table.full_name}" are written "{shown}"',
                code="AMBIGUOUS_COLUMN",
                hint="a scan cannot use it",
                params={"column": shown},
            )
        names = [str(known) for known in self._exact]
        hint = nearest(shown.lower(), list(self._folded)) or f"there are {', '.join(names[:20])}"
        raise InvalidArgument(
            f'"{self._table.full_name}" has no column "{shown}"',
            code="UNKNOWN_COLUMN",
            hint=hint,
            params={"column": shown},
        )

    def all(self) -> list[Column]:
        """All columns, in the order of the schema."""
        return [column for column, _ in self._columns]

    def of_id(self, id: int) -> Column | None:
        """The column with an id; None if there is none."""
        return next((column for column, _ in self._columns if column.id == id), None)

    def described(self, ids: Collection[int] | None) -> list[dict[str, Any]]:
        """Id, path and logical type of columns, in the order of the schema; None for all."""
        return [
            {"id": column.id, "path": list(path), "type": None if column.type is None else str(column.type)}
            for column, path in self._columns
            if ids is None or column.id in ids
        ]

    def ids_of(self, names: Collection[str]) -> set[int]:
        """Ids of the columns with these names; other names are skipped."""
        return {id for name in names for id in self._exact.get(name, ())}
