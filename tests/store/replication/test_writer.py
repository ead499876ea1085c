"""What is acknowledged is at the place, whatever the store did; who may write."""

from __future__ import annotations

import math
import re
import shutil
from datetime import datetime, timedelta, timezone

import duckdb
import pytest

from store.duckdb.database import Database
from store.duckdb.database_files import CHECKPOINT_BYTES
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from store.places import Directory
from store.replication import lease as leases
from store.replication import writer as writers
from store.replication.log import Damaged, block_name, iso
from store.replication.restore import At, bases, restore, spans
from store.role import ReadOnly
from tests.flight_server.live_server import eventually
from tests.store.replication.writing import log_at, note, notes, restored, writing


@pytest.fixture
def place(tmp_path):
    return tmp_path / "replica"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stats.duckdb"


def test_each_acknowledged_write_can_be_restored(path, place):
    with writing(path, place) as (database, writer):
        generations = []
        for text in "abc":
            note(database, text)
            generations.append(writer.row()["shipped_generation"])
            assert restored(place) == set("abc"[: len(generations)])
        assert generations == sorted(set(generations))
        assert restored(place, At(generation=generations[1])) == {"a", "b"}
        with pytest.raises(NotFound):
            restored(place, At(generation=generations[2] + 1))


def test_the_time_that_is_told_of_a_write_names_it(path, place):
    with writing(path, place) as (database, _):
        told = []
        for text in "abc":
            note(database, text)
            told.append(iso(next(spans(log_at(place))).micros))
        for count, time in enumerate(told, 1):
            assert restored(place, At.parse(time)) == set("abc"[:count])
        eastern = datetime.fromisoformat(told[1]).astimezone(timezone(timedelta(hours=5, minutes=45)))
        assert restored(place, At.parse(eastern.isoformat())) == {"a", "b"}


@pytest.mark.parametrize("text", ["yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00", "9" * 5000])
def test_a_time_that_cannot_be_read_is_named(text):
    with pytest.raises(InvalidArgument, match=f'"{re.escape(text[:50])}" is neither a generation nor a time'):
        At.parse(text)


def test_a_write_that_duckdb_stores_in_the_file_itself(path, place):
    """Large writes go past the log, which only points to their blocks; a base tells them."""
    with writing(path, place) as (database, _):
        note(database, "before")
        database.write(lambda c: c.execute("CREATE TABLE large AS SELECT range i, 'x' || range t FROM range(300_000)"))
        assert database.rows("SELECT count(*) FROM large") == [(300_000,)]
        note(database, "after")
        assert restored(place) == {"before", "after"}
        with duckdb.connect(str(place.with_name("restored.duckdb")), read_only=True) as copy:
            assert copy.execute("SELECT count(*), sum(i), max(t) FROM large").fetchall() == database.rows(
                "SELECT count(*), sum(i), max(t) FROM large"
            )


def test_a_long_log_is_followed_by_a_base_that_sends_changed_blocks_only(path, place):
    with writing(path, place) as (database, _):
        rows = "SELECT range i, md5(range::VARCHAR) || repeat(md5((range * 7)::VARCHAR), 4) t FROM range(60_000)"
        database.write(lambda c: c.execute(f"CREATE TABLE large AS {rows}"))
        before = len(list(place.glob("blocks/*/*")))
        while len(list(spans(log_at(place)))) < 2:
            database.write(lambda c: c.execute("INSERT INTO settings SELECT 'x', repeat('y', 9000) FROM range(200)"))
        assert len(list(place.glob("blocks/*/*"))) - before < CHECKPOINT_BYTES >> 20
        note(database, "last")
        assert restored(place) == {"last"}


def test_a_queue_that_grows_too_long_becomes_a_base(path, place, monkeypatch):
    monkeypatch.setattr(writers, "MOST_QUEUED_BYTES", 1)
    with writing(path, place) as (database, _):
        note(database, "a")
        assert restored(place) == {"a"}


