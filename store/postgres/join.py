"""Opens a store in Postgres: for a server, with its database file as the cache; or as a `StatsStore` of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.duckdb.opening import MEMORY
from store.model.errors import InvalidArgument, first_line
from store.postgres import shared
from store.postgres.member import GONE_SECONDS, Member
from store.postgres.session import Address
from store.postgres.shared_log import SharedLog, become_cache, store_of
from store.stats_store import DuckDBStatsStore

LAG_MS: Final = 1000


def join(
    url: str, path: Path | str, lag_ms: int = LAG_MS, gone_seconds: float = GONE_SECONDS
) -> tuple[Database, Member]:
    """Opens the cache of a server, up to date.

    Args:
        url: Address of the database in Postgres.
        path: The cache, a database file; a new one is filled from the store.
        lag_ms: Within how many milliseconds a commit of another server is to be there.
        gone_seconds: Without a sign of life, after which the jobs of a server are given to others.

    Raises:
        InvalidArgument: Postgres or its database is not suited or refuses; or the file is no cache of it.
    """
    address = Address(url)
    try:
        session = address.connect()
    except psycopg.Error as error:
        raise InvalidArgument(
            f"store {address.shown}: {address.hide(first_line(error))}",
            code="STORE",
            hint="is the address right, and does Postgres run there?",
        ) from None
    try:
        store = shared.prepare(session)
        database = _opened(path, store, address.shown)
        try:
            member = Member(database, SharedLog(database, address), address, lag_ms, gone_seconds)
            member.begin(session)
        except BaseException:
            database.close()
            raise
    except psycopg.Error as error:
        raise InvalidArgument(str(address.refusal(error, "the store cannot be read").message), code="STORE") from None
    finally:
        session.close()
    return database, member


def _opened(path: Path | str, store: str, shown: str) -> Database:
    """The cache at a path.

    Raises:
        InvalidArgument: It is another database.
    """
    database = Database(path, is_cache=True)
    try:
        known = store_of(database)
        if known == store or (known is None and _is_empty(database)):
            become_cache(database, store, shown)
        else:
            of = "has statistics of its own" if known is None else f"is the cache of another store than {shown}"
            raise InvalidArgument(
                f'database "{Path(path).name}": it {of}',
                code="STORE",
                hint="name a new file with --db, it is filled from the store; export and import move statistics",
            )
    except BaseException:
        database.close()
        raise
    return database


def _is_empty(database: Database) -> bool:
    return not database.rows("SELECT 1 FROM tables UNION ALL SELECT 1 FROM connectors LIMIT 1")


class PostgresStore(DuckDBStatsStore):
    """A `StatsStore` in Postgres, with a cache in memory.

    Args:
        address: Address of the database, `postgresql://user:password@host:port/name`.
    """

    join = staticmethod(join)

    def __init__(self, address: str):
        database, self._member = join(address, MEMORY)
        super().__init__(database, Catalog(database), role=self._member)
        self._member.start()

    def close(self) -> None:
        self._member.close()
        super().close()
