"""Suggests rules that hold for the captured history of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction

from flight_server.core.views import history
from flight_server.core.views.reader import Reader, read_table
from flight_server.core.views.table_summary import Row
from store.model import figures
from store.model.names import quote
from store.model.statistics import SIDES

ALMOST_ALL = Fraction(99, 100)  # share of distinct values; the NDV estimate of a key is not below it


def rules_for(reader: Reader, table: str) -> Iterator[tuple[str, str | None, str]]:
    """Level, column (None for the table) and text of each rule that every captured snapshot meets."""
    tables = history.table_rows(reader, table)
    counts = [row["row_count"] for row in tables if row["row_count"] is not None]
    if counts:
        yield "fail", None, "row_count > 0" if min(counts) else "row_count >= 0"
        if counts[-1] >= 100:
            yield "warn", None, f"row_count >= {counts[-1] // 2}"
    columns: dict[int, list[Row]] = {}
    for row in history.in_order(reader, table, read_table(reader, "stats.columns", table).to_pylist()):
        columns.setdefault(row["column_id"], []).append(row)
    for rows in columns.values():
        if name := rows[-1]["column_name"]:
            yield from ((level, name, text) for level, text in _for_column(rows))


def _for_column(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Level and text of each rule that the stored rows of a column meet."""
    yield from _about_nulls(rows)
    if _looks_like_key(rows):
        yield "warn", "distinct_fraction >= 0.95"
    if _is_never_negative(rows):
        yield "fail", "min >= 0"


def _about_nulls(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Level and text of a rule about the share of nulls; none for a column of mostly nulls."""
    shares = [
        Fraction(row["null_count"], row["row_count"])
        for row in rows
        if row["null_count"] is not None and row["row_count"]
    ]
    worst = max(shares, default=None)
    if worst == 0:
        yield "fail", "null_fraction <= 0"
    elif worst is not None and worst <= Fraction(1, 2):
        yield "warn", f"null_fraction <= {min(float(worst) * 1.5, 1.0):.2g}"


def _looks_like_key(rows: list[Row]) -> bool:
    """True if nearly all values are distinct in every row with enough of them."""
    counted = [(row["ndv"], figures.values(row) or 0) for row in rows if row["ndv"] is not None]
    filled = [(ndv, values) for ndv, values in counted if values >= 20]
    return bool(filled) and all(Fraction(ndv) >= ALMOST_ALL * values for ndv, values in filled)


def _is_never_negative(rows: list[Row]) -> bool:
    """True for a column of numbers whose known minima all are numbers from zero on."""
    if (rows[-1]["logical_type"] or "").partition("(")[0] not in ("INT", "DECIMAL", "FLOAT", "DOUBLE"):
        return False
    lows = [low for row in rows if (low := row[SIDES[0]]) is not None]
    return bool(lows) and "NaN" not in lows and not any(low.startswith("-") for low in lows)


def to_toml(reader: Reader, table: str) -> str:
    """The suggested rules of a table as `[[rule]]` tables."""
    entries = []
    for level, column, text in rules_for(reader, table):
        named = quote(column) if column is not None and "*" in column else column
        about = f"columns = {_quoted(named)}\n" if named is not None else ""
        entries.append(f'[[rule]]\ntable = {_quoted(table)}\n{about}expect = "{text}"\nlevel = "{level}"\n')
    return "\n".join(entries)


def _quoted(text: str) -> str:
    """A basic string of TOML; JSON's escapes are among TOML's, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
