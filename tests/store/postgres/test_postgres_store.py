"""Stores in Postgres: the contract, and several of them that share one."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from store import stores
from store.catalog.catalog import Catalog
from store.model.errors import Conflict, InvalidArgument, UpstreamError
from store.model.targets import TargetKind
from store.postgres import join as postgres_store
from store.postgres import member as member_module
from store.postgres import shared_log
from store.postgres.member import Member
from store.postgres.session import Address
from store.role import Lagging
from store.stats_store import DuckDBStatsStore
from tests.flight_server.live_server import eventually
from tests.store.contract import StatsStoreContract, columns, put, rows
from tests.store.postgres.postgres_server import PASSWORD, postgres  # noqa: F401


class TestPostgresStore(StatsStoreContract):
    @pytest.fixture(autouse=True)
    def _addresses(self, postgres):  # noqa: F811
        self._postgres, self._known, self._opened = postgres, {}, []
        yield
        for store in self._opened:
            store.close()

    def open(self, path):
        if path not in self._known:
            self._known[path] = self._postgres.new()
        self._opened.append(stores.open_store("postgresql", self._known[path]))
        return self._opened[-1]


@pytest.fixture
def join(postgres, tmp_path):  # noqa: F811
    """Opens one more server's cache and store: `join(address)`, `join(address, "a.duckdb")`."""
    opened, numbers = [], itertools.count(1)

    def joined(address: str, name: str | None = None) -> Any:
        database, member = postgres_store.join(address, tmp_path / (name or f"{next(numbers)}.duckdb"))
        opened.append((database, member))
        store = DuckDBStatsStore(database, Catalog(database), role=member)
        member.start()
        return store, member

    yield joined
    for database, member in opened:
        member.close()
        database.close()


def close(store: DuckDBStatsStore, member: Member) -> None:
    member.close()
    store.close()


def test_write_of_one_is_read_at_the_other_by_its_generation(postgres, join):  # noqa: F811
    address = postgres.new()
    (one, first), (other, second) = join(address), join(address)
    for number in range(1, 6):
        put(one, "stats.columns", columns((1, number)), "upsert")
        second.check_read(None, first.generation)
        assert second.generation >= first.generation
        assert other.list(other.catalog.get("c.s.t"), 1)[0][0]["row_count"] == number


def test_generation_that_is_not_there_is_refused(postgres, join, monkeypatch):  # noqa: F811
    monkeypatch.setattr(member_module, "MOST_WAIT_SECONDS", 0.1)
    _, member = join(postgres.new())
    member._store_lag = 0.1
    with pytest.raises(Lagging, match=r"generation 99 has not come here within 0\.1 s") as refused:
        member.check_read(None, 99)
    assert refused.value.code == "LAGGING"


def test_conflict_needs_no_wait(postgres, join):  # noqa: F811
    address = postgres.new()
    (one, _), (other, _) = join(address), join(address)
    for number in range(5):
        name = ("c", "s", f"t{number}")
        put(one, "stats.columns", columns((1, 1), name=name))
        with pytest.raises(Conflict):
            put(other, "stats.columns", columns((1, 2), name=name))


def test_writes_at_once_are_all_stored(postgres, join):  # noqa: F811
    address = postgres.new()
    stores = [join(address)[0] for _ in range(2)]

    def write(at: int) -> None:
        for number in range(5):
            put(stores[at % 2], "stats.columns", columns((1, number), name=("c", "s", f"t{at}"), snapshot=number))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    again, _ = join(address)
    assert {t.table_name: again.captured_snapshots(t) for t in again.tables()} == {
        f"t{at}": set(range(5)) for at in range(4)
    }


def test_write_while_postgres_is_away_is_refused_and_stored_later(postgres, join):  # noqa: F811
    store, member = join(postgres.new())
    put(store, "stats.columns", columns((1, 10)))
    with postgres.away():
        with pytest.raises(UpstreamError, match="Postgres at postgresql://flight@") as refused:
            put(store, "stats.columns", columns((2, 20)))
        assert refused.value.code == "STORE" and PASSWORD not in str(refused.value)
        assert store.count(store.catalog.get("c.s.t"), 1) == 1
        assert member.trouble()
    eventually(lambda: not member.trouble())
    put(store, "stats.columns", columns((2, 20)))
    assert store.count(store.catalog.get("c.s.t"), 1) == 2


def test_new_cache_begins_with_the_base(postgres, join, monkeypatch):  # noqa: F811
    monkeypatch.setattr(shared_log, "_BASE_ROWS", 7)
    address = postgres.new()
    store, member = join(address, "old.duckdb")
    for number in range(3):
        put(store, "stats.columns", columns(*((i, number) for i in range(1, 31))), "upsert")
    close(store, member)
    one, first = join(address)
    session = Address(address).connect()
    for _ in range(2):  # the commits before the first base are removed with the second
        first._log.store_base(session)
        put(one, "stats.files", rows("stats.files", {"file_path": "a", "row_count": 1}), "upsert")
        put(one, "stats.columns", columns((1, 99)), "upsert")
    session.close()
    assert postgres.run("SELECT min(generation) FROM statflight.commits", address)[0][0] > 3
    for each in (join(address)[0], join(address, "old.duckdb")[0]):
        table = each.catalog.get("c.s.t")
        assert [row["row_count"] for row in each.list(table, 1, TargetKind.COLUMN)[0]] == [99, *[2] * 29]
        assert each.count(table, 1, TargetKind.FILE) == 1