def test_an_object_that_is_there_although_its_request_failed(path, place, monkeypatch):
    """More is committed until it is sent again."""
    with writing(path, place, durable=False) as (database, writer):
        note(database, "a")
        eventually(lambda: writer.row()["shipped_generation"] == writer.generation)
        create, failed = Directory.create, []

        def create_and_fail(self, name, data):
            done = create(self, name, data)
            if name.startswith("log/") and len(failed) < 4:
                failed.append(name)
                note(database, f"after {len(failed)}")
                raise UpstreamError("no answer")
            return done

        monkeypatch.setattr(Directory, "create", create_and_fail)
        note(database, "b")
        eventually(lambda: len(failed) == 2 and writer._base_due is False)
        writer._checkpoint()
        eventually(lambda: len(failed) == 4 and writer.row()["shipped_generation"] == writer.generation)
        assert writer.row()["last_error"] is None
    assert restored(place) == {"a", "b", *(f"after {n}" for n in range(1, 5))}


def test_the_file_that_was_written_last_goes_on_in_the_next_epoch(path, place):
    with writing(path, place) as (database, writer):
        note(database, "a")
        first = writer.row()
    with writing(path, place) as (database, writer):
        note(database, "b")
        second = writer.row()
    assert (second["epoch"], second["generation"] > first["generation"]) == (first["epoch"] + 1, True)
    assert restored(place) == {"a", "b"}
    assert restored(place, At(generation=first["generation"])) == {"a"}


def test_only_that_file_goes_on(path, place, tmp_path):
    with writing(path, place) as (database, _):
        note(database, "a")
    shutil.copy(path, tmp_path / "copy.duckdb")
    for other in ("copy.duckdb", "other.duckdb"):
        with pytest.raises(InvalidArgument, match=str(place)), writing(tmp_path / other, place):
            pass
    with writing(path, place):
        pass


def test_a_backup_written_into_that_file_is_refused(path, place, tmp_path):
    """It lacks what was acknowledged since; its inode is that of the file."""
    with writing(path, place) as (database, _):
        note(database, "a")
        database.backup(tmp_path / "backup.duckdb")
        note(database, "b")
    shutil.copyfile(tmp_path / "backup.duckdb", path)
    with pytest.raises(InvalidArgument, match="of another database"), writing(path, place):
        pass
    assert restored(place) == {"a", "b"}


def test_a_writer_whose_lease_was_taken_refuses_writes(path, place):
    with writing(path, place) as (database, writer):
        note(database, "a")
        lease = leases.newest(log_at(place).place)
        other = leases.Lease(lease.number + 1, lease.epoch + 1, "other", "grpc://other:1", 10.0)
        assert leases.create(log_at(place).place, other) is not None
        writer._keeper.renew(0)
        with pytest.raises(ReadOnly, match="grpc://other:1"):
            note(database, "b")
        assert "grpc://other:1" in writer.over
        assert notes(database) == {"a"}


def test_a_write_is_not_acknowledged_after_the_lease_has_ended(path, place):
    with writing(path, place, durable=False) as (database, writer):
        note(database, "a")
        writer._keeper._now = lambda: math.inf  # after the end of every lease, of one renewed meanwhile too
        with pytest.raises(UpstreamError, match="lease"):
            note(database, "b")


def test_a_place_that_comes_back_as_that_of_another_database_is_left_alone(path, place, tmp_path):
    other, away = tmp_path / "other", tmp_path / "away"
    with writing(tmp_path / "other.duckdb", other) as (database, _):
        note(database, "theirs")
    left = sorted(other.rglob("*"))
    with writing(path, place, durable=False, interval=0.02) as (database, writer):
        note(database, "a")
        place.rename(away)
        eventually(writer.trouble)
        other.rename(place)
        eventually(lambda: "has become the replica of another database" in writer.trouble())
        note(database, "b")
        place.rename(other)
        assert sorted(other.rglob("*")) == left
        away.rename(place)
        eventually(lambda: not writer.trouble())
    assert restored(place) == {"a", "b"}


