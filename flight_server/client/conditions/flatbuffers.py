"""Positions in a flatbuffer, the format of the metadata of Arrow IPC: what pyarrow does not show is read from there."""

from __future__ import annotations

import struct


def unsigned(data: memoryview, at: int) -> int:
    """The unsigned integer of four bytes at a position."""
    number: int = struct.unpack_from("<I", data, at)[0]
    return number


def follow(data: memoryview, at: int) -> int:
    """The position to which the offset at a position points."""
    return at + unsigned(data, at)


def slot(data: memoryview, table: int, number: int) -> int:
    """The position of a table's field; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else 0
