"""Lookup of stored records: the exact target at the exact snapshot, never older than an acknowledged put."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from flight_server.core.app import App
from flight_server.core.reads.records import RECORD_BYTES, RecordFinder
from flight_server.core.reads.slice_cache import SliceCache
from store.model.targets import Target
from tests.flight_server.serving import app_in, command, put, read, rows

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
TABLE = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}


def with_table(app: App) -> None:
    put(app, rows("t", 1, range(1, 6), schema_hash="h", completeness="COMPLETE", captured_at=AT))


@pytest.fixture
def app() -> Iterator[App]:
    with app_in(fill=with_table) as app:
        yield app


def key(app: App, name: str = "t") -> int:
    return app.catalog.get(f"lake.s.{name}").table_key


def find(app: App, *targets: Target, snapshot_id: int = 1, records: RecordFinder | None = None) -> list[Any]:
    lookups = [(key(app), snapshot_id, target) for target in targets]
    return (records or app.records).find(lookups)


def columns(*ids: int) -> list[Target]:
    return [Target.column(i) for i in ids]


def ids(found: list[Any]) -> list[int | None]:
    return [record and record["column_id"] for record in found]


def test_find_returns_one_result_per_target_in_order(app):
    assert ids(find(app, *columns(4, 9, 1, 4))) == [4, None, 1, 4]
    assert find(app) == []


def test_find_separates_tables_and_snapshots(app):
    put(app, rows("u", 1, [1], schema_hash="h") + rows("u", 2, [1], schema_hash="h"))
    lookups = [
        (key(app, name), snapshot_id, Target.column(1))
        for name, snapshot_id in (("u", 2), ("t", 1), ("t", 2), ("u", 1))
    ]
    found = app.records.find(lookups)
    assert [r and (r["table_name"], r["snapshot_id"]) for r in found] == [("u", 2), ("t", 1), None, ("u", 1)]


def test_inherited_row_is_not_a_record_of_the_snapshot(app):
    put(app, rows("t", 2, [5], schema_hash="h"))
    assert ids(find(app, *columns(4, 5), snapshot_id=2)) == [None, 5]


def test_record_equals_the_row_of_its_flight(app):
    (record,) = find(app, Target.column(2))
    (row,) = [r for r in read(app, command("t", snapshot="current")).to_pylist() if r["column_id"] == 2]
    assert record == row | {name: row[name] and row[name].isoformat() for name in ("captured_at", "refreshed_at")}
    json.dumps(record)


@pytest.mark.parametrize(
    ("more", "usable_for"),
    [
        ({"completeness": "COMPLETE"}, "PRUNING"),
        ({"completeness": "PARTIAL"}, "PLANNING"),
        ({}, "PLANNING"),
        ({"completeness": "COMPLETE", "row_groups_sampled": 2}, "PLANNING"),
        ({"completeness": "COMPLETE", "row_groups_sampled": 0}, "PRUNING"),
    ],
)
def test_usable_for_depends_on_completeness_and_sampling(app, more, usable_for):
    put(app, rows("t", 1, [6], schema_hash="h", **more))
    (record,) = find(app, Target.column(6))
    assert (record["freshness"], record["usable_for"]) == ("EXACT", usable_for)


def test_find_supports_every_kind_of_target(app):
    put(app, [TABLE | {"row_count": 5}], "stats.tables")
    put(app, [TABLE | {"file_path": "f", "row_count": 3}], "stats.files")
    put(app, [TABLE | {"engine_kind": "spark", "engine_expression_key": b"\x00k", "ndv": 2.0}], "stats.expressions")
    put(app, [TABLE | {"column_ids": [1, 2], "ndv": 4.0}], "stats.column_groups")
    targets = [Target.table(), Target.file("f"), Target.expression("spark", b"\x00k"), Target.column_group([2, 1])]
    table, file, expression, group = find(app, *targets)
    assert (table["row_count"], file["row_count"], expression["ndv"], group["ndv"]) == (5, 3, 2.0, 4.0)
    assert base64.b64decode(expression["engine_expression_key"]) == b"\x00k"
    assert group["column_ids"] == [1, 2]
    json.dumps([table, file, expression, group])


def test_repeated_find_is_served_from_the_cache(app, monkeypatch):
    first = find(app, *columns(1, 2, 9))

    def never(*_: Any) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(app.records, "_read", never)
    assert find(app, *columns(2, 1, 9)) == [first[1], first[0], None]


def test_put_and_delete_are_visible_at_once(app):
    assert ids(find(app, *columns(1, 9))) == [1, None]
    put(app, rows("t", 1, [1, 9], schema_hash="h", max_width_bytes=77))
    assert [r["max_width_bytes"] for r in find(app, *columns(1, 9))] == [77, 77]
    app.store.delete(app.catalog.get("lake.s.t"), 1, Target.column(1))
    assert ids(find(app, *columns(1, 9))) == [None, 9]


def test_find_beyond_the_cache_budget_returns_all_records(app):
    small = SliceCache(2 * RECORD_BYTES)
    few = RecordFinder(app.store, app.catalog, small, app.scanner)
    for _ in range(2):
        assert ids(find(app, *columns(1, 2, 3, 4, 5), records=few)) == [1, 2, 3, 4, 5]
        assert small.used == 2 * RECORD_BYTES


@pytest.mark.parametrize("puts", [10, pytest.param(200, marks=pytest.mark.benchmark)])
def test_concurrent_readers_never_see_less_than_was_acknowledged(app, puts):
    acknowledged, wrong, done = 0, [], threading.Event()

    def read_repeatedly() -> None:
        while not done.is_set():
            least = acknowledged
            (record,) = find(app, Target.column(1))
            if record["max_width_bytes"] is not None and record["max_width_bytes"] < least:
                wrong.append((record["max_width_bytes"], least))

    threads = [threading.Thread(target=read_repeatedly) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, puts):
        put(app, rows("t", 1, [1], schema_hash="h", max_width_bytes=number))
        acknowledged = number
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
