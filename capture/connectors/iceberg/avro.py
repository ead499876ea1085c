"""Opens the Avro files of a table's metadata.

pyiceberg resolves the schema of each file anew, which takes longer than to read a small one. All manifests of a writer
have the same, so what it means for their reading is kept by its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import InputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from capture.connectors.iceberg.content_stats import Maps, with_content_stats

_SCHEMAS: Final = 64  # kept
_DATA_FILE_ID: Final = 2


class OpenedManifest(AvroFile[Any]):
    """A manifest, whose entries are lists in the order of the v3 schema, and so are the records of their files, with
    `content_stats` as one more value where the manifest has it.

    Attributes:
        typed: From the value of `content_stats` to its metrics; None if the manifest does not have it.
    """

    typed: Callable[[Any], Maps] | None

    def __enter__(self) -> OpenedManifest:
        self.reader, self.typed = _entries(_opened(self))
        return self


class _ManifestList(AvroFile[ManifestFile]):
    def __enter__(self) -> _ManifestList:
        self.reader = _lists(_opened(self))
        return self


def manifest_list(file: InputFile) -> list[ManifestFile]:
    """The manifests of a snapshot."""
    with _ManifestList(file) as reader:
        return list(reader)


def manifest_of(file: InputFile, path: str) -> ManifestFile:
    """The entry that a manifest list of format 1 would have of a manifest.

    Args:
        path: Its path in the metadata.
    """
    with OpenedManifest(file) as reader:
        spec_id = int(reader.header.meta.get("partition-spec-id", "0"))
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=len(file),
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
    )


def _opened(file: AvroFile[Any]) -> str:
    """Reads a file and its header; returns the text of its schema."""
    with file.input_file.open() as source:
        file.decoder = new_decoder(source.read())
    file.header = file._read_header()
    text = file.header.meta.get("avro.schema")
    if text is None:
        raise ValueError("no schema in the header of an Avro file")
    return text


@lru_cache(_SCHEMAS)
def _entries(text: str) -> tuple[Reader, Callable[[Any], Maps] | None]:
    schema = _schema(text)
    wanted, typed = with_content_stats(MANIFEST_ENTRY_SCHEMAS[3], schema, _DATA_FILE_ID)
    return resolve_reader(schema, wanted, {-1: _record, _DATA_FILE_ID: _record}), typed


@lru_cache(_SCHEMAS)
def _lists(text: str) -> Reader:
    return resolve_reader(
        _schema(text),
        MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestFile, 508: PartitionFieldSummary},
        {517: ManifestContent},
    )


def _schema(text: str) -> Schema:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(text))


def _record(*values: Any) -> list[Any]:
    """A record as a list, which is much cheaper than pyiceberg's classes."""
    return list(values)
