"""Arrow tables as HTML in notebooks: the first rows and columns, and the size of the table."""

from __future__ import annotations

import sys
from html import escape
from itertools import islice
from typing import Any, Final

import pyarrow as pa

MAX_ROWS: Final = 50
MAX_COLUMNS: Final = 30
MAX_CHARACTERS: Final = 80  # longest value


def show_tables_as_html() -> None:
    """Registers `html` as IPython's formatter for `pyarrow.Table`, if running inside IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(pa.Table, html)


def html(table: pa.Table) -> str:
    """Renders the first MAX_ROWS rows and MAX_COLUMNS columns of a table as HTML, followed by its size."""
    shown = table.slice(0, MAX_ROWS).select(table.column_names[:MAX_COLUMNS])
    head = "".join(f'<th title="{escape(str(field.type))}">{escape(field.name)}</th>' for field in shown.schema)
    columns = [column.to_pylist() for column in shown.columns]
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in islice(zip(*columns, strict=True), MAX_ROWS))
    size = f"{table.num_rows:,} rows × {table.num_columns} columns"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{size}</p>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + "…"
    align = ' style="text-align:right"' if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return f"<td{align}>{escape(text)}</td>"
