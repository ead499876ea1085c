"""Deletion vectors: roaring bitmaps of row positions. Delta's files and Iceberg's Puffin blobs frame them alike."""

from __future__ import annotations

import struct
import zlib
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Rows: TypeAlias = npt.NDArray[np.int64]

_MAGIC: Final = b"\xd1\xd3\x39\x64"


def unframed(frame: bytes) -> bytes:
    """A vector without its length and checksum; ValueError if one of them is wrong."""
    if len(frame) < 12 or struct.unpack(">I", frame[:4])[0] != len(frame) - 8:
        raise ValueError("a deletion vector of the wrong length")
    if struct.unpack(">I", frame[-4:])[0] != zlib.crc32(frame[4:-4]):
        raise ValueError("a deletion vector with the wrong checksum")
    return frame[4:-4]


def positions(vector: bytes) -> Rows:
    """The ascending positions in a vector; ValueError if it is none."""
    if vector[:4] != _MAGIC:
        raise ValueError("a deletion vector with the wrong magic number")
    try:
        bitmap = BitMap64.deserialize(vector[4:])
    except Exception as error:  # pyroaring documents no error types
        raise ValueError("a deletion vector whose bitmap cannot be read") from error
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)
