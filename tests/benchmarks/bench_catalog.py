"""A whole catalog at once: puts and reads across thousands of tables, compared with plain DuckDB.

Reads alternate with the same query on one plain table that has only the current rows. Printed are medians and their
ratios, for the numbers of stored snapshots in STATFLIGHT_BENCH_CATALOG_SNAPSHOTS (default 3 and 30).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.config import Settings
from flight_server.core.control.table_states import states
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views.reader import ReadAhead
from flight_server.core.views.table_summary import gather
from flight_server.core.wire import tickets
from flight_server.insight.checking import SETTLE_SECONDS
from flight_server.insight.evaluate import check
from flight_server.insight.rules import parse
from flight_server.process.parts import parts
from store.catalog.discovery import Discovery
from store.history import validation
from store.model.columns import KLL
from store.model.schemas import FLIGHTS
from store.model.sketches import kll
from store.model.target_ids import of_column
from store.stats_store import Put, PutMode

pytestmark = pytest.mark.benchmark

TABLES, COLUMNS = 5_000, 50
HISTORIES = [int(n) for n in os.environ.get("STATFLIGHT_BENCH_CATALOG_SNAPSHOTS", "3,30").split(",")]
GROWING, FEW_TABLES = (3, 30, 300), 200  # histories that are compared with each other
ROUNDS = 15
WIDE, STORED_SNAPSHOTS = 1000, 30
NAMES = ("table_name", "column_name", "ndv")
READS: dict[str, tuple[dict[str, Any], str]] = {
    "ndv > 980, 3 columns": (
        {"columns": NAMES, "predicates": [{"column": "ndv", "op": "GT", "values": [980]}]},
        "SELECT table_name, column_name, ndv FROM plain WHERE ndv > 980",
    ),
    "one column of all tables": (
        {"columns": (*NAMES, "row_count"), "predicates": [{"column": "column_name", "op": "EQ", "values": ["c3"]}]},
        "SELECT table_name, column_name, ndv, row_count FROM plain WHERE column_name = 'c3'",
    ),
    "3 columns of all rows": ({"columns": NAMES}, "SELECT table_name, column_name, ndv FROM plain"),
    "limit 10": ({"limit": 10}, "SELECT * FROM plain LIMIT 10"),
}


def rows(snapshot: int, tables: int = TABLES, columns: int = COLUMNS, first: int = 0, shift: int = 0) -> pa.Table:
    """Statistics of every column of many tables at one snapshot."""
    table, column = np.repeat(np.arange(first, first + tables), columns), np.tile(np.arange(columns), tables)

    def same(value: Any, type: pa.DataType | None = None) -> pa.Array:
        return pa.repeat(pa.scalar(value, type), len(table))

    def named(prefix: str, numbers: np.ndarray) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")

    return validation.prepare(
        FLIGHTS["stats.columns"],
        pa.table(
            {
                "table_catalog": same("lake"),
                "table_schema": named("schema_", table // 100),
                "table_name": named("table_", table),
                "snapshot_id": same(snapshot, pa.int64()),
                "column_id": column + 1,
                "column_name": named("c", column),
                "logical_type": same("INT"),
                "row_count": same(1000, pa.int64()),
                "null_count": (column % 7).astype("i8"),
                "ndv": (table * 50 + column) * 7919 % 991 * 0.993,
                "min": pa.array(table + shift).cast(pa.string()),
                "max": pa.array(table + 10**6).cast(pa.string()),
                "min_is_exact": same(True),
                "max_is_exact": same(True),
                "avg_width_bytes": same(8.0),
                "producer": same("ENGINE_COMPUTED"),
                "completeness": same("COMPLETE"),
                "engine_id": same("local"),
                "schema_hash": named("hash-", table),
            }
        ),
    )


def timed(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


@pytest.fixture(params=HISTORIES, ids=lambda n: f"{n} snapshots")
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    opened = App(Settings(db=tmp_path / "s.duckdb", cache_bytes=0))
    for snapshot in range(1, request.param + 1):
        opened.store.put([Put("stats.columns", rows(snapshot))])
    opened.database.submit(lambda c: c.execute("CHECKPOINT").fetchall(), alone=True).result()
    yield opened
    opened.close()


def test_reads_do_not_grow_with_history(tmp_path: Path) -> None:
    """Reads of current rows, and of pinned snapshot ids, with 3, 30 and 300 stored snapshots of the same tables."""
    apps = {}
    for snapshots in GROWING:
        apps[snapshots] = app = App(Settings(db=tmp_path / f"{snapshots}.duckdb", cache_bytes=0))
        for snapshot in range(1, snapshots + 1):
            app.store.put([Put("stats.columns", rows(snapshot, tables=FEW_TABLES))])
        app.database.submit(lambda c: c.execute("CHECKPOINT").fetchall(), alone=True).result()
    growth: dict[tuple[str, str], float] = {}
    print()
    for name, (body, _) in READS.items():
        request = tickets.of_ticket(json.dumps({"table": "stats.columns", **body, "snapshot": "current"}).encode())
        requests = {n: {"current": request, "pinned": app.scanner.pin(request, ANONYMOUS)} for n, app in apps.items()}
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(3 * ROUNDS):
            for snapshots, app in apps.items():
                for kind, scan in requests[snapshots].items():
                    took = timed(lambda: app.scanner.table(scan, ANONYMOUS))  # noqa: B023
                    times.setdefault((kind, snapshots), []).append(took)
        for kind in ("current", "pinned"):
            ms = [statistics.median(times[kind, snapshots]) * 1e3 for snapshots in GROWING]
            growth[name, kind] = ms[-1] / ms[0]
            line = ", ".join(f"{n} snapshots {each:.1f} ms" for n, each in zip(GROWING, ms, strict=True))
            print(f"{name}, {kind}: {line}: {growth[name, kind]:.2f} x (at most 1.2)")
    for app in apps.values():
        app.close()
    assert max(growth.values()) <= 1.5, growth  # leaves room for a busy machine


def test_new_snapshot_of_a_wide_table(tmp_path: Path) -> None:
    """An inspection that finds a new snapshot of a table with many columns and snapshots, beside one of an empty table;
    no row of statistics is written."""
    app = App(Settings(db=tmp_path / "s.duckdb"))
    parts = ("stats_columns_current", "stats_columns_history")
    columns = [[f"c{at}", "INT", True, at + 1] for at in range(WIDE)]

    def inspect(name: str, snapshot: int) -> None:
        snapshots = [
            {
                "snapshot_id": snapshot,
                "ordinal": snapshot,
                "parent_snapshot_id": None,
                "operation": "append",
                "sequence_number": None,
                "committed_at": None,
                "schema_hash": "hash-0",
            }
        ]
        found = {
            "schema": "schema_0",
            "name": name,
            "table_id": name,
            "location": "l",
            "schema_hash": "hash-0",
            "schemas": {"hash-0": columns},
            "current_snapshot_id": snapshot,
            "snapshots": snapshots,
            "live_snapshot_ids": [*range(1, snapshot + 1)],
            "identities": [[snapshot, f"i{snapshot}"]],
            "metadata_location": f"m{snapshot}",
        }
        app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found]))

    def stored() -> list[tuple[Any, ...]]:
        return [app.database.rows(f"SELECT count(*), max(rowid), sum(to_ord) FROM {part}")[0] for part in parts]

    times: dict[str, list[float]] = {"table_0": [], "empty": []}
    for snapshot in range(1, STORED_SNAPSHOTS + ROUNDS):
        for name in times:
            took = timed(lambda: inspect(name, snapshot))  # noqa: B023
            if snapshot > STORED_SNAPSHOTS:
                times[name].append(took)
        if snapshot <= STORED_SNAPSHOTS:
            app.store.put([Put("stats.columns", rows(snapshot, tables=1, columns=WIDE))])
            before = stored()
        assert stored() == before
    wide, empty = (statistics.median(each) * 1e3 for each in times.values())
    print(f"\na new snapshot of {WIDE} columns × {STORED_SNAPSHOTS} snapshots: {wide:.1f} ms (at most 10 ms more than")
    print(f"that of an empty table, {empty:.1f} ms)")
    app.close()


def inspect(app: App, lake: str, snapshot: int, live: list[int], tables: int = FEW_TABLES) -> None:
    """Stores an inspection of a lake that finds a new snapshot of every table."""
    columns = [[f"c{at}", "BIGINT", True, at + 1] for at in range(COLUMNS)]
    found = [
        {
            "schema": "schema_0",
            "name": f"table_{number}",
            "table_id": f"{lake}-{number}",
            "location": "l",
            "schema_hash": "h",
            "schemas": {"h": columns},
            "current_snapshot_id": snapshot,
            "identities": [[snapshot, f"i{snapshot}"]],
            "live_snapshot_ids": live,
            "snapshots": [
                {
                    "snapshot_id": snapshot,
                    "ordinal": snapshot,
                    "parent_snapshot_id": None,
                    "operation": "append",
                    "sequence_number": None,
                    "committed_at": None,
                    "schema_hash": "h",
                }
            ],
        }
        for number in range(tables)
    ]
    present = {("schema_0", item["name"]) for item in found}
    app.database.write(lambda c: Discovery(app.catalog).store(c, lake, "delta", found, present, full=False))
    stored = [table.current_snapshot_id for table in app.catalog.tables() if table.table_catalog == lake]
    assert stored == [snapshot] * tables


def compare(what: str, times: dict[int, list[float]], most: int = 20) -> None:
    """Prints what many tables take over one, and refuses more than `most` times as much; `times` are by number of
    tables."""
    one, many = (statistics.median(each) for each in times.values())
    print(f"\n{what} of {FEW_TABLES} tables, over that of one: {many / one:.1f} (at most {most})")
    assert many / one <= most


def test_new_snapshots_of_all_tables(tmp_path: Path) -> None:
    """An inspection that finds a new snapshot of every table of a lake, beside one that finds as many new tables."""
    app = App(Settings(db=tmp_path / "s.duckdb"))
    new, known = (
        statistics.median(timed(lambda: inspect(app, f"lake{lake}", snapshot, [1, snapshot])) for lake in range(5))  # noqa: B023
        for snapshot in (1, 2)
    )
    print(f"\na new snapshot of each of {FEW_TABLES} tables, over as many new tables: {known / new:.2f} (at most 2)")
    app.close()
    assert known / new <= 2


def test_expiry_of_all_tables(tmp_path: Path) -> None:
    """The statistics of a snapshot of each table that left the lake are deleted, beside those of one table."""
    app = App(Settings(db=tmp_path / "s.duckdb"))
    times: dict[int, list[float]] = {1: [], FEW_TABLES: []}
    for lake in range(5):
        for tables, each in times.items():
            name = f"lake{lake}of{tables}"
            for snapshot in (1, 2):
                inspect(app, name, snapshot, list(range(1, snapshot + 1)), tables)
                files = pa.Table.from_pylist(
                    [
                        {
                            "table_catalog": name,
                            "table_schema": "schema_0",
                            "table_name": f"table_{number}",
                            "snapshot_id": snapshot,
                            "file_path": f"{snapshot + at}.parquet",
                        }
                        for number in range(tables)
                        for at in range(3)
                    ]
                )
                app.store.put([Put("stats.files", validation.prepare(FLIGHTS["stats.files"], files))])
            inspect(app, name, 3, [2, 3], tables)
            of_lake = [table for table in app.catalog.tables() if table.table_catalog == name]
            each.append(timed(lambda: app.store.expire(of_lake)))  # noqa: B023
    assert {s for t in app.catalog.tables() for s in app.store.captured_snapshots(t)} == {2}
    app.close()
    compare("expiry", times)


def test_review_of_all_tables(tmp_path: Path) -> None:
    """The states of many tables, by which a policy decides, are gathered at once, beside that of one."""
    app = App(Settings(db=tmp_path / "s.duckdb"))
    for snapshot in (1, 2, 3):
        app.store.put([Put("stats.columns", rows(snapshot, tables=FEW_TABLES))])
    tables = app.catalog.tables()
    times: dict[int, list[float]] = {1: [], FEW_TABLES: []}
    for _ in range(ROUNDS):
        for count, each in times.items():
            each.append(timed(lambda: states(app.database, tables[:count], {})))  # noqa: B023
    app.close()
    compare("states", times)


def test_statistics_shown_of_all_tables(tmp_path: Path) -> None:
    """Times `show`, `emit` and `check` of many tables beside the same of one."""
    app = App(Settings(db=tmp_path / "s.duckdb", cache_bytes=0))
    for snapshot in (1, 2, 3):
        app.store.put([Put("stats.columns", rows(snapshot, tables=FEW_TABLES, columns=20))])
    key = rows(3, tables=FEW_TABLES, columns=20).select(
        [*NAMES[:1], "table_catalog", "table_schema", "snapshot_id", "column_id"]
    )
    given = {"target_kind": "COLUMN", "role": "QUANTILES", "sketch_type": KLL, "data": kll(np.arange(1000.0))}
    given |= {"storage_id": pa.array(map(of_column, key["column_id"].to_pylist()))}
    for name, value in given.items():
        key = key.append_column(name, value if isinstance(value, pa.Array) else pa.repeat(value, key.num_rows))
    app.store.put([Put("stats.sketches", validation.prepare(FLIGHTS["stats.sketches"], key))])
    names = [table.full_name for table in app.catalog.tables()]
    rules = [parse(text) for text in ("null_fraction <= 0.5", "drift <= 0.1", "learned")]
    works: dict[str, Callable[[ReadAhead, str], Any]] = {
        "show": lambda reader, name: gather(reader, name, "current", allow_stale=True, shapes=True),
        "check": lambda reader, name: check(reader, name, rules, "previous"),
    }
    for what, work in works.items():
        times: dict[int, list[float]] = {1: [], FEW_TABLES: []}
        for _ in range(3):
            for count, each in times.items():
                reader = ReadAhead(LocalReader(app.scanner, ANONYMOUS), names[:count])
                each.append(timed(lambda: [work(reader, name) for name in names[:count]]))  # noqa: B023
        compare(what, times, 40)  # most of it is each table's own, such as the texts of quantiles
    app.close()


def test_checks_after_captures_of_all_tables(tmp_path: Path) -> None:
    """The server checks many tables whose captures have ended, and stores the results, beside one."""
    (tmp_path / "rules.toml").write_text('[[rule]]\nexpect = "null_fraction <= 0.5"\n')
    app = App(Settings(db=tmp_path / "s.duckdb", checks=tmp_path / "rules.toml"), parts=parts)
    app.store.put([Put("stats.columns", rows(1, tables=FEW_TABLES, columns=20))])
    times: dict[int, list[float]] = {1: [], FEW_TABLES: []}
    clock = app.parts["insight"].checking._clock = itertools.count(step=SETTLE_SECONDS).__next__
    for _ in range(5):
        for count, each in times.items():
            for table in app.catalog.tables()[:count]:
                app.parts["insight"].checking.captured(table)
            clock()
            each.append(timed(app.parts["insight"].checking.run))
    app.close()
    compare("checks", times, 40)


def test_puts(tmp_path: Path) -> None:
    app = App(Settings(db=tmp_path / "s.duckdb"))
    first = rows(1)
    steps: list[tuple[str, pa.Table, PutMode]] = [
        ("250,000 rows of 5,000 new tables", first, PutMode.CREATE),
        ("the same again", first, PutMode.CREATE),
        ("upsert of other content", rows(1, shift=1), PutMode.UPSERT),
        ("a new snapshot", rows(2), PutMode.CREATE),
        ("5,000 rows, one a table", rows(1, columns=1, first=TABLES), PutMode.CREATE),
    ]
    print()
    for name, table, mode in steps:
        print(f"{name}: {timed(lambda: app.store.put([Put('stats.columns', table, mode)])):.2f} s")  # noqa: B023
    app.close()


def test_reads(app: App) -> None:
    with app.database.reading() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE plain AS SELECT t.table_catalog, t.table_schema, t.table_name, t.table_id,"
            " s.* EXCLUDE (table_key, generation, created_at, schema_key, from_ord, to_ord, is_copy) FROM"
            " stats_columns_current s"
            " JOIN tables t USING (table_key) ORDER BY table_key, column_id"
        )
        print()
        for name, (body, sql) in READS.items():
            command = {"table": "stats.columns", **body}
            requests = {
                "current": tickets.of_ticket(json.dumps(command | {"snapshot": "current"}).encode()),
                "an older id": tickets.of_ticket(json.dumps(command | {"snapshot": 1}).encode()),
            }
            requests["pinned"] = app.scanner.pin(requests["current"], ANONYMOUS)
            times: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                plain = timed(lambda: [*cursor.sql(sql).to_arrow_reader(65_536)])  # noqa: B023
                times.setdefault("plain", []).append(plain)
                for kind, scan in requests.items():
                    took = timed(lambda: app.scanner.table(scan, ANONYMOUS))  # noqa: B023
                    times.setdefault(kind, []).append(took)
            medians = {kind: statistics.median(each) * 1e3 for kind, each in times.items()}
            line = ", ".join(f"{kind} {ms:.1f} ms ({ms / medians['plain']:.2f} x)" for kind, ms in medians.items())
            print(f"{name}: {line}")
