"""The manifest of an export: versions, and of each file its rows, bytes and digest.

It is the last file written, so that an export without one is not whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from store.duckdb.layout import VERSION
from store.model.errors import InvalidArgument, first_line
from store.transfer.contents import FOLDERS, current_schemas

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
FILE: Final = "part-0.parquet"  # the only one of a folder
_READ_BYTES: Final = 1 << 20


class FileEntry(msgspec.Struct, frozen=True):
    """A file of an export."""

    rows: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The manifest: `format` of the export, versions of what wrote it, and its files by path."""

    format: int
    statflight: str
    layout: int
    exported_at: datetime
    files: dict[str, FileEntry]

    def to_bytes(self) -> bytes:
        """The JSON document."""
        return json.dumps(msgspec.to_builtins(self), indent=1).encode() + b"\n"


def path_of(folder: str) -> str:
    """Path of the file of a folder, from the root of an export."""
    return f"{folder}/{FILE}"


def refusal(reason: str, hint: str = "export again") -> InvalidArgument:
    """The error of what cannot be imported."""
    return InvalidArgument(f"import: {reason}", code="IMPORT", hint=hint)


def parse(data: bytes, what: str) -> Manifest:
    """The manifest in a document.

    Args:
        what: Name of the export, for errors.

    Raises:
        InvalidArgument: It is no manifest, or of a newer version.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusal(f"{what}: {MANIFEST} is not the manifest of an export ({error})") from None
    if manifest.format > FORMAT or manifest.layout > VERSION:
        raise refusal(
            f"{what} was written by statflight {manifest.statflight}: layout {manifest.layout} and format"
            f" {manifest.format}, this one reads layout {VERSION} and format {FORMAT}",
            "import it with that version or a newer one",
        )
    expected, given = {path_of(folder) for folder in FOLDERS}, set(manifest.files)
    if lacking := sorted(expected - given):
        raise refusal(f"{what}: {MANIFEST} does not name {lacking[0]}")
    if strange := sorted(given - expected):
        raise refusal(f"{what}: {MANIFEST} names {strange[0]}, which is not a file of an export")
    return manifest


def check_directory(directory: Path) -> Manifest:
    """Checks all files of an export; returns its manifest.

    Raises:
        InvalidArgument: There is no such directory, it is not a whole export, or one of its files is damaged.
    """
    if not directory.is_dir():
        raise refusal(f'there is no directory "{directory}"', "name one that `statflight export` has written")
    path = directory / MANIFEST
    if not path.is_file():
        raise refusal(
            f'"{directory}" has no {MANIFEST}: it is not an export, or one that did not end',
            "name one that `statflight export` has written to its end, or export again",
        )
    manifest = parse(path.read_bytes(), f'"{directory}"')
    for name in manifest.files:
        file = directory / name
        if not file.is_file():
            raise refusal(f'"{directory}" lacks {name}')
        with file.open("rb") as opened:
            check_file(manifest, name, opened)
    return manifest


def check_file(manifest: Manifest, name: str, file: IO[bytes]) -> None:
    """Checks a file of an export: its columns, then its rows and digest.

    Args:
        name: Its path in the export.
        file: The file, read from its begin.

    Raises:
        InvalidArgument: It is not what the manifest says, or has other columns.
    """
    try:
        metadata = pq.ParquetFile(file)
        schema, rows = metadata.schema_arrow, metadata.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise refusal(f"{name} is damaged: {first_line(error)}") from None
    _check_columns(name, schema, may_lack=manifest.layout < VERSION)
    entry = manifest.files[name]
    if rows != entry.rows:
        raise refusal(f"{name} has {rows} rows, {MANIFEST} says {entry.rows}")
    file.seek(0)
    digest, size = _digest(lambda: file.read(_READ_BYTES))
    if (digest, size) != (entry.sha256, entry.bytes):
        raise refusal(f"{name} is not the file that was exported: it has another content")


def _check_columns(name: str, schema: pa.Schema, *, may_lack: bool) -> None:
    """Refuses other columns than those of this layout; one of an earlier layout may lack those that were added."""
    expected = current_schemas()[name.rpartition("/")[0]]
    lacking = [column for column in expected.names if schema.get_field_index(column) < 0]
    if lacking and not may_lack:
        raise refusal(f'{name} lacks the column "{lacking[0]}"')
    for column in schema:
        at = expected.get_field_index(column.name)
        if at < 0:
            raise refusal(f'{name} has a column "{column.name}", which this layout does not have')
        if column.type != expected.field(at).type:
            raise refusal(
                f'{name}: column "{column.name}" has the type {column.type}; must be {expected.field(at).type}'
            )


def _digest(read: Callable[[], bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while data := read():
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size
