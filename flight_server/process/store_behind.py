"""The part of a server that keeps a store, which no other server shares, in step with its database."""

from __future__ import annotations

from capture.connectors.storage.secrets import mask_uri
from flight_server.core.config import Settings
from flight_server.core.part import Part
from store.duckdb.commit import Behind
from store.duckdb.database import Database
from store.role import Role
from store.stats_store import DuckDBStatsStore
from store.stores import DUCKDB, open_store, shared_store
from store.write_through import WriteThrough, forget_store


class StoreBehind(Part):
    """The store that the setting `store` names, if it is not the database itself."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        name, address = settings.store_name, settings.store_address or ""
        self._is_alone = name == DUCKDB
        is_behind = not self._is_alone and shared_store(name) is None
        self._store = open_store(name, address) if is_behind else None
        self._behind = None if self._store is None else WriteThrough(self._store, f"{name} {mask_uri(address)}")

    def behind(self) -> Behind | None:
        return self._behind

    def attach(self, *, database: Database, store: DuckDBStatsStore, role: Role) -> None:
        """Brings the store and the database in step."""
        if self._behind is not None:
            self._behind.join(store)
        elif self._is_alone and role.takes_writes:
            forget_store(database)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
