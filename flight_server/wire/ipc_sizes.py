"""Sizes that an Arrow IPC stream declares, read before anything is decompressed.

A buffer of a compressed batch begins with its size once decompressed: 30 kB of zstd may become 500 MB.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

_RECORD_BATCH: Final = "record batch"
_DICTIONARY: Final = "dictionary"
_LENGTH: Final = struct.Struct("<q")
# Numbers of the fields in Arrow's Message.fbs.
_HEADER, _DATA = 2, 1
_BUFFERS, _COMPRESSION = 2, 3


def declared_bytes(stream: bytes | memoryview) -> int:
    """The size of all buffers of an untrusted Arrow IPC stream once decompressed, as the stream declares it.

    Raises:
        ValueError: The stream is malformed.
    """
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            if message.type in (_RECORD_BATCH, _DICTIONARY):
                total += _of_message(message)
    except (pa.ArrowException, OSError, struct.error, IndexError) as error:
        raise ValueError("the stream is malformed") from error
    return total


def _of_message(message: Any) -> int:
    metadata = memoryview(message.metadata)
    at = _field(metadata, _u32(metadata, 0), _HEADER)
    batch = at + _u32(metadata, at)
    if message.type == _DICTIONARY:
        at = _field(metadata, batch, _DATA)
        batch = at + _u32(metadata, at)
    at = _field(metadata, batch, _BUFFERS)
    if not at:
        return 0
    start = at + _u32(metadata, at)
    buffers = np.frombuffer(metadata, "<i8", 2 * _u32(metadata, start), start + 4)
    offsets, lengths = buffers[::2], buffers[1::2]
    if len(lengths) and lengths.min() < 0:
        raise ValueError("a buffer has a negative length")
    if not _field(metadata, batch, _COMPRESSION):
        return sum(lengths.tolist())  # which cannot overflow
    body, total = memoryview(message.body), 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        if length:
            (size,) = _LENGTH.unpack_from(body, offset)
            if size < -1:
                raise ValueError("a buffer declares a negative size")
            total += length if size == -1 else size  # -1: this one is not compressed
    return total


def _field(data: memoryview, table: int, number: int) -> int:
    """Position of a field of a flatbuffer's table; 0 if it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + slot)
    return table + offset if offset else 0


def _u32(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
