"""Reads deletion vectors, each described by a descriptor in the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from capture.connectors.rows.roaring import positions, unframed
from capture.connectors.spi import delete_file, no_delete_files
from capture.connectors.storage.places import Place
from store.model.columns import DELETE_FILE

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES: Final = {letter: value for value, letter in enumerate(_ALPHABET)}
_UUID_LETTERS: Final = 20


def deleted_rows(vector: Mapping[str, Any], table: Place, place_of: Callable[[str], Place]) -> pa.Array:
    """Ascending positions (int64) of the rows that the vector of an add deletes.

    Raises:
        ValueError: The descriptor or the vector is damaged.
        OSError: The file of the vector cannot be read.
    """
    kind, size = vector["storageType"], int(vector["sizeInBytes"])
    if kind == "i":
        data = z85(vector["pathOrInlineDv"])[:size]
    elif kind in ("u", "p"):
        data = _stored(_file(vector, table, place_of), int(vector.get("offset") or 0), size)
    else:
        raise ValueError(f"a deletion vector has the unknown storage type {kind!r}")
    rows = positions(data)
    if len(rows) != vector["cardinality"]:
        raise ValueError(f"a deletion vector has {len(rows)} rows, the log says {vector['cardinality']}")
    return pa.array(rows)


def delete_files(vectors: pa.Array, table: Place, place_of: Callable[[str], Place]) -> pa.Array:
    """The deletion vector of each file, as a list of DELETE_FILE.

    Args:
        vectors: Descriptors, one per file; null for files without a vector.
        place_of: Opens an absolute path.

    Returns:
        Lists with one item, or empty. An inline vector has no path, and its size is that of its bytes.
    """
    if vectors.null_count == len(vectors):
        return no_delete_files(len(vectors))

    def items(vector: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        if vector is None:
            return []
        if vector["storageType"] == "i":
            return [delete_file(None, size_bytes=vector["sizeInBytes"])]
        file = _file(vector, table, place_of)
        return [delete_file(file.name, offset_bytes=vector.get("offset") or 0, size_bytes=vector["sizeInBytes"])]

    return pa.array([items(vector) for vector in vectors.to_pylist()], pa.list_(DELETE_FILE))


def _file(vector: Mapping[str, Any], table: Place, place_of: Callable[[str], Place]) -> Place:
    where: str = vector["pathOrInlineDv"]
    return table.below(relative_path(where)) if vector["storageType"] == "u" else place_of(where)


def identity(vector: Mapping[str, Any] | None) -> str:
    """Text that identifies a vector, empty for None; part of a file's fingerprint."""
    if vector is None:
        return ""
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def relative_path(where: str) -> str:
    """Path of a vector's file within the table, from an optional prefix and an encoded UUID."""
    prefix, coded = where[:-_UUID_LETTERS], where[-_UUID_LETTERS:]
    name = f"deletion_vector_{UUID(bytes=z85(coded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def z85(text: str) -> bytes:
    """Decodes Z85, five letters for four bytes.

    If the length is not a multiple of four, Spark appends zeros, and Rust prefixes the last block with one `#` per
    missing byte, with which a full block cannot begin.

    Raises:
        ValueError: The text is not valid Z85.
    """
    if len(text) % 5 or any(letter not in _VALUES for letter in text):
        raise ValueError("a deletion vector is not valid Z85")
    decoded = bytearray()
    for start in range(0, len(text), 5):
        block = text[start : start + 5]
        missing = len(block) - len(block.lstrip("#")) if start + 5 == len(text) else 0
        number = 0
        for letter in block[missing:]:
            number = number * 85 + _VALUES[letter]
        if missing > 3 or number >= 1 << 8 * (4 - missing):
            raise ValueError("a deletion vector is not valid Z85")
        decoded += number.to_bytes(4 - missing, "big")
    return bytes(decoded)


def _stored(file: Place, offset: int, size: int) -> bytes:
    with file.open() as stream:
        vector = unframed(stream.read_at(size + 8, offset))
    if len(vector) != size:
        raise ValueError("a deletion vector of the wrong length")
    return vector