def test_another_directory_is_left_alone(path, place):
    place.mkdir()
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="not a replica"), writing(path, place):
        pass
    assert [file.name for file in place.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("harm", ["torn", "missing"])
def test_damage_names_the_newest_consistent_generation(path, place, harm):
    with writing(path, place) as (database, writer):
        for text in "abc":
            note(database, text)
        generation = writer.row()["generation"]
        ((_, segments),) = bases(log_at(place))
        file = place / segments[-2].name
    file.write_bytes(file.read_bytes()[:-7]) if harm == "torn" else file.unlink()
    with pytest.raises(Damaged, match=f"--at {generation - 2}"):
        restored(place)
    assert restored(place, At(generation=generation - 2)) == {"a"}


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_damaged_base_names_the_newest_generation_before_it(path, place, harm):
    for text in "ab":
        with writing(path, place) as (database, _):
            note(database, text)
    newest, older, *_ = spans(log_at(place))
    file = place / block_name(next(block for block in newest.base.blocks if block not in older.base.blocks))
    file.write_bytes(b"") if harm == "damaged" else file.unlink()
    with pytest.raises(Damaged, match=f"{harm}; the newest consistent generation is {older.generation} of"):
        restored(place)
    assert restored(place, At(generation=older.generation)) == {"a"}


def test_of_two_restores_to_a_path_at_once_one_is_refused(path, place, tmp_path, monkeypatch):
    with writing(path, place) as (database, _):
        note(database, "a")
    target, read, refusals = tmp_path / "restored.duckdb", Directory.read, []

    def reading(self, name):
        if name.startswith("blocks/") and not refusals:  # by the first one
            refusals.append(None)
            with pytest.raises(InvalidArgument, match="another process holds it") as refusal:
                restore(log_at(place), target)
            refusals[0] = refusal.value
        return read(self, name)

    monkeypatch.setattr(Directory, "read", reading)
    restore(log_at(place), target)
    assert (notes(target), len(refusals)) == ({"a"}, 1)
    assert sorted(file.name for file in tmp_path.iterdir() if "restored" in file.name) == ["restored.duckdb"]


@pytest.mark.parametrize("name", ["replica.json", "lease/*"])
def test_a_damaged_object_is_named(path, place, name):
    with writing(path, place) as (database, _):
        note(database, "a")
    file = max(place.glob(name))
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(Damaged, match=f'"{file.relative_to(place)}" is damaged'), writing(path, place):
        pass


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_damage_of_a_bases_own_object_is_named_and_older_generations_stay_restorable(path, place, harm):
    for text in "ab":
        with writing(path, place) as (database, _):
            for _ in range(2):
                note(database, text)
    newest, older = spans(log_at(place))
    file = place / newest.base.position.name
    file.write_bytes(file.read_bytes()[:-1]) if harm == "damaged" else file.unlink()
    for at in (At(), At(generation=newest.generation), At(generation=newest.base.generation), At(micros=newest.micros)):
        with pytest.raises(Damaged, match=f"is {harm}; the newest consistent generation is {older.generation} of"):
            restored(place, at)
    for at in (At(generation=older.generation), At(micros=older.micros - 1)):
        assert restored(place, at) <= {"a"}
    with pytest.raises(Damaged, match=f"is {harm}"), writing(path, place):
        pass


def test_generations_that_are_too_old_are_deleted(path, place):
    for text in "abc":
        with writing(path, place) as (database, _):
            note(database, text)
    (newest, *_), old = spans(log_at(place)), len(list(place.glob("blocks/*/*")))
    writers.clean(log_at(place), newest.micros + 1, lambda: True)
    assert [span.base.position for span in spans(log_at(place))] == [newest.base.position]
    assert len(list(place.glob("blocks/*/*"))) < old
    assert restored(place) == {"a", "b", "c"}


def test_the_database_works_without_a_replica(path):
    database = Database(path)
    note(database, "a")
    assert notes(database) == {"a"}
    database.close()
