"""Databases of the layouts of each release, as its server left them, and what was read of them then.

A release with another layout adds a pair of files: `layout<N>.tar.xz`, a database, its write-ahead log and its
segments, and `layout<N>.json.xz`, every flight as its own code read it. Make them with the code of that layout, on a
database that has every kind of record: `python -m tests.layouts stats.duckdb`. They never change afterwards.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final

from flight_server.core.actions import functions
from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.config import Settings
from flight_server.core.wire import tickets
from flight_server.process.parts import parts
from store.model.schemas import FLIGHTS

HOME: Final = Path(__file__).parent
LAYOUTS: Final = sorted(int(file.name.removeprefix("layout").split(".")[0]) for file in HOME.glob("layout*.tar.xz"))

_OF_THE_SERVER: Final = {  # not what is stored: of the code, or of the process
    "sys.engines",
    "sys.functions",
    "sys.flights",
    "sys.replication",
    "sys.changes",
    "sys.relationships",
    "adbc.statistics",
}
_FORMS: Final[dict[str, dict[str, Any]]] = {  # how each flight of statistics is read
    "stored": {},
    "current": {"snapshot": "current"},
    "current or stale": {"snapshot": "current", "allow_stale": True},
    "at 3 or stale": {"snapshot": 3, "allow_stale": True},
}

Rows = list[dict[str, Any]]


def unpack(layout: int, folder: Path) -> Path:
    """Writes the database of a layout into a folder, and returns its path."""
    with tarfile.open(HOME / f"layout{layout}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "stats.duckdb"


@cache
def expected(layout: int) -> dict[str, Rows]:
    """The rows of each flight, in each form, as the code of the layout read them."""
    found: dict[str, Rows] = json.loads(lzma.decompress((HOME / f"layout{layout}.json.xz").read_bytes()))
    return found


@contextmanager
def serving(path: Path) -> Iterator[App]:
    """An app on a database, which looks at no lake."""
    app = App(Settings(db=path), functions, parts=parts)
    try:
        yield app
    finally:
        app.close()


def readings(app: App, names: list[str] | None = None) -> dict[str, Rows]:
    """The rows of each flight, in each form, as values of JSON."""
    found = {}
    for name in names or sorted(FLIGHTS.keys() - _OF_THE_SERVER):
        for form, fields in (_FORMS if name.startswith("stats.") else {"stored": {}}).items():
            command = json.dumps({"table": name} | fields).encode()
            rows = app.scanner.table(tickets.of_ticket(command), ANONYMOUS)
            found[f"{name}, {form}"] = [_plain(row) for row in rows.to_pylist()]
    return found


def _plain(value: Any) -> Any:
    """A value as JSON has it; of bytes, their digest."""
    if isinstance(value, bytes):
        return f"sha256:{hashlib.sha256(value).hexdigest()}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
