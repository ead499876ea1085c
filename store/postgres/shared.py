"""The tables in Postgres: the newest generation, the log of commits, a base to begin from, servers, and secrets.

`head` is one row, which a writer locks from the begin of its transaction to the commit: so writes of all servers follow
each other, each sees all before it, and none is refused because of another. A commit is stored with the generation
after the newest. A base is all content at a generation; commits that two bases have are removed. Generations have no
gap. No clock is compared with another: servers count beats, and who reads them measures how long one stays the same.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import psycopg

from store.duckdb.layout import VERSION
from store.model.errors import InvalidArgument, first_line
from store.postgres.session import LOCK_SECONDS, Session

OLDEST_POSTGRES: Final = 120_000  # as `server_version_num`
FORMAT: Final = 1  # of these tables
_CHANNEL: Final = "statflight"
_HOUSE_LOCK: Final = 0x5747_F117  # advisory locks are of one database
_BULK_SECONDS: Final = 60.0  # of a call that reads or writes much
_CHUNK_BYTES: Final = 16 << 20  # of a value; Postgres takes up to 1 GB
_FEW: Final = 16  # commits of one query
_TABLES: Final = """
CREATE SCHEMA statflight;
CREATE TABLE statflight.head (is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), store text NOT NULL,
    format int NOT NULL, layout int NOT NULL, generation bigint NOT NULL, base bigint NOT NULL);