def test_base_that_is_replaced_while_it_is_read_is_read_whole(postgres, join, monkeypatch):  # noqa: F811
    monkeypatch.setattr(shared_log, "_BASE_ROWS", 7)
    address = postgres.new()
    store, member = join(address)
    put(store, "stats.columns", columns(*((i, i) for i in range(1, 31))))
    session = Address(address).connect()
    member._log.store_base(session)
    read, replaced = shared_log.decode, []

    def replacing(data: bytes) -> Any:
        if not replaced:  # the first part of the base
            replaced.append(member.generation)
            put(store, "stats.columns", columns((1, 99)), "upsert")
            member._log.store_base(session)
        return read(data)

    postgres.run("DELETE FROM statflight.commits", address)  # a new cache begins with the base
    monkeypatch.setattr(shared_log, "decode", replacing)
    late, _ = join(address)
    session.close()
    assert replaced
    table = late.catalog.get("c.s.t")
    assert [row["row_count"] for row in late.list(table, 1, TargetKind.COLUMN)[0]] == [99, *range(2, 31)]


def test_cache_that_is_ahead_of_its_store_is_filled_anew(postgres, join):  # noqa: F811
    address = postgres.new()
    store, member = join(address, "cache.duckdb")
    put(store, "stats.columns", columns((1, 10)))
    put(store, "stats.columns", columns((2, 20)))
    close(store, member)
    postgres.run("UPDATE statflight.head SET generation = 1", address)  # as if it was restored
    postgres.run("DELETE FROM statflight.commits WHERE generation > 1", address)
    again, _ = join(address, "cache.duckdb")
    assert again.count(again.catalog.get("c.s.t"), 1) == 1


def test_database_with_statistics_and_cache_of_another_store_are_refused(postgres, join, tmp_path):  # noqa: F811
    alone = DuckDBStatsStore.open(tmp_path / "alone.duckdb")
    put(alone, "stats.columns", columns((1, 10)))
    alone.close()
    with pytest.raises(InvalidArgument, match=r'"alone\.duckdb": it has statistics of its own'):
        join(postgres.new(), "alone.duckdb")
    close(*join(postgres.new(), "cache.duckdb"))
    with pytest.raises(
        InvalidArgument, match=r'"cache\.duckdb": it is the cache of another store than postgresql://fl'
    ):
        join(postgres.new(), "cache.duckdb")


def test_cache_that_is_opened_alone_names_its_store(postgres, join, tmp_path):  # noqa: F811
    address = postgres.new()
    for _ in range(2):
        close(*join(address, "cache.duckdb"))
    with pytest.raises(InvalidArgument, match="is the cache of the store postgresql://flight@127") as refused:
        DuckDBStatsStore.open(tmp_path / "cache.duckdb")
    assert PASSWORD not in refused.value.hint and "pa55" not in refused.value.hint


def test_database_of_others_is_refused_and_stays(postgres):  # noqa: F811
    address = postgres.new()
    postgres.run("CREATE TABLE settings (name text)", address)
    with pytest.raises(InvalidArgument, match=r"it has tables of others: public\.settings"):
        postgres_store.join(address, ":memory:")
    assert postgres.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'statflight'", address) == [(0,)]


def test_store_of_another_layout_is_refused(postgres):  # noqa: F811
    address = postgres.new()
    stores.open_store("postgresql", address).close()
    postgres.run("UPDATE statflight.head SET layout = 999", address)
    with pytest.raises(InvalidArgument, match="it has format 1 and layout 999"):
        postgres_store.join(address, ":memory:")


def test_wrong_password_is_told_without_any(postgres):  # noqa: F811
    address = postgres.new().replace("pa55%2Fw%25rd", "other%2Fword")
    with pytest.raises(InvalidArgument, match="password authentication failed") as refused:
        postgres_store.join(address, ":memory:")
    assert "other" not in str(refused.value)


def test_silent_postgres_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/d?connect_timeout=2")
        with pytest.raises(psycopg.OperationalError):
            address.connect()


def test_notifications_of_a_known_session_do_not_end_a_wait(postgres):  # noqa: F811
    address = Address(postgres.new())
    listening, own, other = (address.connect() for _ in range(3))
    listening.execute("LISTEN statflight")
    asked: list[int] = []

    def known() -> int:
        asked.append(own.process)
        return own.process

    own.execute("NOTIFY statflight")
    other.execute("NOTIFY statflight")
    listening.wait(60.0, but_of=known)
    assert len(asked) == 2, "the first one does not end it"
    for session in (listening, own, other):
        session.close()


def test_jobs_of_a_server_that_ended_are_given_back(postgres, join, monkeypatch):  # noqa: F811
    monkeypatch.setattr(member_module, "_UNKNOWN_SECONDS", 0.0)
    address = postgres.new()
    (one, first), (_, second) = join(address), join(address)
    put(one, "stats.columns", columns((1, 10)))
    held = {first.holder, second.holder}
    eventually(lambda: first.keeps_house or second.keeps_house)
    eventually(lambda: set(first._beats) == held == set(second._beats))
    keeper = first if first.keeps_house else second
    assert keeper.gone(held) == set()
    keeper._gone_seconds = -1.0
    assert keeper.gone(held) == held
    ended, left = (second, first) if keeper is first else (first, second)
    ended.close()
    left._gone_seconds = 60.0
    eventually(lambda: left.gone({ended.holder}) == {ended.holder})


def test_secrets_of_connectors_are_in_the_store(postgres, join):  # noqa: F811
    address = postgres.new()
    (one, first), (_, second) = join(address), join(address)
    one.database.write(lambda _: first.write_secrets("lake", '{"key": "s3cret"}'))
    assert second.read_secrets("lake") == '{"key": "s3cret"}'
    one.database.write(lambda _: first.write_secrets("lake", None))
    assert second.read_secrets("lake") is None
