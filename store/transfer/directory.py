"""The directory that an export is written to, and the export of a database file that no server uses."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from store.duckdb.backup import copy_files
from store.duckdb.opening import connect, locked
from store.duckdb.segment_location import of_file
from store.model.errors import InvalidArgument
from store.transfer.export import PIECE_BYTES, Piece, export
from store.transfer.manifest import MANIFEST, Manifest, parse

_WORK: Final = ".copy"


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory for an export, of its user alone; removed with its content if the block fails.

    Raises:
        InvalidArgument: Something has this name, or the directory cannot be created.
    """
    check_new(path)
    try:
        path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise InvalidArgument(f'"{path}" cannot be created: {error.strerror}', code="EXPORT") from None
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def check_new(path: Path) -> None:
    """Raises InvalidArgument if something has this name."""
    if os.path.lexists(path):
        raise InvalidArgument(f'"{path}" exists', code="EXPORT", hint="name a new directory")


def write(pieces: Iterable[Piece], directory: Path) -> Manifest:
    """Writes the files of an export, and syncs them; the manifest gets its name when all others are on disk.

    Raises:
        InvalidArgument: A file differs from what the manifest says, or there is no manifest.
        OSError: A file cannot be written.
    """
    digests: dict[str, str] = {}
    documents: list[bytes] = []
    for name, parts in _files(pieces):
        if name == MANIFEST:
            documents += parts
            continue
        target = directory / name
        target.parent.mkdir(mode=0o700)
        with target.open("wb") as file:
            digests[name] = _copy(parts, file)
    manifest = parse(b"".join(documents), "the answer")
    for name, entry in manifest.files.items():
        if digests.get(name) != entry.sha256:
            raise InvalidArgument(f"{name} did not come as it was sent", code="EXPORT", hint="export again")
    draft = directory / f".{MANIFEST}"
    with draft.open("wb") as file:
        _copy(documents, file)
    draft.replace(directory / MANIFEST)
    return manifest


def _files(pieces: Iterable[Piece]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and content of each file; the content is read before the next file is asked for."""
    rest = iter(pieces)
    first = next(rest, None)

    def content(name: str) -> Iterator[bytes]:
        nonlocal first
        while first is not None and first.file == name:
            yield first.data
            first = next(rest, None)

    while first is not None:
        yield first.file, content(first.file)


def _copy(parts: Iterable[bytes], file: IO[bytes]) -> str:
    """Writes and syncs a file; returns its digest."""
    digest = hashlib.sha256()
    for part in parts:
        file.write(part)
        digest.update(part)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def read(manifest: Manifest, directory: Path) -> Iterator[Piece]:
    """The pieces of an export in a directory: the manifest, then the files."""
    yield Piece(MANIFEST, manifest.to_bytes())
    for name in manifest.files:
        with (directory / name).open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield Piece(name, data)


def export_file(database: Path, directory: Path) -> Manifest:
    """Exports a database that no process uses, of any layout: a copy of it, which is upgraded, so that the file
    and its directory stay as they are.

    Args:
        directory: A new directory.

    Raises:
        InvalidArgument: There is no such database, a process uses it, or the directory exists.
    """
    if not database.is_file():
        raise InvalidArgument(f'there is no database "{database}"', code="DATABASE")
    with new_directory(directory) as target:
        work = target / _WORK
        work.mkdir(mode=0o700)
        copy = work / database.name
        with locked(database):
            copy_files(str(database), copy)
        with connect(str(copy), is_cache=True) as connection:
            manifest = write(export(connection, of_file(connection, database)), target)
        shutil.rmtree(work)
    return manifest
