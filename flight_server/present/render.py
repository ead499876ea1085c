"""Tables on standard output: aligned text, JSON, CSV, or an Arrow stream."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from enum import StrEnum
from typing import Any, BinaryIO

import pyarrow as pa


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


def write(data: pa.Table | pa.RecordBatchReader, format: Format, out: BinaryIO | None = None) -> None:
    """Writes the rows in the format asked for, batch by batch where the format allows it."""
    batches = iter(data.to_batches() if isinstance(data, pa.Table) else data)
    # The first batch is read before the first byte is written: a request that fails leaves nothing on stdout.
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
        values = {name: plain(value) for name, value in row.items()}
        out.write(separator + json.dumps(values, ensure_ascii=False, allow_nan=False).encode())
        separator = b",\n"
    out.write(b"\n]\n")


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO) -> None:
    out.write((",".join(map(_csv_field, schema.names)) + "\n").encode())
    for batch in batches:
        for row in batch.to_pylist():
            out.write((",".join(_csv_field(plain(value)) for value in row.values()) + "\n").encode())


def _csv_field(value: Any) -> str:
    """A null is an empty field, an empty string a quoted one: RFC 4180 does not tell them apart by itself."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return '"' + text.replace('"', '""') + '"' if text == "" or re.search(r'[",\r\n]', text) else text


def plain(value: Any) -> Any:
    """A value as JSON has it: times in ISO 8601, bytes in base64, floats that JSON lacks by name."""
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
        return {str(name): plain(item) for name, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


# Text.


def text_of(value: Any) -> str:
    """A value in a cell of a text table, for people: nothing for a null, no digits that nobody reads."""
    if value is None:
        return ""
    if isinstance(value, float) and (value == 0 or 1e-3 <= abs(value) < 1e15):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def harmless(text: str) -> str:
    """Text without control characters, which could move the cursor of a terminal or break a line in two."""
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text
    )


def write_text(
    headers: Sequence[str], rows: Sequence[Sequence[str]], out: BinaryIO | None = None, right: Sequence[bool] = ()
) -> None:
    """A table: folded to the window on a terminal, else a line a row and nothing cut short."""
    right = [*right, *[False] * (len(headers) - len(right))]
    safe = [[harmless(cell) for cell in row] for row in rows]
    if out is None and sys.stdout.isatty():
        _write_rich(headers, safe, right)
        return
    target = out or sys.stdout.buffer
    for line in _aligned([list(headers), *safe], right):
        target.write(line.encode() + b"\n")
    target.flush()


def _write_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for header, on_the_right in zip(headers, right, strict=True):
        table.add_column(Text(header), justify="right" if on_the_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _aligned(rows: list[list[str]], right: Sequence[bool]) -> Iterator[str]:
    widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for cell, width, on_the_right in zip(row, widths, right, strict=True):
            blank = " " * (width - _width(cell))
            cells.append(blank + cell if on_the_right else cell + blank)
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _numeric(schema: pa.Schema) -> list[bool]:
    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in schema.types]
