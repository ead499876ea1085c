"""Imports into a server: the files of an export are checked again, then stored in one transaction."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from flight_server.core.auth.principal import Principal
from flight_server.core.control.access import Access
from flight_server.core.transfer.pieces import SCHEMA
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.errors import Cancelled, InvalidArgument, PermissionDenied, ResourceExhausted
from store.transfer.export import Piece
from store.transfer.load import check_empty, load
from store.transfer.manifest import MANIFEST, Manifest, check_file, parse, refusal

_WHAT = "what is sent"


class Imports:
    """Imports into one database."""

    def __init__(self, database: Database, catalog: Catalog, access: Access):
        self._database, self._catalog, self._access = database, catalog, access

    def run(self, caller: Principal, reader: Any, is_cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Stores an export, as a whole or not at all.

        Args:
            reader: Flight's reader of the put.

        Returns:
            The answer: the number of records.

        Raises:
            InvalidArgument: The database is not empty, or what is sent is no whole export.
            PermissionDenied: The caller lacks the scopes `admin` and `stats.write`, or is limited to some tables.
            ResourceExhausted: The disk has no room for the files.
        """
        self._access.require(caller, "admin")
        self._access.require(caller, "stats.write")
        if not caller.sees_all:
            raise PermissionDenied("this needs a token for all tables", hint="its tables are limited")
        with self._database.reading() as cursor:
            check_empty(cursor)
        with contextlib.ExitStack() as opened:
            pieces = _pieces(reader, is_cancelled)
            manifest, files = _receive(pieces, self._database.directory, opened)
            for name in manifest.files:
                check_file(manifest, name, files[name])
            by_folder = {name.rpartition("/")[0]: file for name, file in files.items()}
            records = self._database.write(lambda c: load(c, self._catalog, by_folder), is_cancelled)
        return {"records": records, "tables": len(self._catalog.tables())}


def _pieces(reader: Any, is_cancelled: Callable[[], bool]) -> Iterator[Piece]:
    if not reader.schema.equals(SCHEMA):
        raise InvalidArgument("import: the rows must be pieces of files, with the columns file and data")
    for chunk in reader:
        if is_cancelled():
            raise Cancelled("the caller disconnected")
        for file, data in zip(chunk.data["file"].to_pylist(), chunk.data["data"], strict=True):
            yield Piece(file, data.as_buffer().to_pybytes() if data.is_valid else b"")


def _receive(
    pieces: Iterable[Piece], directory: Path | None, opened: contextlib.ExitStack
) -> tuple[Manifest, dict[str, IO[bytes]]]:
    """The manifest, and the files below a directory without names, so that nothing is left of them."""
    document = b""
    manifest: Manifest | None = None
    files: dict[str, IO[bytes]] = {}
    for piece in pieces:
        if manifest is None and piece.file == MANIFEST:
            document += piece.data
            continue
        if manifest is None:
            manifest = parse(document, _WHAT)
        if piece.file not in manifest.files:
            raise refusal(f"{_WHAT} has a file that {MANIFEST} does not name: {piece.file!s:.100}")
        try:
            if piece.file not in files:
                files[piece.file] = opened.enter_context(tempfile.TemporaryFile(dir=directory))  # noqa: SIM115  closed with `opened`
            files[piece.file].write(piece.data)
        except OSError as error:
            raise ResourceExhausted(f"the files of the import cannot be written: {error.strerror}") from None
    if manifest is None:
        manifest = parse(document, _WHAT)
    if lacking := sorted(set(manifest.files).difference(files)):
        raise refusal(f"{_WHAT} lacks {lacking[0]}", "send all files")
    for file in files.values():
        file.flush()
        file.seek(0)
    return manifest, files
