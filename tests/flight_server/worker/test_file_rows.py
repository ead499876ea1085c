"""Rows of files that executors write beside a worker: which ones they may write, so that nobody else has them too."""

from __future__ import annotations

import pyarrow as pa
import pytest

from capture.spi import SegmentPlace
from flight_server.worker.file_rows import FileRows, Kind
from flight_server.worker.turns import Turns
from store.duckdb.segment_files import Written
from store.model.errors import UpstreamError

PLACE = {"directory": "/segments", "owner": "this database"}
REQUESTED = Kind("stats.file_columns", extra=False, whole=False, checked=True)


class Server:
    """A server's actions, as a worker calls them."""

    def __init__(self, place=PLACE):
        self.place, self.calls = place, []

    def act(self, name, body, _timeout):
        self.calls.append((name, body))
        if name == "segment_place" and self.place is None:
            raise UpstreamError("this server has no segments")
        return [self.place if name == "segment_place" else {}]


def file_rows(server, cells: int | None = 5) -> FileRows:
    lease = {"job_id": "j", "lease_token": "t", "payload": {"segment_cells": cells}}
    return FileRows(server.act, lambda *_: pytest.fail("nothing is put here"), lease, Turns())


def rows(*paths: str, column_id: int = 1, snapshot_id: int = 7) -> pa.Table:
    row = {"snapshot_id": snapshot_id, "column_id": column_id}
    return pa.Table.from_pylist([row | {"file_path": path} for path in paths])


def test_place_is_for_many_rows_of_a_server_with_segments():
    server = Server()
    files = file_rows(server)
    assert files.place_of(7, [1], ["a", "b", "c", "d", "e"]) is None
    assert not server.calls
    assert files.place_of(7, [1, 2], ["a", "b", "c"]) == SegmentPlace("/segments", "this database")
    assert file_rows(server, None).place_of(7, [1, 2], ["a", "b", "c"]) is None
    assert file_rows(Server(None)).place_of(7, [1, 2], ["a", "b", "c"]) is None


def test_place_is_given_once_for_a_column_of_a_file():
    files = file_rows(Server())
    assert files.place_of(7, [1, 2], ["a", "b", "c"]) is not None
    assert files.place_of(7, [2, 3], ["c", "d", "e"]) is None
    assert files.place_of(7, [3, 4], ["a", "b", "c"]) is not None
    assert files.place_of(8, [1, 2], ["a", "b", "c"]) is not None


def test_rows_that_were_taken_are_not_written_by_others():
    files = file_rows(Server())
    assert files.take(REQUESTED, rows("a"))
    assert files.place_of(7, [1, 2], ["a", "b", "c"]) is None
    assert files.place_of(7, [2, 3], ["a", "b", "c"]) is not None
    extra = file_rows(Server())
    assert extra.take(REQUESTED._replace(extra=True), rows("a"))
    assert extra.place_of(7, [1, 2], ["a", "b", "c"]) is not None


def test_rows_that_others_have_written_are_put():
    server = Server()
    files = file_rows(server)
    files.place_of(7, [1, 2], ["a", "b", "c"])
    assert files.take(REQUESTED, rows("x"))
    files.add("stats.file_columns", 7, Written("f.parquet", "0" * 64, 100, 6))
    (name, body) = server.calls[-1]
    assert (name, body["file"], body["rows"], body["extra"]) == ("add_segment", "f.parquet", 6, False)
    assert not files.take(REQUESTED, rows("x", "a"))
    assert files.take(REQUESTED, rows("x"))
    assert files.take(REQUESTED, rows("a", column_id=3))
    assert files.take(REQUESTED, rows("a", snapshot_id=8))
    assert files.take(REQUESTED._replace(extra=True), rows("a"))
