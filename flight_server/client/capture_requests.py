"""Capture requests for a table and its columns, made of rows of `information_schema.columns`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

TABLE_KINDS: Final = frozenset({"ROW_COUNT", "FILE_COUNT", "TOTAL_BYTES"})  # the rest are kinds of a column
CONTAINERS: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")  # no statistics of their own: their leaves are columns

Row = Mapping[str, Any]


def requests_for(
    common: Mapping[str, Any], rows: Sequence[Row], columns: Sequence[str] | None, kinds: Sequence[str] | None,
    sampling: str | Mapping[str, Any] | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Requests for the table, then for each of its columns.

    Args:
        common: The part that all have: `table`, `snapshot`, `mode`, perhaps `partitions`.
        rows: The columns of the table, each with column_name, column_id and data_type.
        columns: Names of columns, in any case, or `#<column_id>`; None means each that can have statistics.
        kinds: Such as MIN_MAX or NDV; None means any.
        sampling: Of the columns.

    Returns:
        One request for the table and one for each column; the table alone where no kind is a column's.

    Raises:
        pa.ArrowKeyError: UNKNOWN_COLUMN: The table does not have the column.
        pa.ArrowInvalid: AMBIGUOUS_COLUMN: Several columns have the name.
    """
    chosen = None if columns is None else {pick_column(str(common["table"]), name, rows): name for name in columns}
    of_columns = None if kinds is None else [kind for kind in kinds if kind not in TABLE_KINDS]
    selected = {} if chosen is None else {"column_selectors": [_selector(i, rows) for i in chosen]}
    requests: list[dict[str, Any]] = [{**common, "target": {"kind": "TABLE"}} | selected]
    if of_columns == []:
        return requests
    for row in rows:
        if row["column_id"] in chosen if chosen is not None else not _is_container(row["data_type"]):
            more: dict[str, Any] = {"kinds": of_columns} if of_columns else {}
            if sampling is not None:
                more["sampling"] = sampling
            requests.append({**common, "target": {"kind": "COLUMN", "column_id": row["column_id"]}} | more)
    return requests


def pick_column(table: str, column: str, rows: Sequence[Row]) -> int:
    """Picks a column by its name, in any case unless several differ by it alone, or by `#<column_id>`.

    Args:
        table: Full name of the table, for the error.
        column: The name.
        rows: The columns of the table, each with column_name and column_id.

    Returns:
        The column id.

    Raises:
        pa.ArrowKeyError: UNKNOWN_COLUMN: The table does not have the column.
        pa.ArrowInvalid: AMBIGUOUS_COLUMN: Several columns have the name.
    """
    names = [row["column_name"] for row in rows]
    ids = {f"#{row['column_id']}": row["column_id"] for row in rows}
    if column in ids and column not in names:
        return int(ids[column])
    name = _known_as(column, dict.fromkeys(names))
    found = [row["column_id"] for row in rows if row["column_name"] == name]
    if not found:
        raise unknown_column(table, column, dict.fromkeys(names))
    if len(found) > 1:
        choice = " or ".join(f"#{column_id}" for column_id in found)
        raise pa.ArrowInvalid(
            f'[AMBIGUOUS_COLUMN] several columns of "{table}" are written "{name}"; name one by its id: {choice}'
        )
    return int(found[0])


def unknown_column(table: str, column: str, known: Iterable[str]) -> pa.ArrowKeyError:
    """Makes the error for a column that a table does not have.

    Args:
        table: Full name of the table.
        column: The name as given.
        known: The names that it has.

    Returns:
        The error, with code UNKNOWN_COLUMN.
    """
    return pa.ArrowKeyError(f'[UNKNOWN_COLUMN] table "{table}" has no column "{column}"; it has {", ".join(known)}')


def _selector(column_id: int, rows: Sequence[Row]) -> str:
    """The name of a column if it is unique, else its id."""
    (name,) = (row["column_name"] for row in rows if row["column_id"] == column_id)
    alone = sum(row["column_name"] == name for row in rows) == 1 and not name.startswith("#")
    return name if alone else f"#{column_id}"


def _known_as(name: str, known: Iterable[str]) -> str:
    """The one column of this name, its case ignored unless several differ by it alone; else the name as given."""
    folded = [other for other in known if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else name


def _is_container(data_type: str | None) -> bool:
    return re.split(r"[<(\s]", (data_type or "").upper(), maxsplit=1)[0] in CONTAINERS
