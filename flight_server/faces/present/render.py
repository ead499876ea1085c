"""Rows on standard output: text for people, JSON, CSV, or an Arrow stream."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from enum import StrEnum
from typing import Any, BinaryIO, Final

import pyarrow as pa

from flight_server.core.views.numbers import number
from flight_server.faces.present.text import write_text

IDS: Final = frozenset({"snapshot_id", "parent_snapshot_id", "distribution_snapshot_id", "sequence_number"})
"""Ids of 64 bits, which are texts in JSON: readers that hold numbers as floats round what is above 2^53."""
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(
    r"[+-](?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|Infinity"
    r"|\d{4,}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?)"
)  # or a timestamp whose year has more than four digits


class Format(StrEnum):
    """Formats of a printed table."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


def write(data: pa.Table | pa.RecordBatchReader, format: Format, out: BinaryIO | None = None) -> None:
    """Writes rows in a format, batch by batch if the format allows it."""
    batches = iter(data.to_batches() if isinstance(data, pa.Table) else data)
    # The first batch is read before the first byte is written, so that a failed request writes nothing.
    first = next(batches, None)
    stream = batches if first is None else itertools.chain([first], batches)
    if format is Format.TABLE:
        rows = [[text_of(value) for value in row.values()] for batch in stream for row in batch.to_pylist()]
        write_text(data.schema.names, rows, out, _numeric(data.schema))
        return
    target = out or sys.stdout.buffer
    if format is Format.ARROW:
        _write_arrow(data.schema, stream, target)
    elif format is Format.JSON:
        _write_json(stream, target)
    else:
        _write_csv(data.schema, stream, target)
    target.flush()


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO) -> None:
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_json(batches: Iterable[pa.RecordBatch], out: BinaryIO) -> None:
    out.write(b"[")
    separator = b"\n"
    for row in (row for batch in batches for row in batch.to_pylist()):
        out.write(separator + json.dumps(plain(row), ensure_ascii=False, allow_nan=False).encode())
        separator = b",\n"
    out.write(b"\n]\n")


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO) -> None:
    out.write((",".join(map(_csv_field, schema.names)) + "\n").encode())
    for batch in batches:
        for row in batch.to_pylist():
            out.write((",".join(_csv_field(plain(value)) for value in row.values()) + "\n").encode())


def _csv_field(value: Any) -> str:
    """A field of RFC 4180: nothing for a null, two quotes for an empty string.

    Spreadsheets evaluate text that begins like a formula, so such text gets a leading apostrophe, which they hide.
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        text = "'" + value
    return '"' + text.replace('"', '""') + '"' if text == "" or re.search(r'[",\r\n]', text) else text


def plain(value: Any) -> Any:
    """A value for JSON: times in ISO 8601, bytes in base64, NaN and infinities by name, ids of `IDS` as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _id(item) if name in IDS else plain(item) for name, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _id(value: Any) -> Any:
    return str(value) if isinstance(value, int) else plain(value)


# Text.


def text_of(value: Any) -> str:
    """A value for a cell of a text table: empty for a null, numbers rounded for people, but not to whole ones."""
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value, 9, exact=True, separator="")
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _numeric(schema: pa.Schema) -> list[bool]:
    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in schema.types]
