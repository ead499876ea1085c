"""Capture requests for a table and its columns, built from rows of `information_schema.columns`."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

TABLE_KINDS: Final = frozenset({"ROW_COUNT", "FILE_COUNT", "TOTAL_BYTES"})  # other kinds are statistics of columns
CONTAINERS: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")  # no statistics of their own: their leaves are columns

Row = Mapping[str, Any]


def requests_for(
    common: Mapping[str, Any],
    rows: Sequence[Row],
    columns: Sequence[str] | None,
    kinds: Sequence[str] | None,
    sampling: str | Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Requests for the table, then for each of its columns.

    Args:
        common: Fields of all requests: `table`, `snapshot`, `mode`, optionally `partitions`.
        rows: The columns of the table, each with column_name, column_id and data_type.
        columns: Names of columns, case-insensitive, or `#<column_id>`; None for all that can have statistics.
        kinds: Kinds of statistics, such as MIN_MAX or NDV; None for all.
        sampling: Sampling of the columns; None for none.

    Returns:
        One request for the table and one for each column; only that for the table if no kind is for columns.

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


def new_among(requests: Iterable[dict[str, Any]], before: Iterable[Row]) -> list[dict[str, Any]]:
    """The requests for tables and columns that are not among those of `before`."""
    known = {(one["table"], one["target"].get("column_id")) for one in before}
    return [one for one in requests if (one["table"], one["target"].get("column_id")) not in known]


def without_missing(
    outcomes: Sequence[dict[str, Any]], snapshot: str | int, columns: Callable[[str], Container[int]]
) -> list[dict[str, Any]]:
    """The outcomes for all columns of tables, without those of columns that the snapshot does not have: the columns
    asked for were the last known ones, which an older snapshot, or one that the capture found, may lack.

    Args:
        snapshot: "current", an id, or "all".
        columns: Reads the ids of a table's columns as known now; called only if the current snapshot lacks one.
    """

    def is_missing(one: Row) -> bool:
        return one["outcome"] not in ("CAPTURED", "QUEUED") and "no column with id" in (one.get("detail") or "")

    tables = {one["table"] for one in outcomes if is_missing(one)} if snapshot == "current" else ()
    known = {table: columns(table) for table in tables}
    return [one for one in outcomes if not is_missing(one) or one["target"]["column_id"] in known.get(one["table"], ())]


def pick_column(table: str, column: str, rows: Sequence[Row]) -> int:
    """The id of a column by `#<column_id>` or name, which is case-insensitive unless several columns differ only by
    case.

    Args:
        table: Full name of the table, for messages.
        rows: The columns of the table, each with column_name and column_id.

    Raises:
        pa.ArrowKeyError: UNKNOWN_COLUMN: The table does not have the column.
        pa.ArrowInvalid: AMBIGUOUS_COLUMN: Several columns have the name.
    """
    names = [row["column_name"] for row in rows]
    ids = {f"#{row['column_id']}": row["column_id"] for row in rows}
    if column in ids and column not in names:
        return int(ids[column])
    name = _known_as(column, dict.fromkeys(names))
    matching = [row["column_id"] for row in rows if row["column_name"] == name]
    if not matching:
        raise unknown_column(table, column, dict.fromkeys(names))
    if len(matching) > 1:
        choice = " or ".join(f"#{column_id}" for column_id in matching)
        raise pa.ArrowInvalid(
            f'[AMBIGUOUS_COLUMN] several columns of "{table}" are written "{name}"; name one by its id: {choice}'
        )
    return int(matching[0])


def unknown_column(table: str, column: str, known: Iterable[str]) -> pa.ArrowKeyError:
    """The error for a column that does not exist among the `known` ones, with code UNKNOWN_COLUMN."""
    return pa.ArrowKeyError(f'[UNKNOWN_COLUMN] table "{table}" has no column "{column}"; it has {", ".join(known)}')


def _selector(column_id: int, rows: Sequence[Row]) -> str:
    """The name of a column if it is unique, else its id."""
    (name,) = (row["column_name"] for row in rows if row["column_id"] == column_id)
    alone = sum(row["column_name"] == name for row in rows) == 1 and not name.startswith("#")
    return name if alone else f"#{column_id}"


def _known_as(name: str, known: Iterable[str]) -> str:
    """The only known name that equals a name ignoring case; the name itself if there are none or several."""
    folded = [other for other in known if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else name


def _is_container(data_type: str | None) -> bool:
    return re.split(r"[<(\s]", (data_type or "").upper(), maxsplit=1)[0] in CONTAINERS
