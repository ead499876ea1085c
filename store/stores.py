"""The interface of stores of statistics, and stores by name: the built-in ones, or an entry point of
`statflight.stores`.

An entry point names a function of a path or address that opens a store there, and creates one if there is none. A store
that several servers share has a function `join` besides (`Join`): a server's database is its cache then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from store.model.catalog_entries import TableEntry
from store.model.puts import Counts, Put
from store.model.targets import Target, TargetKind
from store.plugins import Plugins

DUCKDB: Final = "duckdb"
STORES: Final = Plugins(
    group="statflight.stores",
    field="store",
    noun="store",
    built_in={
        DUCKDB: "store.stats_store:DuckDBStatsStore.open",
        "postgresql": "store.postgres.join:PostgresStore",
        "postgres": "store.postgres.join:PostgresStore",
    },
    extras={"postgresql": "postgres", "postgres": "postgres"},
    code="STORE",
)

Records = list[dict[str, Any]]
Page = tuple[Records, str, int]
Tables = list[TableEntry]  # `list` is a method of a store


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of a record. Times are UTC."""

    content_hash: str
    generation: int
    created_at: datetime | None
    refreshed_at: datetime | None


class StatsStore(Protocol):
    """A store of statistics. Puts are atomic."""

    def find(self, name: tuple[str, str, str]) -> TableEntry | None:
        """The table of (catalog, schema, name), None if nothing was put for it and nothing discovered."""

    def tables(self) -> Tables:
        """All tables."""

    def put(self, puts: Sequence[Put], *, idempotency_key: str | None = None) -> Counts:
        """Stores rows.

        Args:
            puts: Puts to apply in order; each sees the rows of the previous ones.
            idempotency_key: Key of this call, remembered for a day: another call with the same key and content stores
                nothing.

        Returns:
            Counts over all puts; for a repeated call, those of the first.

        Raises:
            Conflict: In mode `create` another record is stored for a target; or the key was used for other content.
            InvalidArgument: Two different rows for one target.
            NotFound: A table is not registered, and the store requires it.
        """

    def get(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        """The record of a target stored at exactly this snapshot, by column name; None if there is none."""

    def list(
        self,
        table: TableEntry,
        snapshot_id: int,
        kind: TargetKind | None = None,
        *,
        page_token: str = "",
        page_size: int = 1000,
    ) -> Page:
        """Records in storage-id order, the token of the next page (empty at the end), and the total count.

        Args:
            kind: Only records about targets of this kind; None for all.
            page_token: Token that the previous page returned; empty for the first page.
            page_size: Most records of a page.

        Raises:
            NotFound: The table has no such snapshot.
        """

    def count(self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None) -> int:
        """The number of records that `list` returns over all pages.

        Raises:
            NotFound: The table has no such snapshot.
        """

    def delete(self, table: TableEntry, snapshot_id: int | None = None, target: Target | None = None) -> int:
        """Deletes records and their sketches; returns the number of records.

        Args:
            snapshot_id: Only records of this snapshot; None for all.
            target: Only records about this target; None for all.
        """

    def meta(self, table: TableEntry, snapshot_id: int, target: Target) -> Meta:
        """Metadata of the record of a target at a snapshot.

        Raises:
            NotFound: The snapshot does not exist, or nothing is stored for the target.
        """

    def rows(self, table: TableEntry, snapshot_id: int, flight: str) -> pa.Table:
        """The records of a flight, or the sketches of files (`file_sketches`), stored at exactly this snapshot, in no
        order, with the columns of a put."""

    def captured_snapshots(self, table: TableEntry) -> set[int]:
        """Ids of the snapshots of a table that have records."""

    def close(self) -> None:
        """Ends writes that were begun, and releases the store. What was put stays."""


def open_store(name: str, path: str) -> StatsStore:
    """Opens a store.

    Args:
        name: `duckdb`, or the name of an entry point.
        path: The store's file, directory or address.

    Raises:
        InvalidArgument: There is no store of this name, or it cannot be loaded.
    """
    opener: Callable[[str], StatsStore] = STORES.load(name)
    return opener(path)


class Join(Protocol):
    """Opens the database of a server as the cache of a store that it shares with others."""

    def __call__(self, address: str, path: Path, lag_ms: int, gone_seconds: float) -> tuple[Any, Any]:
        """Joins the servers of a store.

        Args:
            path: The database file.
            lag_ms: Within how many milliseconds a commit of another server is to be in it.
            gone_seconds: Without a sign of life, after which the jobs of a server are given to others.

        Returns:
            The `Database`, up to date, and the `Role` of the server.

        Raises:
            InvalidArgument: The store cannot be used, or the file is not a cache of it.
        """


def shared_store(name: str) -> Join | None:
    """The function by which servers share a store; None for a store that one server has for itself.

    Raises:
        InvalidArgument: There is no store of this name, or it cannot be loaded.
    """
    join: Join | None = getattr(STORES.load(name), "join", None)
    return join
