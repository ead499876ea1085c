"""Limits of streams: places, time, bytes, slow readers, cancelled calls."""

from __future__ import annotations

import gc
import threading
import time

import pyarrow as pa
import pytest

from flight_server.core.reads.stream import MAX_BATCH_BYTES, never, pieces
from flight_server.core.reads.streams import Streams
from store.model.errors import Cancelled, DeadlineExceeded, ResourceExhausted
from tests.store.empty_store import empty_database

SCHEMA = pa.schema([("n", pa.int64())])
ENDLESS = "SELECT a.range AS n FROM range(10000000) a, range(10000000) b WHERE (a.range + b.range) % 7 = 1"
NO_ROWS = "SELECT a.range AS n FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"


@pytest.fixture(scope="module")
def database():
    database = empty_database()
    yield database
    database.close()


def run(streams, database, sql, is_cancelled=lambda: False, caller=""):
    cursor = database.read()
    with streams.asked_by(lambda: caller):
        return streams.run(cursor, lambda: cursor.sql(sql).to_arrow_reader(8192), SCHEMA, is_cancelled)


def wait_until(holds):
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def stalls_at_once(monkeypatch):
    """Every stream that is not being read counts as stalled."""
    monkeypatch.setattr("flight_server.core.reads.streams.STALLED_SECONDS", 0.0)


def test_small_result_takes_no_place(database):
    streams = Streams(places=0, seconds=10, most_bytes=1 << 30)
    assert run(streams, database, "SELECT range AS n FROM range(10000)").num_rows == 10000
    with pytest.raises(ResourceExhausted):
        run(streams, database, ENDLESS)
    assert streams.running == 0


def test_closed_streams_free_their_places(database):
    streams = Streams(places=2, seconds=10, most_bytes=1 << 40)
    first, second = run(streams, database, ENDLESS), run(streams, database, ENDLESS)
    assert next(first).num_rows > 0
    with pytest.raises(ResourceExhausted):
        run(streams, database, ENDLESS)
    first.close()
    third = run(streams, database, ENDLESS)
    second.close()
    third.close()
    third.close()
    assert streams.running == 0


def test_callbacks_of_a_stream_run_at_its_end_and_a_function_on_each_batch(database):
    streams = Streams(places=1, seconds=10, most_bytes=1 << 30)
    stream = run(streams, database, "SELECT range AS n FROM range(100000)")
    ended: list[int] = []
    stream.map(lambda batch: batch.slice(0, 1)).then(lambda: ended.append(streams.running))
    assert sum(batch.num_rows for batch in stream) > 1
    assert ended == [0]


def test_a_garbage_collection_during_a_check_does_not_stop_the_watch(database):
    """A stream in a cycle of references is collected by the thread that checks it, which goes on for all others."""
    streams = Streams(places=2, seconds=60, most_bytes=1 << 40)
    let_go, collected, cancelled = threading.Event(), threading.Event(), threading.Event()

    def collect() -> bool:
        if let_go.is_set():
            gc.collect()
            collected.set()
        return False

    lost = [run(streams, database, ENDLESS, collect)]
    lost.append(lost)
    del lost
    let_go.set()
    assert collected.wait(60)
    stream = run(streams, database, ENDLESS, cancelled.is_set)
    cancelled.set()
    with pytest.raises(Cancelled):
        while True:
            next(stream)
    for stoppable in [*streams._stoppables]:
        stoppable.end()


def test_exhausted_stream_frees_its_place(database):
    streams = Streams(places=1, seconds=10, most_bytes=1 << 30)
    for _ in range(3):
        stream = run(streams, database, "SELECT range AS n FROM range(100000)")
        assert sum(batch.num_rows for batch in stream) == 100_000
        assert streams.running == 0
        assert next(stream, None) is None


def test_stream_beyond_most_bytes_is_resource_exhausted(database):
    streams = Streams(places=1, seconds=10, most_bytes=1 << 20)
    with pytest.raises(ResourceExhausted, match="bytes"):
        for _ in run(streams, database, ENDLESS):
            pass
    assert streams.running == 0


def test_query_beyond_the_time_limit_exceeds_the_deadline(database):
    streams = Streams(places=1, seconds=0.3, most_bytes=1 << 40)
    with pytest.raises(DeadlineExceeded):
        run(streams, database, NO_ROWS)


def test_unread_stream_frees_its_place_at_the_deadline(database):
    streams = Streams(places=1, seconds=1.0, most_bytes=1 << 40)
    with pytest.raises(DeadlineExceeded):
        stream = run(streams, database, ENDLESS)
        next(stream)
        until = time.monotonic() + 60
        while streams.running and time.monotonic() < until:
            time.sleep(0.01)
        assert streams.running == 0  # the place is free already
        for _ in stream:
            pass
    assert streams.running == 0


def test_a_stalled_stream_ends_and_tells_its_reader(database):
    streams = Streams(places=1, seconds=60, most_bytes=1 << 40, stall_seconds=0.3)
    stream = run(streams, database, ENDLESS)
    next(stream)
    wait_until(lambda: not streams.running)
    assert not stream._pieces and next(stream._batches, None) is None  # what it held is freed before it is closed
    with pytest.raises(ResourceExhausted, match="its reader had stopped"):
        next(stream)
    assert not streams._evicted


