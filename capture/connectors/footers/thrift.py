"""Parses statistics of column chunks from the compact Thrift encoding of a Parquet footer.

Fields that statistics do not need are skipped. Functions take the bytes and a position and return the new position,
which is fast enough in Python: about ten microseconds per chunk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from capture.connectors.footers.writers import SPARK

Kind: TypeAlias = tuple[bytes, bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""Schema, Arrow schema, writer, and Spark's metadata."""

_SPARK_SCHEMA: Final = SPARK + b"sql.parquet.row.metadata"
_PHYSICAL: Final = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
# Types of compact thrift.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
# How a column's key begins in a footer: field 8 of the chunk, whatever field is before it; its field 2, a struct; field
# 1 of that, a list of texts. Few other bytes look like it, and each such footer is parsed.
_COLUMN_KEY: Final = re.compile(
    rb"[\x1c\x2c\x3c\x4c\x5c\x6c\x7c\x8c]\x2c\x19[\x18\x28\x38\x48\x58\x68\x78\x88\x98\xa8\xb8\xc8\xd8\xe8\xf8]"
)


@dataclass(slots=True)
class Chunk:
    """Undecoded statistics of one column chunk; None if absent.

    `ordered` is True if the file declares the order of `min_value` and `max_value`. `old_min` and `old_max` are the
    deprecated fields of older writers, defined for signed order only. `is_encrypted` is True if its pages are, and
    what the footer says of it may be left out.
    """

    physical: str = ""
    num_values: int = -1
    size_bytes: int | None = None  # compressed
    null_count: int | None = None
    nan_count: int | None = None
    min_value: bytes | None = None
    max_value: bytes | None = None
    min_exact: bool | None = None
    max_exact: bool | None = None
    old_min: bytes | None = None
    old_max: bytes | None = None
    ordered: bool = False
    is_encrypted: bool = False


@dataclass(slots=True)
class Chunks:
    """The chunks of each row group, in the order of the schema's leaves, and the row count of each group.

    `schema` is the encoded list of schema elements, `arrow_schema` the metadata added by Arrow, `spark` that of Spark
    except its schema, which is `spark_schema`: JSON with comments, and with ids that differ between equal files.
    """

    groups: list[list[Chunk]]
    rows: list[int]
    row_count: int = -1
    schema: bytes = b""
    created_by: bytes = b""
    arrow_schema: bytes = b""
    spark: tuple[tuple[bytes, bytes], ...] = ()
    spark_schema: bytes = b""

    @property
    def kind(self) -> Kind:
        """Key of schema and writer; files with equal kinds have equal columns."""
        return self.schema, self.arrow_schema, self.created_by, self.spark


def read_chunks(data: bytes) -> Chunks:
    """Parses the chunks of a footer (`FileMetaData`).

    Raises:
        ValueError: The bytes are not Thrift, or are truncated.
    """
    try:
        return _file(data)
    except (IndexError, RecursionError) as error:
        raise ValueError(f"its footer is damaged ({error})") from None


def encrypted_columns(data: bytes) -> frozenset[int]:
    """Indexes of the leaf columns of a footer that have an encrypted chunk in some row group.

    Raises:
        ValueError: The bytes are not Thrift, or are truncated.
    """
    if _COLUMN_KEY.search(data) is None:  # a search takes a hundredth of the time
        return frozenset()
    groups = read_chunks(data).groups
    return frozenset(at for group in groups for at, chunk in enumerate(group) if chunk.is_encrypted)


def _file(data: bytes) -> Chunks:  # a branch for each field that is read
    file = Chunks([], [])
    orders: list[int] = []
    at = number = 0
    while header := data[at]:
        number, type, at = _field(data, at, header, number)
        if number == 4 and type == _LIST:
            count, _, at = _list(data, at)
            for _ in range(count):
                chunks, rows, at = _row_group(data, at)
                file.groups.append(chunks)
                file.rows.append(rows)
        elif number == 7 and type == _LIST:
            count, _, at = _list(data, at)
            for _ in range(count):
                order, at = _union(data, at)
                orders.append(order)
        elif number == 2 and type == _LIST:
            start, at = at, _skip(data, at, type)
            file.schema = data[start:at]
        elif number == 3 and type == _I64:
            file.row_count, at = _integer(data, at)
        elif number == 5 and type == _LIST:
            count, _, at = _list(data, at)
            for _ in range(count):
                name, value, at = _pair(data, at)
                if name == b"ARROW:schema":
                    file.arrow_schema = value
                elif name == _SPARK_SCHEMA:
                    file.spark_schema = value
                elif name.startswith(SPARK):
                    file.spark = (*file.spark, (name, value))
        elif number == 6 and type == _BINARY:
            file.created_by, at = _bytes(data, at)
        else:
            at = _skip(data, at, type)
    for group in file.groups:
        for chunk, order in zip(group, orders, strict=False):
            chunk.ordered = order in (1, 2)  # TYPE_ORDER, or IEEE_754_TOTAL_ORDER
    return file


def _row_group(data: bytes, at: int) -> tuple[list[Chunk], int, int]:
    chunks: list[Chunk] = []
    rows = -1
    number = 0
    while header := data[at]:
        number, type, at = _field(data, at, header, number)
        if number == 1 and type == _LIST:
            count, _, at = _list(data, at)
            for _ in range(count):
                chunk = Chunk()
                at = _column_chunk(data, at, chunk)
                chunks.append(chunk)
        elif number == 3 and type == _I64:
            rows, at = _integer(data, at)
        else:
            at = _skip(data, at, type)
    return chunks, rows, at + 1


