"""Sizes that an Arrow IPC stream declares, read before anything is decompressed.

A buffer of a compressed batch begins with its size once decompressed: 30 kB of zstd may become 500 MB.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flight_server.client.conditions.flatbuffers import follow, slot, unsigned

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
    batch = follow(metadata, slot(metadata, follow(metadata, 0), _HEADER))
    if message.type == _DICTIONARY:
        batch = follow(metadata, slot(metadata, batch, _DATA))
    at = slot(metadata, batch, _BUFFERS)
    if not at:
        return 0
    start = follow(metadata, at)
    buffers = np.frombuffer(metadata, "<i8", 2 * unsigned(metadata, start), start + 4)
    offsets, lengths = buffers[::2], buffers[1::2]
    if len(lengths) and lengths.min() < 0:
        raise ValueError("a buffer has a negative length")
    if not slot(metadata, batch, _COMPRESSION):
        return sum(lengths.tolist())  # which cannot overflow
    body, total = memoryview(message.body), 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        if length:
            (size,) = _LENGTH.unpack_from(body, offset)
            if size < -1:
                raise ValueError("a buffer declares a negative size")
            total += length if size == -1 else size  # -1: this one is not compressed
    return total
