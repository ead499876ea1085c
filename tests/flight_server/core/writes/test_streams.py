"""Rows after the JSON of an action body: encoding by the worker, decoding by the server."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from flight_server.client.connection import _encoded
from flight_server.core.wire.action_bodies import split_body
from flight_server.core.writes.ingest import MAX_INLINE_BYTES, with_streams
from flight_server.worker.draft_sink import Held, encoded
from store.model.errors import InvalidArgument, InvalidField


def encode_body(*tables: pa.Table) -> bytes:
    return _encoded({"rows": [encoded(Held("stats.columns", False, False, rows)) for rows in tables], "é": 1})


def decode_body(body: bytes) -> list[pa.Table]:
    text, streams = split_body(body)
    items = with_streams(json.loads(text)["rows"], streams)
    return [pa.ipc.open_stream(item["ipc"]).read_all() for item in items]


def test_streams_round_trip():
    tables = [pa.table({"a": [1, 2]}), pa.table({"b": ["x"]}), pa.table({"c": pa.array([], pa.int64())})]
    assert decode_body(encode_body(*tables)) == tables


def test_body_of_json_only_has_no_streams():
    assert split_body(b'{"rows": []}') == (b'{"rows": []}', memoryview(b""))
    assert decode_body(b'{"rows": []}') == []


def test_streams_are_aligned_to_8_bytes():
    text, _ = split_body(encode_body(pa.table({"a": [1]})))
    assert len(text) % 8 == 0


@pytest.mark.parametrize("cut", [5, 8, 20])
def test_body_truncated_in_its_json_is_rejected(cut):
    with pytest.raises(InvalidArgument, match="the body is truncated"):
        split_body(encode_body(pa.table({"a": [1]}))[:cut])


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (True, "is not the length"),
        (0, "is not the length"),
        (-1, "is not the length"),
        (11, "is not the length"),
        (9, "lengths do not add up"),
        ("", "lengths do not add up"),
    ],
)
def test_wrong_stream_lengths_are_rejected(length: Any, message: str):
    with pytest.raises(InvalidField, match=message):
        with_streams([{"ipc": length}], memoryview(bytes(10)))
    assert with_streams([{"ipc": 4}, {}, None, {"ipc": 8}], memoryview(bytes(12)))[3]["ipc"] == bytes(8)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_streams_are_refused_before_they_are_decompressed(codec: str):
    rows = pa.table({"a": ["x" * 1_000_000] * 90})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(rows)
    data = stream.getvalue().to_pybytes()
    before = pa.total_allocated_bytes()
    for given, streams in ((base64.b64encode(data).decode(), b""), (len(data), data * 3)):
        with pytest.raises(InvalidArgument, match=f"more than {MAX_INLINE_BYTES} bytes once they are decompressed"):
            with_streams([{"ipc": given}] * 3, memoryview(streams))
        assert pa.total_allocated_bytes() - before < 1_000_000
