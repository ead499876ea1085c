"""Lists of tables are what the flights say of these tables, whatever state they are in and whoever asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views import catalog_summary
from flight_server.core.views.table_lists import ORDERS, STATES, TableFilter, TableOrder
from tests.flight_server.serving import app_in, put

NAMES = ("table_catalog", "table_schema", "table_name")
NOW = datetime(2026, 1, 5, tzinfo=UTC)
SOME = Principal("some", frozenset({"stats.read"}), ("lake.s1.*", "lake.s0.t0"))
ONE = Principal("one", frozenset({"stats.read"}), ("lake.s0.t3",))
NONE = Principal("none", frozenset({"stats.read"}), ("other.*",))
IS_IN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "stale": lambda row: row["freshness"] == "STALE",
    "failing": lambda row: row["last_error"] is not None,
    "not captured": lambda row: row["freshness"] is None,
}
KEYS: dict[str, str] = {
    "rows": "row_count",
    "size": "total_size_bytes",
    "age": "captured_at",
    "files": "data_file_count",
    "changed": "committed_at",
}


def filled(app: App) -> None:
    """Tables that are exact, inherited, stale, of no known statistics, unreadable, overdue and dropped."""
    for number in range(24):
        key = {"table_catalog": "lake", "table_schema": f"s{number % 3}", "table_name": f"t{number}"}
        counts = {"row_count": number % 5, "data_file_count": 24 - number, "total_size_bytes": None}
        if number % 4 != 1:
            put(app, [key | {"snapshot_id": 1} | counts], "stats.tables")
        if number % 4 != 2:  # a newer snapshot, of the same schema, of another one, or of an unknown one
            put(app, [key | {"snapshot_id": 2, "column_id": 1, "column_name": "c", "ndv": 1.0}], "stats.columns")

    def change(connection: Any) -> None:
        connection.execute("UPDATE tables SET owner = 'ann', format = 'delta' WHERE table_key % 5 = 0")
        connection.execute("UPDATE tables SET last_error = 'gone' WHERE table_key % 7 = 0")
        connection.execute("UPDATE tables SET dropped = true WHERE table_name = 't23'")
        connection.execute("UPDATE snapshots SET committed_at = ? - to_days(table_key::INTEGER)", [NOW])
        connection.execute("UPDATE snapshots SET schema_hash = 'a' WHERE table_key % 2 = 0")
        connection.execute("UPDATE snapshots SET schema_hash = snapshot_id::VARCHAR WHERE table_key % 6 = 3")

    app.database.write(change)
    app.catalog.reload(app.database.read())
    app.catalog.deadlines.set_intervals({app.catalog.get("lake.s0.t6").table_key: 60.0})


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with app_in() as app:
        filled(app)
        yield app


@pytest.fixture(params=[ANONYMOUS, SOME, ONE, NONE], ids=lambda principal: principal.name)
def reader(app: App, request: pytest.FixtureRequest) -> LocalReader:
    return LocalReader(app.scanner, request.param)


def expected(reader: LocalReader) -> list[dict[str, Any]]:
    """The rows by name, as the flights have them, with the commit of each table's current snapshot."""
    commits = reader.read(
        "sys.snapshots", [*NAMES, "committed_at"], [{"column": "is_current", "op": "EQ", "values": [True]}]
    )
    at = {tuple(map(row.get, NAMES)): row["committed_at"] for row in commits.to_pylist()}
    return [row | {"committed_at": at.get(tuple(map(row.get, NAMES)))} for row in catalog_summary.rows(reader)]


def listing(reader: LocalReader):
    return reader.tables(catalog_summary.ABOUT, catalog_summary.STATS)


def test_every_state_is_there(app):
    labels = Counter(row["freshness"] for row in expected(LocalReader(app.scanner, ANONYMOUS)))
    assert {"EXACT", "INHERITED", "STALE", None} <= set(labels)


def test_tallies_count_each_table_once(reader):
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in expected(reader):
        values = [row[name] for name in ("table_catalog", "table_schema", "format", "owner")]
        counts[(*values, *(IS_IN[state](row) for state in ("failing", "stale")), not IS_IN["not captured"](row))] += 1
    assert {tally[:-1]: tally.tables for tally in listing(reader).tallies()} == counts


def in_order(rows: list[dict[str, Any]], order: TableOrder) -> list[dict[str, Any]]:
    """Rows that are sorted by name in another order, unknown values last."""
    if (key := KEYS.get(order.key)) is None:
        return rows[::-1] if order.is_descending else rows
    known = [row for row in rows if row[key] is not None]
    known.sort(key=lambda row: row[key], reverse=order.is_descending)
    return known + [row for row in rows if row[key] is None]


@pytest.mark.parametrize("order", [TableOrder(key, turned) for key in ORDERS for turned in (False, True)], ids=str)
def test_pages_are_slices_of_all_rows_in_order(app, order):
    reader = LocalReader(app.scanner, SOME)
    rows = in_order(expected(reader), order)
    if order.key != "changed":
        rows = [{name: value for name, value in row.items() if name != "committed_at"} for row in rows]
    found = listing(reader)
    assert [*found.rows(TableFilter(), order, 0, 4), *found.rows(TableFilter(), order, 4, 20)] == rows


@pytest.mark.parametrize("state", STATES)
def test_states_limit_the_tables(reader, state):
    names = [row["table_name"] for row in expected(reader) if IS_IN[state](row)]
    found, wanted = listing(reader), TableFilter(state=state)
    assert [row["table_name"] for row in found.rows(wanted, TableOrder(), 0, 100)] == names
    assert found.count(wanted) == len(names)


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (TableFilter(search="S1.T1"), lambda row: "s1.t1" in f"{row['table_schema']}.{row['table_name']}"),
        (TableFilter(search="%"), lambda row: False),
        (TableFilter(catalog="lake"), lambda row: True),
        (TableFilter(catalog="lake", schema="s2"), lambda row: row["table_schema"] == "s2"),
        (TableFilter(format="delta"), lambda row: row["format"] == "delta"),
        (
            TableFilter(owner="ann", state="failing"),
            lambda row: row["owner"] == "ann" and row["last_error"] is not None,
        ),
        (TableFilter(owner="bob"), lambda row: False),
    ],
)
def test_filters_are_combined(reader, wanted, is_meant):
    names = [row["table_name"] for row in expected(reader) if is_meant(row)]
    found = listing(reader).rows(wanted, TableOrder(), 0, 100)
    assert [row["table_name"] for row in found] == names
    assert listing(reader).count(wanted) == len(names)


def test_tables_that_changed_since_are_counted(reader):
    since = NOW - timedelta(days=10)
    times = [row["committed_at"] for row in expected(reader)]
    assert listing(reader).changed_since(since) == sum(at is not None and at >= since for at in times)
