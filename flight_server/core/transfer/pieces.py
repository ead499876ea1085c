"""The commands `{"export": {}}` of tickets and `{"import": {}}` of puts, and the rows that carry an export's files."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from flight_server.core.wire.scan_request import parse_json
from store.model.structs import Struct, read
from store.transfer.export import Piece

SCHEMA: Final = pa.schema([("file", pa.string()), ("data", pa.binary())])
"""A row for each piece: the file's path in the export, and its next bytes. The pieces of a file follow each other."""


class _Nothing(Struct):
    """The arguments of both commands: there are none."""


class _Export(Struct):
    export: _Nothing


class _Import(Struct):
    into: _Nothing = msgspec.field(name="import")


def is_export(ticket: bytes) -> bool:
    """True for the ticket of an export.

    Raises:
        InvalidArgument: It has another key, or arguments.
    """
    return _is(ticket, b'"export"', "export", _Export)


def is_import(command: bytes | None) -> bool:
    """True for the command of an import.

    Raises:
        InvalidArgument: It has another key, or arguments.
    """
    return _is(command, b'"import"', "import", _Import)


def _is(data: bytes | None, mark: bytes, key: str, struct: type[Struct]) -> bool:
    if data is None or data[:1] != b"{" or mark not in data:
        return False
    body: Any = parse_json(data, "command")
    if not isinstance(body, dict) or key not in body:
        return False
    read(body, struct, "command")
    return True


def to_batch(piece: Piece) -> pa.RecordBatch:
    """The row of a piece."""
    return pa.record_batch([[piece.file], [piece.data]], schema=SCHEMA)