def _column_chunk(data: bytes, at: int, chunk: Chunk) -> int:
    number = 0
    while header := data[at]:
        number, type, at = _field(data, at, header, number)
        at = _column_metadata(data, at, chunk) if number == 3 and type == _STRUCT else _skip(data, at, type)
        chunk.is_encrypted |= number == 8 and type == _STRUCT
    return at + 1


def _column_metadata(data: bytes, at: int, chunk: Chunk) -> int:
    number = 0
    while header := data[at]:
        if header > 15:  # `_field` inlined, because this is the hottest loop
            number, type, at = number + (header >> 4), header & 15, at + 1
        else:
            number, type, at = _field(data, at, header, number)
        if type == _I64 and number not in (5, 7):
            while data[at] > 127:
                at += 1
            at += 1
        elif number == 1 and type == _I32:
            coded, at = _integer(data, at)
            chunk.physical = _PHYSICAL[coded] if 0 <= coded < len(_PHYSICAL) else f"UNKNOWN {coded}"
        elif number == 5 and type == _I64:
            chunk.num_values, at = _integer(data, at)
        elif number == 7 and type == _I64:
            chunk.size_bytes, at = _integer(data, at)
        elif number == 12 and type == _STRUCT:
            at = _statistics(data, at, chunk)
        else:
            at = _skip(data, at, type)
    return at + 1


_STATISTICS: Final = {
    1: ("old_max", _BINARY),
    2: ("old_min", _BINARY),
    3: ("null_count", _I64),
    5: ("max_value", _BINARY),
    6: ("min_value", _BINARY),
    7: ("max_exact", _TRUE),
    8: ("min_exact", _TRUE),
    9: ("nan_count", _I64),
}


def _statistics(data: bytes, at: int, chunk: Chunk) -> int:
    number = 0
    while header := data[at]:
        if header > 15:
            number, type, at = number + (header >> 4), header & 15, at + 1
        else:
            number, type, at = _field(data, at, header, number)
        name, kind = _STATISTICS.get(number, ("", 0))
        value: Any = None
        if type == kind == _BINARY:
            length = data[at]
            if length < 128:
                at += 1
            else:
                length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        elif type == kind == _I64:
            value, at = _integer(data, at)
        elif kind == _TRUE and type in (_TRUE, _FALSE):
            value = type == _TRUE
        else:
            at = _skip(data, at, type)
            continue
        setattr(chunk, name, value)
    return at + 1


def _pair(data: bytes, at: int) -> tuple[bytes, bytes, int]:
    """Key and value of a metadata entry."""
    values = {1: b"", 2: b""}
    number = 0
    while header := data[at]:
        number, type, at = _field(data, at, header, number)
        if number in values and type == _BINARY:
            values[number], at = _bytes(data, at)
        else:
            at = _skip(data, at, type)
    return values[1], values[2], at + 1


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _varint(data, at)
    if at + length > len(data):
        raise IndexError("it ends too soon")
    return data[at : at + length], at + length


def _union(data: bytes, at: int) -> tuple[int, int]:
    """Number of the field that is set in a union."""
    variant = number = 0
    while header := data[at]:
        number, type, at = _field(data, at, header, number)
        variant = number
        at = _skip(data, at, type)
    return variant, at + 1


# Compact thrift.


def _field(data: bytes, at: int, header: int, number: int) -> tuple[int, int, int]:
    """Number and type of the field whose header byte is at `at`, and the position of its value."""
    if header > 15:
        return number + (header >> 4), header & 15, at + 1
    number, at = _integer(data, at + 1)
    return number, header & 15, at


def _list(data: bytes, at: int) -> tuple[int, int, int]:
    header = data[at]
    if header < 0xF0:
        return header >> 4, header & 15, at + 1
    count, at = _varint(data, at + 1)
    return count, header & 15, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _skip(data: bytes, at: int, type: int) -> int:  # long, because it is hot and its loops make no calls
    if type in (_I32, _I64, _I16):
        while data[at] > 127:
            at += 1
        return at + 1
    if type == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if type in (_LIST, _SET):
        count, inner, at = _list(data, at)
        if inner in (_I32, _I64, _I16):
            for _ in range(count):
                while data[at] > 127:
                    at += 1
                at += 1
            return at
        if inner == _BINARY:
            for _ in range(count):
                length = data[at]
                if length < 128:
                    at += 1 + length
                else:
                    length, at = _varint(data, at)
                    at += length
            return at
        for _ in range(count):
            at = _skip_element(data, at, inner)
        return at
    if type == _STRUCT:
        number = 0
        while header := data[at]:
            inner = header & 15
            if inner in (_I32, _I64, _I16) and header > 15:  # inlined, because nearly all skipped fields are integers
                at += 1
                while data[at] > 127:
                    at += 1
                at += 1
                continue
            if inner in (_TRUE, _FALSE) and header > 15:
                at += 1
                continue
            number, inner, at = _field(data, at, header, number)
            at = _skip(data, at, inner)
        return at + 1
    if type in (_TRUE, _FALSE):
        return at
    if type in (_BYTE, _DOUBLE, _UUID):
        return at + {_BYTE: 1, _DOUBLE: 8, _UUID: 16}[type]
    if type == _MAP:
        count, at = _varint(data, at)
        if count:
            types = data[at]
            at += 1
            for _ in range(count):
                at = _skip_element(data, _skip_element(data, at, types >> 4), types & 15)
        return at
    raise IndexError(f"no type {type}")


def _skip_element(data: bytes, at: int, type: int) -> int:
    """As `_skip`, for elements of containers, in which a boolean is one byte; checks the end of the data."""
    if at >= len(data):
        raise IndexError("it ends too soon")
    return at + 1 if type in (_TRUE, _FALSE) else _skip(data, at, type)
