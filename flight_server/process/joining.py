"""How a server gets its database, and its role among the servers that have it too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flight_server.core.app import alone
from flight_server.core.config import Settings
from store.duckdb.database import Database
from store.role import Role
from store.stores import shared_store


def joining(settings: Settings) -> Callable[[Path], tuple[Database, Role]]:
    """The function that opens the database: alone, as the cache of a store that servers share, or with a role in
    `store.replication`."""
    if settings.store_address is not None and (join_store := shared_store(settings.store_name)) is not None:
        address, lag_ms, gone = settings.store_address, settings.store_lag_ms, settings.lease_seconds
        return lambda path: join_store(address, path, lag_ms, gone)
    if settings.replicate_to is None and settings.follow is None:
        return alone
    from store.replication.join import Plan, join

    plan = Plan(
        settings.replicate_to or settings.follow or "",
        settings.replicate_seconds,
        settings.durability == "replicated",
        settings.writer_lease_seconds,
        settings.replica_keep,
    )
    return lambda path: join(plan, path, follow=settings.follow is not None, standby=settings.standby)