def test_of_many_stalled_streams_of_a_caller_most_end_sooner(database, monkeypatch):
    monkeypatch.setattr("flight_server.core.reads.streams.CROWD_SECONDS", 0.2)
    streams = Streams(places=16, seconds=60, most_bytes=1 << 40, stall_seconds=60)
    many = [run(streams, database, ENDLESS, caller="greedy") for _ in range(5)]
    few = [run(streams, database, ENDLESS, caller="modest") for _ in range(2)]
    wait_until(lambda: len(streams._evicted) == 3)
    assert set(streams._evicted) == set(many[:3]) and streams.running == 4
    for stream in (*many, *few):
        stream.close()


def test_a_caller_has_a_share_of_the_places(database, stalls_at_once):
    streams = Streams(places=8, seconds=60, most_bytes=1 << 40)
    greedy = [run(streams, database, ENDLESS, caller="greedy") for _ in range(7)]
    another = run(streams, database, ENDLESS, caller="greedy")  # in place of its own first one
    assert streams.running == 7
    with pytest.raises(ResourceExhausted, match="its reader had stopped"):
        next(greedy[0])
    last = run(streams, database, ENDLESS, caller="modest")
    assert streams.running == 8 and next(last).num_rows and next(another).num_rows and next(greedy[2]).num_rows
    for stream in (*greedy, another, last):
        stream.close()
    assert streams.running == 0 and not streams._evicted


def test_stalled_streams_give_way_to_callers_with_less(database, stalls_at_once):
    streams = Streams(places=4, seconds=60, most_bytes=1 << 40)
    greedy = [run(streams, database, ENDLESS, caller="greedy") for _ in range(3)]
    modest = [run(streams, database, ENDLESS, caller="modest") for _ in range(2)]
    assert streams.running == 4 and set(streams._evicted) == {greedy[0]}
    with pytest.raises(ResourceExhausted, match="4 are running"):
        run(streams, database, ENDLESS, caller="greedy")  # each has a fair part
    for stream in (*greedy, *modest):
        stream.close()


def test_streams_that_are_read_keep_their_places(database):
    streams = Streams(places=2, seconds=60, most_bytes=1 << 40)
    read = [run(streams, database, ENDLESS, caller="busy") for _ in range(2)]
    for caller, own in (("busy", "2 of yours"), ("other", "2 are running")):
        assert all(next(stream).num_rows for stream in read)
        with pytest.raises(ResourceExhausted, match=own):
            run(streams, database, ENDLESS, caller=caller)
    for stream in read:
        stream.close()


def test_what_is_left_unread_is_limited(database, stalls_at_once):
    streams = Streams(places=1, seconds=60, most_bytes=1 << 40)
    left = [run(streams, database, ENDLESS, caller="greedy") for _ in range(3)]
    with pytest.raises(ResourceExhausted, match="left unread"):
        run(streams, database, ENDLESS, caller="greedy")
    left[0].close()
    left.append(run(streams, database, ENDLESS, caller="greedy"))
    for stream in left:
        stream.close()
    assert not streams._evicted


def test_cancelled_call_stops_the_query(database):
    cancelled = threading.Event()
    streams = Streams(places=1, seconds=60, most_bytes=1 << 40)
    threading.Timer(0.3, cancelled.set).start()
    with pytest.raises(Cancelled):
        run(streams, database, NO_ROWS, cancelled.is_set)
    assert cancelled.is_set()
    cancelled.clear()
    stream = run(
        streams,
        database,
        ENDLESS.replace("% 7 = 1", "% 7 = 1 AND a.range < 30000 OR a.range + b.range < 0"),
        cancelled.is_set,
    )
    threading.Timer(0.3, cancelled.set).start()
    with pytest.raises(Cancelled):
        while True:
            next(stream)
    assert streams.running == 0


def test_queries_wait_for_a_slot_in_order(database):
    """One slot: while a query computes its first rows, the next ones wait in order and can be cancelled."""
    streams = Streams(places=9, seconds=60, most_bytes=1 << 40, queries=1)
    stop, leave = threading.Event(), threading.Event()
    started: list[str] = []
    cancelled: list[str] = []

    def start_query(name: str, sql: str, is_cancelled, waiting: int) -> threading.Thread:
        cursor = database.read()

        def start():
            started.append(name)
            return cursor.sql(sql).to_arrow_reader(8192)

        def work() -> None:
            try:
                streams.run(cursor, start, SCHEMA, is_cancelled)
            except Cancelled:
                cancelled.append(name)

        thread = threading.Thread(target=work)
        thread.start()
        until = time.monotonic() + 60
        while len(streams.query_slots._waiting) < waiting or not started:
            assert time.monotonic() < until
            time.sleep(0.001)
        return thread

    one = "SELECT 1::BIGINT AS n"
    threads = [start_query("long", NO_ROWS, stop.is_set, 0), start_query("leaves", one, leave.is_set, 1)]
    threads += [start_query("first", one, never, 2), start_query("second", one, never, 3)]
    leave.set()
    threads[1].join(60)
    assert (started, cancelled) == (["long"], ["leaves"])
    stop.set()
    for thread in threads:
        thread.join(60)
    assert (started, cancelled) == (["long", "first", "second"], ["leaves", "long"])
    assert run(streams, database, one).num_rows == 1


def test_batches_are_split_to_max_batch_bytes():
    batch = pa.RecordBatch.from_pydict({"data": [b"x" * (1 << 20)] * 11})
    parts = list(pieces(batch))
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([batch])
    assert max(part.nbytes for part in parts) <= MAX_BATCH_BYTES
    one = pa.RecordBatch.from_pydict({"data": [b"x" * (MAX_BATCH_BYTES + 1)]})
    assert [part.num_rows for part in pieces(one)] == [1]
