"""Declared sizes of Arrow streams, which are checked before anything is decompressed."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from flight_server.core.wire.ipc_sizes import declared_bytes

TABLES = {
    "texts": pa.table({"a": ["x" * 100] * 1000, "b": range(1000)}),
    "nulls": pa.table({"a": pa.nulls(1000), "b": pa.array([None, "x"] * 500)}),
    "a dictionary": pa.table({"a": pa.array(["x" * 1000, "y"] * 500).dictionary_encode()}),
    "short": pa.table({"a": [1]}),  # whose buffers do not shrink, and are marked by -1
    "several batches": pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3]})]),
    "no rows": pa.table({"a": pa.array([], pa.string())}),
}


def encoded(table: pa.Table, codec: str | None) -> bytes:
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    return stream.getvalue().to_pybytes()


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_sizes_are_those_of_the_decompressed_buffers(table: pa.Table, codec: str | None):
    given = encoded(table, codec)
    read = pa.ipc.open_stream(given).read_all()
    needed = sum(batch.get_total_buffer_size() for batch in read.to_batches())
    assert needed <= declared_bytes(given) <= needed + 64 * table.num_columns * (read["a"].num_chunks + 1)


def test_bomb_is_seen_in_its_first_bytes():
    given = encoded(pa.table({"a": ["x" * 1000] * 20_000}), "zstd")
    before = pa.total_allocated_bytes()
    assert len(given) < 200_000
    assert declared_bytes(memoryview(given)) > 20_000_000
    assert pa.total_allocated_bytes() - before < 1_000_000


@pytest.mark.parametrize("given", [b"", b"x" * 100, b"\xff" * 4 + bytes(4)])
def test_malformed_streams_are_refused_or_empty(given: bytes):
    try:
        assert declared_bytes(given) == 0
    except ValueError as error:
        assert str(error) == "the stream is malformed"


def test_every_truncated_stream_is_refused_or_smaller():
    given = encoded(TABLES["a dictionary"], "zstd")
    whole = declared_bytes(given)
    for end in range(0, len(given), 7):
        try:
            assert declared_bytes(given[:end]) <= whole
        except ValueError as error:
            assert str(error) == "the stream is malformed"


def test_changed_bytes_are_refused_or_counted():
    given = encoded(TABLES["texts"], "lz4")
    for at in range(len(given)):
        changed = bytearray(given)
        changed[at] ^= 0x80
        with contextlib.suppress(ValueError):
            assert declared_bytes(bytes(changed)) >= 0
