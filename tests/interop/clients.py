"""Third-party clients run against a server, and the blocks of CLIENTS.md that they run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

import flight_server
from tests.flight_server.live_server import LiveServer, serving

HERE = Path(__file__).parent
_DOCUMENT = Path(flight_server.__file__).with_name("CLIENTS.md").read_text(encoding="utf-8")
DOOR = "http://127.0.0.1:8816/iceberg"  # the catalog's address in the document
_KEY = {"table_catalog": "lake", "table_schema": "sales", "table_name": "orders", "snapshot_id": 1}
_CAPTURED = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)


def block(language: str) -> str:
    """The block of CLIENTS.md in a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", _DOCUMENT, re.DOTALL | re.MULTILINE)
    return str(text)


@contextmanager
def served(directory: Path, *flags: object) -> Iterator[LiveServer]:
    """A server with statistics of one table."""
    columns = [
        _KEY | {"column_id": number, "column_name": name, "ndv": ndv, "captured_at": _CAPTURED}
        for number, (name, ndv) in enumerate([("id", 1000.0), ("region", 3.0)], 1)
    ]
    tables = [_KEY | {"row_count": 1000, "captured_at": _CAPTURED}]
    files = [_KEY | {"file_path": "a.parquet", "row_count": 1000, "equality_field_ids": [1, 2]}]
    with serving(directory, *flags) as server:
        with server.connect() as client:
            client.put("stats.columns", pa.Table.from_pylist(columns))
            client.put("stats.tables", pa.Table.from_pylist(tables))
            client.put("stats.files", pa.Table.from_pylist(files))
        yield server
