"""Matches tables found in a lake with stored ones: the same, renamed, dropped under this name before, or new."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from store.catalog.catalog import Catalog
from store.catalog.found_tables import Found
from store.duckdb.layout import Connection
from store.model.catalog_entries import EXTERNAL, TableEntry


class Recognition:
    """Recognizes tables by name and id, inside the writer's transaction."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

    def keys(
        self,
        connection: Connection,
        catalog: str,
        format: str,
        found: Sequence[Found],
        present: Collection[tuple[str, str]],
    ) -> tuple[list[int], set[int]]:
        """Registers tables that are new, and drops those that others replace.

        Args:
            found: The tables, of different names.
            present: (schema, name) of all tables of the lake; empty if not all were listed.

        Returns:
            The keys of the tables, in order, and the keys of the new ones.
        """
        known = self._catalog.entries.uncommitted
        keys: dict[tuple[str, str, str], int] = {}
        others: dict[tuple[str, str, str], str | None] = {}  # name → id of tables that no table of the name is
        replaced, adopted = [], {}
        for item in found:
            name, table_id = (catalog, item["schema"], item["name"]), item["table_id"]
            entry = known.by_name.get(name)
            if entry is not None and table_id and entry.table_id not in (table_id, None):
                if entry.format == EXTERNAL:
                    adopted[entry.table_key] = {"table_id": table_id}
                else:  # another table of the same name: the old one was dropped
                    replaced.append(entry.table_key)
                    entry = None
            if entry is None:
                others[name] = table_id
            else:
                keys[name] = entry.table_key
        self._catalog.change(connection, adopted)
        self._catalog.change(connection, {key: {"dropped": True} for key in replaced})
        new_keys = set[int]()
        if others:
            keys |= self._known_elsewhere(others, present)
            new = {name: table_id for name, table_id in others.items() if name not in keys}
            registered = self._catalog.register_all(connection, new, format)
            keys |= {name: entry.table_key for name, entry in registered.items()}
            new_keys = {entry.table_key for entry in registered.values()}
        return [keys[catalog, item["schema"], item["name"]] for item in found], new_keys

    def _known_elsewhere(
        self, names: Mapping[tuple[str, str, str], str | None], present: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str, str], int]:
        """The keys of tables that were renamed, or dropped under the same name. The arguments are those of `keys`."""
        by_id: dict[tuple[str, str | None], list[TableEntry]] = {}
        dropped: dict[tuple[str, str, str], list[TableEntry]] = {}
        for entry in self._catalog.entries.uncommitted.by_key.values():
            if entry.format != EXTERNAL:  # ids that were put prove nothing
                by_id.setdefault((entry.table_catalog, entry.table_id), []).append(entry)
            if entry.dropped:
                dropped.setdefault(entry.name, []).append(entry)
        keys: dict[tuple[str, str, str], int] = {}
        taken: set[int] = set()
        for name, table_id in names.items():
            candidates = [e for e in dropped.get(name, ()) if table_id in (None, e.table_id)]
            if table_id and present:
                gone = (e for e in by_id.get((name[0], table_id), ()) if e.name[1:] not in present)
                candidates = [*gone, *candidates]
            if (key := next((e.table_key for e in candidates if e.table_key not in taken), None)) is not None:
                keys[name] = key
                taken.add(key)
        return keys