CREATE TABLE statflight.commits (generation bigint, part int, data bytea NOT NULL, PRIMARY KEY (generation, part));
CREATE TABLE statflight.base (generation bigint, part int, data bytea NOT NULL, PRIMARY KEY (generation, part));
CREATE TABLE statflight.servers (server text PRIMARY KEY, address text NOT NULL, beat bigint NOT NULL);
CREATE TABLE statflight.secrets (catalog text PRIMARY KEY, options text NOT NULL);
ALTER TABLE statflight.commits ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE statflight.base ALTER COLUMN data SET STORAGE EXTERNAL;
"""  # compressed already
_FOREIGN: Final = (
    "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema',"
    " 'statflight') AND n.nspname NOT LIKE 'pg\\_toast%' AND n.nspname NOT LIKE 'pg\\_temp%'"
    " AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 1 LIMIT 3"
)


def prepare(session: Session) -> str:
    """Checks the database, and creates the tables if it is empty.

    Returns:
        The id of the store.

    Raises:
        InvalidArgument: The database is not suited, or the user lacks rights; names both.
    """
    where = session.address.shown
    ((product, version),) = session.execute("SELECT version(), current_setting('server_version_num')::int")
    if not product.startswith("PostgreSQL ") or version < OLDEST_POSTGRES:
        raise _unsuited(where, f"it is {first_line(ValueError(product), 60)}", "PostgreSQL 12 or later is needed")
    try:
        ((has_schema,),) = session.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'statflight'")
        if not has_schema:
            _create(session)
        ((store, format, layout),) = session.execute("SELECT store, format, layout FROM statflight.head")
    except psycopg.errors.InsufficientPrivilege as error:
        hint = "its user must own the database, or be allowed to create a schema in it"
        raise _unsuited(where, first_line(error), hint) from None
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, ValueError):
        raise _unsuited(where, "its schema statflight is not of statflight", "name another database") from None
    if (format, layout) != (FORMAT, VERSION):
        raise _unsuited(
            where,
            f"it has format {format} and layout {layout}, this statflight reads {FORMAT} and {VERSION}",
            "run the version that made it; statflight export and import bring it to another",
        )
    return str(store)


def _create(session: Session) -> None:
    if foreign := [name for (name,) in session.execute(_FOREIGN)]:
        hint = "name an empty database, createdb makes one"
        raise _unsuited(session.address.shown, f"it has tables of others: {', '.join(foreign)}", hint)
    head = f"INSERT INTO statflight.head VALUES (true, '{uuid.uuid4().hex}', {FORMAT}, {VERSION}, 0, 0)"
    try:
        session.execute(f"BEGIN; {_TABLES} {head}; COMMIT")
    except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):  # another server was faster
        session.execute("ROLLBACK")
    except psycopg.Error:
        with contextlib.suppress(psycopg.Error):
            session.execute("ROLLBACK")
        raise


def _unsuited(where: str, reason: str, hint: str) -> InvalidArgument:
    return InvalidArgument(f"store {where}: {reason}", code="STORE", hint=hint)


# Generations.


def generation(session: Session) -> int:
    """The newest generation."""
    ((newest,),) = session.execute("SELECT generation FROM statflight.head")
    return int(newest)


def lock(session: Session) -> int:
    """Begins a transaction before which all others have ended; returns the newest generation."""
    sql = "BEGIN; SELECT generation FROM statflight.head FOR UPDATE"
    ((newest,),) = session.execute(sql, seconds=LOCK_SECONDS + 2)
    return int(newest)


def unlock(session: Session) -> None:
    """Ends a transaction that changes nothing."""
    session.execute("ROLLBACK")


def commit(session: Session, newest: int, data: bytes) -> None:
    """Stores a commit in the transaction that `lock` has begun, and ends it.

    Args:
        newest: Its generation.
    """
    rows = [(newest, part, piece) for part, piece in enumerate(_pieces(data))]
    moved = f"UPDATE statflight.head SET generation = {newest}"
    session.append("INSERT INTO statflight.commits VALUES (%s, %s, %s)", rows, moved, f"NOTIFY {_CHANNEL}", "COMMIT")


def commits(session: Session, after: int, up_to: int) -> list[tuple[int, bytes]]:
    """The commits after a generation, in order, without a gap: as many as memory allows, at least one.

    Args:
        up_to: The newest one.

    Returns:
        Generation and bytes of each; none if there are none, or the next one is not kept any more.
    """
    found: list[tuple[int, bytes]] = []
    newest, size = after, 0
    while newest < up_to and size < _CHUNK_BYTES:
        rows = session.execute(
            "SELECT generation, data FROM statflight.commits WHERE generation > %s AND generation <= %s"
            " ORDER BY generation, part",
            newest,
            min(up_to, newest + _FEW),
            seconds=_BULK_SECONDS,
        )
        parts: dict[int, list[bytes]] = {}
        for number, data in rows:
            parts.setdefault(number, []).append(data)
        if not parts or next(iter(parts)) != newest + 1:
            break
        found += [(number, b"".join(pieces)) for number, pieces in parts.items()]
        newest = found[-1][0]
        size += sum(len(data) for _, data in rows)
    return found


def listen(session: Session) -> None:
    """Has the session be notified of commits."""
    session.execute(f"LISTEN {_CHANNEL}")


# The base.


class BaseReplaced(Exception):
    """Another base has taken the place of the one that is read, whose parts are gone."""


def base(session: Session) -> tuple[int, Iterator[bytes]]:
    """The generation of the newest base and its parts; 0 and none for an empty one.

    Raises:
        BaseReplaced: From the iterator, at its end: parts may be missing.
    """
    ((newest,),) = session.execute("SELECT base FROM statflight.head")

    def parts() -> Iterator[bytes]:
        part = -1
        while rows := session.execute(
            "SELECT part, data FROM statflight.base WHERE generation = %s AND part > %s ORDER BY part LIMIT 1",
            newest,
            part,
            seconds=_BULK_SECONDS,
        ):
            ((part, data),) = rows
            yield data
        if session.execute("SELECT base FROM statflight.head") != [(newest,)]:
            raise BaseReplaced

    return int(newest), parts()


def grown_bytes(session: Session) -> tuple[int, int]:
    """Bytes of the commits that follow the base, and of the base."""
    ((commits, base),) = session.execute(
        "SELECT (SELECT coalesce(sum(length(data)), 0) FROM statflight.commits c, statflight.head h"
        " WHERE c.generation > h.base), (SELECT coalesce(sum(length(data)), 0) FROM statflight.base b,"
        " statflight.head h WHERE b.generation = h.base)"
    )
    return int(commits), int(base)


def store_base(session: Session, newest: int, parts: Iterable[bytes]) -> None:
    """Stores a base, and removes the one before and the commits before that.

    Args:
        newest: Its generation.
    """
    sql = "INSERT INTO statflight.base VALUES (%s, %s, %s)"
    session.execute("BEGIN")
    try:
        for part, data in enumerate(parts):
            session.append(sql, [(newest, part, data)], seconds=_BULK_SECONDS)
        session.execute(
            f"DELETE FROM statflight.base WHERE generation <> {newest};"
            " DELETE FROM statflight.commits WHERE generation <= (SELECT base FROM statflight.head);"
            f" UPDATE statflight.head SET base = {newest}; COMMIT",
            seconds=_BULK_SECONDS,
        )
    except BaseException:
        with contextlib.suppress(psycopg.Error):
            session.execute("ROLLBACK")
        raise


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


# Servers.


def beat(session: Session, server: str, address: str) -> dict[str, int]:
    """Counts one beat of a server; returns those of all."""
    session.execute(
        "INSERT INTO statflight.servers AS s VALUES (%s, %s, 1) ON CONFLICT (server)"
        " DO UPDATE SET beat = s.beat + 1, address = excluded.address",
        server,
        address,
    )
    return dict(session.execute("SELECT server, beat FROM statflight.servers"))


def forget(session: Session, servers: Iterable[str]) -> None:
    """Removes servers that have ended."""
    for server in servers:
        session.execute("DELETE FROM statflight.servers WHERE server = %s", server)


def keep_house(session: Session) -> bool:
    """True if this session has the lock of the one that keeps house, which ends with the session."""
    ((is_mine,),) = session.execute(f"SELECT pg_try_advisory_lock({_HOUSE_LOCK})")
    return bool(is_mine)


# Secrets of connectors, in the transaction of a write if it has begun one.


def secrets(session: Session, catalog: str) -> str | None:
    """The secrets of a connector, as JSON; None if it has none."""
    rows = session.execute("SELECT options FROM statflight.secrets WHERE catalog = %s", catalog)
    return rows[0][0] if rows else None


def set_secrets(session: Session, changed: Mapping[str, str | None]) -> None:
    """Stores secrets by connector; None removes them."""
    for catalog, options in changed.items():
        session.execute("DELETE FROM statflight.secrets WHERE catalog = %s", catalog)
        if options is not None:
            session.execute("INSERT INTO statflight.secrets VALUES (%s, %s)", catalog, options)
