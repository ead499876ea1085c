"""Puffin: Iceberg's file format for statistics blobs.

A file consists of `PFA1`, the blobs, and the footer: `PFA1`, a JSON payload, its length (int32, little endian), four
bytes of flags, `PFA1`. Only theta blobs are listed in the table's metadata, because readers such as pyiceberg reject
tables that list an unknown type.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import pyarrow as pa

MAGIC: Final = b"PFA1"
MAX_FOOTER_BYTES: Final = 64 << 20

_TAIL: Final = struct.Struct("<i4s4s")  # payload length, flags, magic
_COMPRESSED_FOOTER: Final = 1


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob; `data` is uncompressed, `fields` are the column ids it covers."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


def write(blobs: Sequence[Blob]) -> tuple[bytes, int]:
    """Serializes blobs: the bytes of the file, and the size of its footer in bytes."""
    body, described = bytearray(MAGIC), []
    for blob in blobs:
        described.append(
            {
                "type": blob.type,
                "fields": list(blob.fields),
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "offset": len(body),
                "length": len(blob.data),
                "properties": dict(blob.properties),
            }
        )
        body += blob.data
    payload = json.dumps({"blobs": described, "properties": {"created-by": "statflight"}}).encode()
    footer = MAGIC + payload + _TAIL.pack(len(payload), bytes(4), MAGIC)
    return bytes(body + footer), len(footer)


def read(stream: BinaryIO) -> list[Blob]:
    """Reads the blobs of a Puffin file; empty if its footer is compressed, which is not supported and rare.

    Raises:
        ValueError: The file is not a Puffin file.
    """
    size = stream.seek(0, 2)
    if size is None:  # Arrow's streams report a position by tell() only
        size = stream.tell()
    if size < len(MAGIC) * 2 + _TAIL.size:
        raise ValueError("a Puffin file that is too short")
    stream.seek(size - _TAIL.size)
    length, flags, magic = _TAIL.unpack(stream.read(_TAIL.size))
    if magic != MAGIC or not 0 <= length <= min(size - _TAIL.size - 2 * len(MAGIC), MAX_FOOTER_BYTES):
        raise ValueError("a Puffin file with a broken footer")
    if flags[0] & _COMPRESSED_FOOTER:
        return []
    stream.seek(size - _TAIL.size - length)
    return [_blob(stream, item) for item in json.loads(stream.read(length))["blobs"]]


def _blob(stream: BinaryIO, item: Mapping[str, Any]) -> Blob:
    stream.seek(item["offset"])
    data = stream.read(item["length"])
    if codec := item.get("compression-codec"):
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as plain:
            data = plain.read()
    return Blob(
        item["type"],
        tuple(item["fields"]),
        item["snapshot-id"],
        item["sequence-number"],
        bytes(data),
        item.get("properties") or {},
    )


UNREADABLE: Final = (OSError, ValueError, KeyError, pa.ArrowException)
"""Errors of `read_file` for a file that is missing or damaged."""


def read_file(io: Any, path: str) -> list[Blob]:
    """The blobs of a statistics file; raises one of `UNREADABLE`."""
    with io.new_input(path).open() as stream:
        return read(stream)


def read_if_any(io: Any, path: str) -> list[Blob]:
    """The same; empty if it is missing or damaged, since statistics are optional."""
    try:
        return read_file(io, path)
    except UNREADABLE:
        return []
