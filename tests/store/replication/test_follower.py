"""Followers: what they serve, what they refuse, and how one of them becomes the writer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
from pathlib import Path

import duckdb
import pytest

from store.duckdb.backup import wal
from store.duckdb.commit import Commit
from store.duckdb.database import Database
from store.duckdb.layout import OLDEST, VERSION
from store.model.errors import InvalidArgument
from store.replication import follower as follower_module
from store.replication import lease as leases
from store.replication.followed_database import note_of
from store.replication.follower import Follower
from store.replication.join import Plan, join
from store.role import Lagging, NotThere, ReadOnly
from tests.store.replication.writing import log_at, note, notes, restored, writing


@pytest.fixture
def place(tmp_path):
    return tmp_path / "replica"


@contextlib.contextmanager
def following(path, place, standby=False):
    """A follower that looks only when it is told to, after its first look."""
    database, follower = join(Plan(str(place), interval=3600), path, follow=not standby, standby=standby)
    database.phases = Commit(guard=follower, ship=follower)
    try:
        yield database, follower
    finally:
        (follower.successor or follower).close()
        database.close()


def test_a_follower_serves_what_was_shipped(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place) as (copy, follower):
            assert notes(copy) == {"a"}
            before = copy.read()  # a read in flight
            note(database, "b")
            follower.look()
            assert notes(copy) == {"a", "b"}
            assert before.execute("SELECT count(*) FROM settings WHERE name = 'note'").fetchall() == [(1,)]
            assert follower.generation == writer.row()["shipped_generation"]
            database.checkpoint(lambda: None)  # DuckDB's log is gone, and the writer does not know yet
            database.write(lambda c: c.execute("CREATE TABLE large AS SELECT range i FROM range(300_000)"))
            note(database, "c")
            follower.look()
            assert notes(copy) == {"a", "b", "c"}
            assert copy.rows("SELECT count(*) FROM large") == [(300_000,)]


def test_a_follower_refuses_writes_and_names_the_writer(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (_, writer):
        writer.listening("grpc://writer:1")
        with following(tmp_path / "b.duckdb", place) as (copy, _), pytest.raises(ReadOnly, match="grpc://writer:1"):
            note(copy, "b")


def test_a_follower_goes_on_with_its_copy(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        for text in "bc":
            with following(tmp_path / "b.duckdb", place) as (copy, follower):
                note(database, text)
                follower.look()
                assert text in notes(copy)


def test_a_follower_starts_with_its_copy_on_a_full_disk(tmp_path, place, monkeypatch):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place):
            pass
        monkeypatch.setattr(Path, "write_text", full)
        with following(tmp_path / "b.duckdb", place) as (copy, _):
            assert notes(copy) == {"a"}


def test_an_error_of_the_copy_names_no_path(tmp_path, place, monkeypatch):
    with writing(tmp_path / "a.duckdb", place):
        monkeypatch.setattr(Follower, "look", full)
        with following(tmp_path / "b.duckdb", place) as (_, follower):
            assert follower.row()["last_error"] == "the copy cannot be written: No space left on device"


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/b.duckdb")


def test_a_follower_does_not_overwrite_another_file(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place):
        pass
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InvalidArgument, match="file of another kind"), following(tmp_path / "mine", place):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_note_that_was_not_written_whole_has_the_copy_made_again(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place):
            pass
        note_of(tmp_path / "b.duckdb").write_bytes(b"")
        with following(tmp_path / "b.duckdb", place) as (copy, _):
            assert notes(copy) == {"a"}


def test_a_place_that_becomes_the_replica_of_another_database_is_not_followed(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
    with following(tmp_path / "b.duckdb", place) as (copy, follower):
        shutil.rmtree(place)
        with writing(tmp_path / "c.duckdb", place) as (database, writer):
            for text in "cde":
                note(database, text)
                writer._checkpoint()  # a base later than what the follower has
            note(database, "f")
            for _ in range(2):
                with pytest.raises(InvalidArgument, match="has become the replica of another database"):
                    follower.look()
        assert notes(copy) == {"a"}
        assert follower.lag_ms > 0


def test_a_base_of_another_layout_is_refused_and_fetched_once(tmp_path, place, monkeypatch):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        database.write(
            lambda connection: connection.execute("UPDATE settings SET value = '1' WHERE name = 'schema_version'")
        )
        writer._checkpoint()
        note(database, "a")
        with following(tmp_path / "b.duckdb", place) as (_, follower):
            assert "it has layout 1" in follower.row()["last_error"]
            with pytest.raises(Lagging, match=r"nothing of the replica is here yet: .* it has layout 1"):
                follower.check_lag(None)  # not an empty answer
            monkeypatch.setattr("store.replication.follower.write_base", fail)
            with pytest.raises(InvalidArgument, match="it has layout 1"):
                follower.look()


def relabel(database: Database, layout: int) -> None:
    sql = f"UPDATE settings SET value = '{layout}' WHERE name = 'schema_version'"
    database.write(lambda connection: connection.execute(sql))


def test_a_base_of_an_older_layout_is_served_once_the_writer_has_upgraded(tmp_path, place):
    both = rf"it has layout {OLDEST}, this statflight reads layout {VERSION}; it is served once its writer is upgraded"
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        relabel(database, OLDEST)
        writer._checkpoint()
        note(database, "a")
        with following(tmp_path / "b.duckdb", place) as (copy, follower):
            with pytest.raises(Lagging, match=both):
                follower.check_lag(None)
            relabel(database, VERSION)
            writer._checkpoint()
            note(database, "b")
            follower.look()
            follower.check_lag(None)
            assert notes(copy) == {"a", "b"}


def test_a_copy_of_before_an_upgrade_is_fetched_again(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place):
            pass
        with duckdb.connect(str(tmp_path / "b.duckdb")) as connection:
            connection.execute("PRAGMA disable_checkpoint_on_shutdown")
            connection.execute(f"UPDATE settings SET value = '{OLDEST}' WHERE name = 'schema_version'")
        length = wal(tmp_path / "b.duckdb").stat().st_size
        written = json.loads(note_of(tmp_path / "b.duckdb").read_text())
        written["last"][2] = length
        note_of(tmp_path / "b.duckdb").write_text(json.dumps(written))
        with following(tmp_path / "b.duckdb", place) as (copy, follower):
            follower.look()
            assert notes(copy) == {"a"}


def test_the_lag_grows_while_nothing_is_heard(tmp_path, place, monkeypatch):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        note(database, "a")
        writer.listening("grpc://writer:1")
        with following(tmp_path / "b.duckdb", place) as (_, follower):
            assert follower.lag_ms < 60_000
            really = leases.clock
            monkeypatch.setattr(leases, "clock", lambda: really() + 100)
            with pytest.raises(Lagging):
                follower.check_lag(99_000)
            follower.check_lag(None)


def test_a_read_waits_for_the_generation_that_it_names(tmp_path, place, monkeypatch):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place) as (copy, follower):
            note(database, "b")
            wanted = writer.generation
            assert follower.generation < wanted
            look = threading.Thread(target=follower.look)
            look.start()
            follower.check_read(None, wanted)
            assert notes(copy) == {"a", "b"}
            look.join()
            monkeypatch.setattr(follower_module, "MOST_WAIT_SECONDS", 0.01)
            monkeypatch.setattr(follower, "_interval", 0.0)
            with pytest.raises(NotThere, match=rf"generation {wanted + 1} has not come here within 0.01 s"):
                follower.check_read(None, wanted + 1)
        writer.check_read(None, wanted)
        with pytest.raises(NotThere, match=f"generation {wanted + 1} is not here, the newest is {wanted}"):
            writer.check_read(None, wanted + 1)


def test_a_read_sees_one_generation(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place) as (copy, follower):
            before, discarded = follower.generation, []

            def read():
                found = notes(copy)
                if not discarded and follower.generation == before:
                    note(database, "b")
                    follower.look()
                return found

            found, generation = follower.consistently(read, discarded.append)
            assert (found, generation > before, discarded) == ({"a", "b"}, True, [{"a"}])


def test_a_standby_takes_over_once_the_lease_has_ended(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place, standby=True) as (copy, standby):
            assert standby.name == "STANDBY"
            standby._lease_seen -= 100  # so long ago that the lease is over
            standby._fresh -= 100
            assert standby._lease_has_ended()
            take_over(standby)
            note(copy, "b")
            assert standby.successor.row()["epoch"] == writer.row()["epoch"] + 1
            writer._keeper.renew(0)
            with pytest.raises(ReadOnly):
                note(database, "c")
        assert restored(place) == {"a", "b"}
    with pytest.raises(InvalidArgument, match=str(place)):
        join(Plan(str(place)), tmp_path / "a.duckdb", standby=True)
    with pytest.raises(InvalidArgument, match=str(place)), writing(tmp_path / "a.duckdb", place):
        pass
    with writing(tmp_path / "b.duckdb", place) as (database, _):
        assert notes(database) == {"a", "b"}
    database, again = join(Plan(str(place)), tmp_path / "b.duckdb", standby=True)  # the command that it was started by
    try:
        assert again.name == "WRITER"
    finally:
        again.close()
        database.close()


def test_a_copy_that_is_not_whole_is_made_again(tmp_path, place, monkeypatch):
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        with monkeypatch.context() as patched:
            patched.setattr(Follower, "_serve", fail)  # as a kill would, after the file is there
            with following(tmp_path / "b.duckdb", place, standby=True):
                pass
        assert (tmp_path / "b.duckdb").exists()
        with following(tmp_path / "b.duckdb", place, standby=True) as (copy, standby):
            standby.look()
            assert (standby.name, notes(copy)) == ("STANDBY", {"a"})


def fail(*_, **__):
    raise OSError("no view")


def test_what_the_old_writer_ships_after_that_does_not_count(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place, standby=True) as (_, standby):
            take_over(standby)
            writer._ship_segment([pending_of(writer)])  # it was paused while it shipped
        assert restored(place) == {"a"}
        log = log_at(place)
        assert [position.epoch for position in log.after(None)][-1] == writer.row()["epoch"] + 1


def test_a_follower_leaves_what_arrives_after_the_next_lease(tmp_path, place):
    """The next writer may not have seen it, so that a reader would go back."""
    with (
        writing(tmp_path / "a.duckdb", place) as (database, writer),
        following(tmp_path / "b.duckdb", place) as (copy, follower),
    ):
        note(database, "a")
        follower.look()
        before = follower.generation
        at, taken = log_at(place).place, None
        while taken is None:  # again if the writer has just renewed its lease
            lease = leases.newest(at)
            next_one = leases.Lease(lease.number + 1, lease.epoch + 1, "other", "grpc://other:1", 10.0)
            taken = leases.create(at, next_one)
        writer._ship_segment([pending_of(writer)])
        follower.look()
        assert (follower.generation, notes(copy)) == (before, {"a"})


def test_a_standby_that_slept_takes_over_with_all_that_was_shipped(tmp_path, place):
    with writing(tmp_path / "a.duckdb", place) as (database, writer):
        with following(tmp_path / "b.duckdb", place, standby=True) as (copy, standby):
            for text in "abc":
                note(database, text)
                writer._checkpoint()  # another base
            note(database, "d")
            take_over(standby)
            assert notes(copy) == {*"abcd"}
        assert restored(place) == {*"abcd"}


def test_an_attempt_that_failed_after_a_part_is_repeated(tmp_path, place, monkeypatch):
    with (
        writing(tmp_path / "a.duckdb", place) as (database, _),
        following(tmp_path / "b.duckdb", place) as (copy, follower),
    ):
        for text in "ab":
            note(database, text)
            with monkeypatch.context() as patched:
                patched.setattr(Follower, "_serve", fail)
                with pytest.raises(OSError, match="no view"):
                    follower.look()
        note(database, "c")
        follower.look()
        assert notes(copy) == {*"abc"}


def test_a_takeover_that_fails_halfway_ends_the_server(tmp_path, place, monkeypatch):
    """The file is open for writing, but is not the newest of the replica: the next start makes the copy again."""
    with writing(tmp_path / "a.duckdb", place) as (database, _):
        note(database, "a")
        with following(tmp_path / "b.duckdb", place, standby=True) as (_, standby), monkeypatch.context() as patched:
            patched.setattr("store.replication.join.Writer", fail)
            with pytest.raises(OSError, match="no view"):
                take_over(standby)
            assert "it could not take over: no view" in standby.over
    with following(tmp_path / "b.duckdb", place, standby=True) as (copy, standby):
        assert standby.name == "STANDBY"
        take_over(standby)
        assert notes(copy) == {"a"}


def take_over(standby):
    """Makes a standby the writer, although the former one renews its lease."""
    while standby.successor is None:
        standby._lease = leases.newest(standby._log.place)
        standby._become_writer()


def pending_of(writer):
    from store.replication.writer import _Pending

    return _Pending(writer.generation + 1, 0, writer._offset, b"late")
