"""Rows that follow the JSON of an action's body: what a worker sends is what the server reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.client.connection import _encoded
from flight_server.wire.action_bodies import parse_body, split_body
from flight_server.worker.draft_sink import Held, encoded
from flight_server.writes.ingest import with_streams
from store.errors import InvalidArgument, InvalidField


def sent(*tables: pa.Table) -> bytes:
    return _encoded({"rows": [encoded(Held("stats.columns", False, False, rows)) for rows in tables], "é": 1})


def received(body: bytes) -> list[pa.Table]:
    text, streams = split_body(body)
    items = with_streams(parse_body(text, {"rows": list}, {"é": int})["rows"], streams)
    return [pa.ipc.open_stream(item["ipc"]).read_all() for item in items]


def test_streams_arrive_as_they_were_sent():
    tables = [pa.table({"a": [1, 2]}), pa.table({"b": ["x"]}), pa.table({"c": pa.array([], pa.int64())})]
    assert received(sent(*tables)) == tables


def test_a_body_of_json_alone_has_no_streams():
    assert split_body(b'{"rows": []}') == (b'{"rows": []}', memoryview(b""))
    assert received(b'{"rows": []}') == []


def test_streams_begin_where_words_do():
    text, _ = split_body(sent(pa.table({"a": [1]})))
    assert len(text) % 8 == 0


@pytest.mark.parametrize("cut", [5, 8, 20])
def test_a_body_that_is_cut_off_in_its_json_is_refused(cut):
    with pytest.raises(InvalidArgument, match="the body is truncated"):
        split_body(sent(pa.table({"a": [1]}))[:cut])


@pytest.mark.parametrize(("length", "says"), [
    (True, "is not the length"), (0, "is not the length"), (-1, "is not the length"), (11, "is not the length"),
    (9, "lengths do not add up"), ("", "lengths do not add up"),
])  # fmt: skip
def test_lengths_that_are_not_those_of_the_streams_are_refused(length: Any, says: str):
    with pytest.raises(InvalidField, match=says):
        with_streams([{"ipc": length}], memoryview(bytes(10)))
    assert with_streams([{"ipc": 4}, {}, None, {"ipc": 6}], memoryview(bytes(10)))[3]["ipc"] == bytes(6)
