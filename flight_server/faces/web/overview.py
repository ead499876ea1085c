"""The data of the first page's figures, and of the lists of checks, changes and relationships."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.table_names import COLUMNS, full_name
from flight_server.core.views import relationships
from flight_server.core.views.reader import Reader, equal
from flight_server.core.views.table_summary import Row
from store.model.schemas import EXPECTED, WAITING

LISTED: Final = 200  # rows of a list on one page
ATTENTION: Final = 10  # tables that the first page names
MOST_NAMED: Final = 1_000  # tables that a condition names; where more have a miss, all results are read
MISSED: Final = ("FAILED", "WARNED", "LATE", WAITING)
_WORST_FIRST: Final = {state: place for place, state in enumerate((*MISSED, "UNKNOWN", "PASSED"))}
_CHECK: Final = (*COLUMNS, "snapshot_id", "column_name", "rule", "state", "detail", "checked_at", "changed_at", "value")
_CHANGE: Final = (*COLUMNS, "snapshot_id", "committed_at", "kind", "statistic", "before", "after", "change_percent")


def newest(rows: Sequence[Row]) -> list[Row]:
    """The newest result of each rule on a table or column, the worst first."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: row["checked_at"]):
        if row["state"] != EXPECTED:
            found[(*(row[name] for name in COLUMNS), row["rule"], row["column_name"])] = row
    last = len(_WORST_FIRST)
    return sorted(found.values(), key=lambda row: (_WORST_FIRST.get(row["state"], last), full_name(row), row["rule"]))


def missed(reader: Reader) -> list[Row]:
    """The newest results that need attention, the worst first: those that did not pass, or wait."""
    misses = reader.read("sys.checks", [*COLUMNS], [equal("state", *MISSED)])
    names = [misses[name].combine_chunks().unique().to_pylist() for name in COLUMNS]
    if not misses.num_rows:
        return []
    is_named = max(len(values) for values in names) <= MOST_NAMED
    of_tables = [equal(column, *values) for column, values in zip(COLUMNS, names, strict=True)] if is_named else []
    rows = reader.read("sys.checks", _CHECK, of_tables).to_pylist()
    return [row for row in newest(rows) if row["state"] in MISSED]


def figures(reader: Reader, tables: pa.Table, now: datetime | None = None) -> dict[str, Any]:
    """The four numbers that the first page begins with, and the tables that need attention.

    Args:
        tables: The visible tables, as `catalog_summary.tables` reads them.
        now: The time, from whose last 24 hours changes count.

    Returns:
        `tables`, `checks` (failing or waiting), `stale` (or unreadable) and `changed` (in 24 hours), and `attention`,
        a list of objects with `table`, `state` and `detail`.
    """
    results = missed(reader)
    is_unreadable = pc.is_valid(tables["last_error"])
    is_stale = pc.fill_null(pc.equal(tables["freshness"], "STALE"), False)
    since = (now or datetime.now(UTC)) - timedelta(days=1)
    recently = [
        {"column": "is_current", "op": "EQ", "values": [True]},
        {"column": "committed_at", "op": "GTE", "values": [since.isoformat()]},
    ]
    unreadable = tables.filter(is_unreadable).slice(0, ATTENTION).to_pylist()
    told = [{"table": full_name(row), "state": "unreadable", "detail": row["last_error"]} for row in unreadable]
    return {
        "tables": tables.num_rows,
        "checks": len(results),
        "stale": pc.sum(pc.or_(is_unreadable, is_stale)).as_py() or 0,
        "changed": reader.read("sys.snapshots", ["snapshot_id"], recently).num_rows,
        "attention": [*_worst(results), *told][:ATTENTION],
    }


def _worst(results: Sequence[Row]) -> list[dict[str, Any]]:
    """The worst result of each table, with how many there are."""
    of_table: dict[str, list[Row]] = {}
    for row in results:
        of_table.setdefault(full_name(row), []).append(row)
    return [{"table": name, "state": rows[0]["state"], "detail": _told(rows)} for name, rows in of_table.items()]


def _told(rows: Sequence[Row]) -> str:
    first = rows[0]
    rule = first["rule"] if first["column_name"] is None else f"{first['column_name']}: {first['rule']}"
    more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{rule}{more}"


def listing(title: str, rows: Sequence[Row], page: int, search: str) -> dict[str, Any]:
    """A page of a list.

    Args:
        rows: Objects with `table`, and texts and numbers.
        search: A part of the name of a table, a column, a rule or a kind.
    """
    wanted = search.casefold()
    matching = [row for row in rows if not wanted or any(wanted in str(value).casefold() for value in row.values())]
    pages = max(1, -(-len(matching) // LISTED))
    page = min(max(page, 1), pages)
    return {
        "title": title,
        "matching": len(matching),
        "page": page,
        "pages": pages,
        "rows": matching[(page - 1) * LISTED : page * LISTED],
    }


def checks(reader: Reader) -> list[dict[str, Any]]:
    """The newest result of each rule of the server, the worst first."""
    names = ("column_name", "rule", "state", "value", "detail", "changed_at", "snapshot_id")
    return [_named(row, names) for row in newest(reader.read("sys.checks", _CHECK).to_pylist())]


def changes(reader: Reader) -> list[dict[str, Any]]:
    """The newest changes between snapshots, the newest first."""
    found = reader.read("sys.changes", _CHANGE)
    found = found.sort_by([("committed_at", "descending")]).slice(0, 10 * LISTED)
    return [_named(row, _CHANGE[len(COLUMNS) :]) for row in found.to_pylist()]


def joins(reader: Reader) -> list[dict[str, Any]]:
    """The relationships between columns, declared or found by their values."""
    return [
        {
            "table": row["from"],
            "columns": ", ".join(row["from_columns"]),
            "refers_to": row["to"],
            "its_columns": ", ".join(row["to_columns"]),
            "contained": relationships.contained(row),
            "known": "declared" if row["kind"] == "DECLARED" else "by the values",
        }
        for row in relationships.among(reader, lambda _: True)
    ]


def _named(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {"table": full_name(row)} | {name: row[name] for name in names}
