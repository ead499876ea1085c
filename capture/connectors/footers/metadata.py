"""The metadata of a Parquet file as pyarrow has it, with the columns of which pyarrow must not be asked.

A column may be encrypted with a key of its own while the footer is plain. pyarrow ends the process when it is asked for
the metadata of such a column, so they are found first, in the footer's own bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.footers.leaf_types import leaves_of
from capture.connectors.footers.thrift import encrypted_columns
from store.duckdb.lru import LruCache

ENCRYPTED: Final = "it is encrypted, and cannot be read without its key"
"""Reason why a column has no statistics and no values."""

_TAIL: Final = 65_536  # bytes read from the end of a file, enough for most footers
_MAGIC: Final = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_ARROW_SCHEMA: Final = b"ARROW:schema"  # key of a footer's metadata
_KEPT_BYTES: Final = 8 << 20  # of footers whose metadata is kept, which takes several times as much memory


@dataclass(frozen=True)  # no slots: what follows from the metadata is cached
class ParquetMetadata:
    """Metadata of a file, which all who read parts of it share.

    Attributes:
        encrypted: Indexes of the leaf columns that are encrypted; `metadata` aborts the process if asked for a chunk.
        footer: The Thrift bytes it was made from.
    """

    metadata: pq.FileMetaData
    encrypted: frozenset[int]
    footer: bytes

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema that readers of the file see."""
        return self.metadata.schema.to_arrow_schema()

    @cached_property
    def leaves(self) -> Mapping[str, int]:
        """The index of each leaf column by its key, and by its dotted path if that is unique."""
        schema = self.metadata.schema
        leaves = {schema.column(at).path: at for at in range(len(schema))}
        if any("." in path or '"' in path for path in leaves):  # a name with dots or quotes, or a nested column
            with suppress(ValueError):  # Arrow's schema differs from the file's
                columns = leaves_of(self.metadata, self.arrow_schema)
                leaves |= {column.key: column.index for column in columns if column.index is not None}
        return leaves

    @cached_property
    def without_views(self) -> ParquetMetadata:
        """The metadata by which strings are read as plain arrays: views take a fifth longer to read and must be copied
        for Arrow's kernels.

        Some writers store an Arrow schema with views in the footer. It is left out if the types of all other columns
        stay the same.
        """
        given = self.arrow_schema.types
        if not any(map(_is_view, given)):
            return self
        footer = self.footer.replace(_ARROW_SCHEMA, _ARROW_SCHEMA.lower())
        plain = ParquetMetadata(parsed(footer), self.encrypted, footer)
        is_alike = all(a == b or _is_view(a) for a, b in zip(given, plain.arrow_schema.types, strict=True))
        return plain if is_alike else self

    def chunks(self, group: int, columns: Iterable[int]) -> list[Any]:
        """Metadata of some columns of a row group, without those that are encrypted."""
        of_group = self.metadata.row_group(group)
        return [of_group.column(at) for at in columns if at not in self.encrypted]


def _is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))


def read_metadata(file: pa.NativeFile) -> ParquetMetadata:
    """Reads the metadata of a Parquet file; decodes it once for all who read parts of the file one after the other.

    Raises:
        ValueError: The footer is encrypted, damaged, or not there.
        pa.ArrowException: pyarrow cannot read it.
    """
    footer = read_bytes(file)
    found = _decoded.get(footer)
    if found is None:
        found = ParquetMetadata(parsed(footer), encrypted_columns(footer), footer)
        _decoded.put(footer, found, len(footer))
    return found


_decoded: Final[LruCache[bytes, ParquetMetadata]] = LruCache(_KEPT_BYTES)  # by the bytes of the footer


def read_bytes(file: pa.NativeFile) -> bytes:
    """The Thrift bytes of the footer of a Parquet file; errors as of `read_metadata`."""
    footer = footer_bytes(file)
    if footer is None:
        pq.read_metadata(file)  # usually raises a more specific error
        raise ValueError("its footer is not where it should be")
    return footer


def footer_bytes(file: pa.NativeFile) -> bytes | None:
    """The Thrift bytes of a footer; None if the file does not end like a Parquet file.

    Raises:
        ValueError: The footer is encrypted.
    """
    size = file.size()
    start = max(0, size - _TAIL)
    tail: bytes = file.read_at(size - start, start)
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise ValueError("its footer is encrypted, so that nothing of it can be read without a key")
    if tail[-4:] != _MAGIC or length + 12 > size:
        return None
    return tail[-8 - length : -8] if length + 8 <= len(tail) else file.read_at(length, size - 8 - length)


def parsed(footer: bytes) -> pq.FileMetaData:
    """The metadata that the Thrift bytes of a footer encode.

    Raises:
        pa.ArrowException: They are damaged.
    """
    return pq.read_metadata(_as_file(footer))


def schema_in(footer: bytes) -> pa.Schema:
    """The Arrow schema that readers of a file with this footer see; errors as of `parsed`."""
    return pq.read_schema(_as_file(footer))


def _as_file(footer: bytes) -> pa.BufferReader:
    """A file of a footer alone."""
    return pa.BufferReader(b"".join((_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC)))
