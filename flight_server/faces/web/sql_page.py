"""The data of the page that runs statements, as plain values and as CSV."""

from __future__ import annotations

import time
from typing import Any, Final

import pyarrow as pa

from flight_server.core.views.reader import Reader
from store.model.errors import InvalidArgument
from store.model.schemas import FLIGHTS

ANSWERED: Final = 1_000  # rows of an answer to SQL
MOST_CSV: Final = 100_000  # rows of an answer as CSV
ANSWERED_A_PAGE: Final = 200
STATEMENT: Final = 10_000  # characters of a statement
FLIGHT_NAMES: Final = tuple(FLIGHTS)
EXAMPLES: Final = (
    "SHOW TABLES",
    "SELECT table_name, sum(row_count) AS live_rows FROM stats.tables GROUP BY table_name ORDER BY live_rows DESC",
    "SELECT table_name, column_name, ndv, min, max FROM stats.columns WHERE null_count = row_count",
)


def answered(statement: str) -> dict[str, Any]:
    """A statement that has no answer yet."""
    return {"statement": statement, "columns": [], "rows": [], "truncated": False, "elapsed_ms": 0}


def csv(reader: Reader, statement: str) -> bytes:
    """The answer of a statement as CSV, of at most MOST_CSV rows; lists and structs as texts.

    Raises:
        StatflightError: The statement is refused, or too long.
    """
    from pyarrow import csv as arrow_csv

    found = reader.sql(_short(statement)).slice(0, MOST_CSV)
    flat = [
        pa.array(map(str, column.to_pylist()), pa.string()) if pa.types.is_nested(column.type) else column
        for column in found.columns
    ]
    out = pa.BufferOutputStream()
    arrow_csv.write_csv(pa.table(flat, found.column_names), out)
    return bytes(out.getvalue())


def _short(statement: str) -> str:
    if len(statement) > STATEMENT:
        raise InvalidArgument(f"the statement has more than {STATEMENT:,} characters")
    return statement


def sql(reader: Reader, statement: str) -> dict[str, Any]:
    """A statement with its answer, of at most ANSWERED rows; an empty one has none.

    Raises:
        StatflightError: The statement is refused, or too long.
    """
    if not statement:
        return answered(statement)
    started = time.perf_counter()
    found = reader.sql(_short(statement))
    rows = [list(row.values()) for row in found.slice(0, ANSWERED).to_pylist()]
    return answered(statement) | {
        "columns": found.column_names,
        "rows": rows,
        "truncated": len(found) > ANSWERED,
        "elapsed_ms": round(1000 * (time.perf_counter() - started)),
    }
