"""The data of the first page's figures, and of the lists of checks, changes and relationships."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from flight_server.client.table_names import COLUMNS, full_name
from flight_server.core.views import relationships
from flight_server.core.views.reader import Reader, equal
from flight_server.core.views.table_lists import TableFilter, TableOrder, Tally
from flight_server.core.views.table_summary import Row
from store.model.columns import EXPECTED, WAITING

if TYPE_CHECKING:
    from flight_server.core.reads.table_listing import TableListing

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


@dataclass(frozen=True)
class Found:
    """Findings for the first page that counts of tables do not have.

    Attributes:
        results: The results of checks that need attention, as `missed` reads them.
        unreadable: The first tables that cannot be read.
        changed: The number of tables that changed within a day.
    """

    results: Sequence[Row]
    unreadable: Sequence[Row]
    changed: int


def a_day_before(now: datetime | None = None) -> datetime:
    """The time since which changes count."""
    return (now or datetime.now(UTC)) - timedelta(days=1)


def unreadable(listing: TableListing, tallies: Iterable[Tally]) -> list[Row]:
    """The first tables that cannot be read."""
    if not any(one.is_unreadable for one in tallies):
        return []
    return listing.rows(TableFilter(state="failing"), TableOrder(), 0, ATTENTION)


def changed(reader: Reader, only: Collection[tuple[str, str, str]]) -> int:
    """The number of these tables whose current snapshot was committed within a day."""
    recently = [
        equal("is_current", True),
        {"column": "committed_at", "op": "GTE", "values": [a_day_before().isoformat()]},
    ]
    rows = reader.read("sys.snapshots", COLUMNS, recently).to_pylist()
    return sum(tuple(row.values()) in only for row in rows)


def figures(tallies: Iterable[Tally], found: Found) -> dict[str, Any]:
    """The four numbers that the first page begins with, and the tables that need attention.

    Returns:
        `tables`, `checks` (failing or waiting), `stale` (or unreadable) and `changed` (in 24 hours), and `attention`,
        a list of objects with `table`, `state` and `detail`.
    """
    told = [
        {"table": full_name(row), "state": "unreadable", "detail": row["last_error"]}
        for row in found.unreadable[:ATTENTION]
    ]
    tallies = list(tallies)
    return {
        "tables": sum(one.tables for one in tallies),
        "checks": len(found.results),
        "stale": sum(one.tables for one in tallies if one.is_unreadable or one.is_stale),
        "changed": found.changed,
        "attention": [*_worst(found.results), *told][:ATTENTION],
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
