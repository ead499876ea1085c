"""A column's statistics over the snapshots of its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from flight_server.core.views.reader import Leaf, Reader, equal, read_table
from flight_server.core.views.table_summary import Row, require
from store.model.errors import nearest
from store.model.statistics import names

STATISTICS: Final = names(lambda each: each.is_shown)
NUMBERS: Final = names(lambda each: each.is_shown and each.is_number and not each.is_precision)


def column_rows(reader: Reader, name: str, column: str) -> list[Row]:
    """Every stored row of a column, by name or `#<column_id>`, with its snapshot's `committed_at`, oldest first.

    A name is that of the column which has it now, or of the last one that had it.

    Raises:
        pa.ArrowKeyError: The table does not exist, or it has no such column.
        pa.ArrowInvalid: Several columns have the name.
    """

    def read(condition: Leaf) -> list[Row]:
        return in_order(reader, name, read_table(reader, "stats.columns", name, None, condition).to_pylist())

    ids = _ids_now(reader, name, column)
    if not ids and (named := read(equal("column_name", column))):
        ids = {row["column_id"] for row in named if row["snapshot_id"] == named[-1]["snapshot_id"]}
    if not ids and column.startswith("#") and column[1:].isdecimal():
        ids = {int(column[1:])}
    rows = read(equal("column_id", *sorted(ids))) if ids else []  # in an older snapshot it may have another name
    if len(ids := {row["column_id"] for row in rows}) > 1:
        choice = " or ".join(f"#{column_id}" for column_id in sorted(ids))
        raise pa.ArrowInvalid(
            f'[AMBIGUOUS_COLUMN] several columns of "{name}" are written "{column}"; name one by its id: {choice}'
        )
    if not rows and (meant := _meant(reader, name, column)) != column:
        return column_rows(reader, name, meant)
    return rows


def _ids_now(reader: Reader, name: str, column: str) -> set[int]:
    """Ids of the columns that have a name now."""
    names = ["column_id", "column_name"]
    now = read_table(reader, "information_schema.columns", name, names, equal("column_name", column))
    return set(now["column_id"].to_pylist())


def _meant(reader: Reader, name: str, column: str) -> str:
    """The only column whose name differs by case alone, else this name.

    Raises:
        pa.ArrowKeyError: The table does not exist, or it has no such column.
    """
    require(reader, name)
    columns = _columns(reader, name)
    same = [other for other in columns if other.casefold() == column.casefold() and other != column]
    if len(same) == 1:
        return same[0]
    if column not in columns:
        hint = nearest(column, columns) or f"it has {', '.join(columns[:20]) or 'none'}"
        raise pa.ArrowKeyError(f'[UNKNOWN_COLUMN] table "{name}" has no column "{column}"; {hint}')
    return column


def table_rows(reader: Reader, name: str) -> list[Row]:
    """Reads every stored row of `stats.tables`, with `committed_at` of its snapshot, oldest first."""
    return in_order(reader, name, read_table(reader, "stats.tables", name).to_pylist())


def snapshots(reader: Reader, name: str) -> list[Row]:
    """Reads the rows of `sys.snapshots` of a table, in the order of its history, which commit times need not be in."""
    return read_table(reader, "sys.snapshots", name).to_pylist()


_WHO: Final = ("userName", "trino_user", "user", "user-name", "commitUser", "userId")
_JOB: Final = ("job", "jobName", "notebook", "trino_query_id", "flink.job-id", "spark.app.id", "app-id", "queryId")


def changed_by(summary: str | None) -> dict[str, str | None]:
    """The user and the job that made a snapshot, as its format records them in `sys.snapshots.summary`; else None."""
    try:
        told = json.loads(summary or "{}")
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}

    def first(names: Sequence[str]) -> str | None:
        for name in names:
            value = told.get(name)
            if isinstance(value, dict):  # Databricks: the job's or notebook's name and id
                value = next((value[key] for key in ("jobName", "jobId", "notebookId") if value.get(key)), None)
            if value:
                return str(value)
        return None

    return {"changed_by": first(_WHO), "job": first(_JOB)}


def in_order(reader: Reader, name: str, rows: list[Row]) -> list[Row]:
    """Sorts rows by the table's history, and adds `committed_at` of each row's snapshot."""
    return placed_in(read_table(reader, "sys.snapshots", name, ["snapshot_id", "committed_at"]).to_pylist(), rows)


def placed_in(told: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """The same by the rows of `snapshots`."""
    places = {row["snapshot_id"]: (place, row["committed_at"]) for place, row in enumerate(told)}
    placed = [(*places.get(row["snapshot_id"], (-1, None)), row) for row in rows]
    return [{**row, "committed_at": at} for _, at, row in sorted(placed, key=lambda one: one[0])]


def _columns(reader: Reader, name: str) -> list[str]:
    names = read_table(reader, "information_schema.columns", name, ["column_name"])["column_name"].to_pylist()
    return names or sorted(set(read_table(reader, "stats.columns", name, ["column_name"])["column_name"].to_pylist()))
