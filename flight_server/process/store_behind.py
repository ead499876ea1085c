"""The part of a server that keeps another store in step with its database."""

from __future__ import annotations

from capture.connectors.secrets import mask_uri
from flight_server.core.config import Settings
from flight_server.core.part import Part
from store.duckdb.database import Database
from store.role import Role
from store.stats_store import DuckDBStatsStore
from store.stores import DUCKDB, open_store
from store.write_through import WriteThrough, forget_store


class StoreBehind(Part):
    """The store that the setting `store` names, if it is not the database itself."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        is_own = settings.store == DUCKDB
        self._behind = None if is_own else open_store(settings.store, settings.store_uri or "")

    def attach(self, *, database: Database, store: DuckDBStatsStore, role: Role) -> None:
        """Brings the store and the database in step."""
        settings = self.settings
        if self._behind is not None:
            WriteThrough(store, self._behind, f"{settings.store} {mask_uri(settings.store_uri or '')}")
        elif role.takes_writes:
            forget_store(database)

    def close(self) -> None:
        if self._behind is not None:
            self._behind.close()
