"""Contract of a `StatsStore`: the tests of a store subclass `StatsStoreContract`."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from store.history import validation
from store.model import target_ids
from store.model.catalog_entries import TableEntry
from store.model.columns import THETA
from store.model.errors import Conflict, InvalidArgument, NotFound
from store.model.puts import IDENTITY
from store.model.schemas import FLIGHTS
from store.model.targets import Target, TargetKind
from store.stats_store import Counts, Put, PutMode, StatsStore

NAME = ("c", "s", "t")
EARLY, LATE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)


def rows(flight: str, *each: dict[str, Any], name: tuple[str, str, str] = NAME, snapshot: int = 1) -> pa.Table:
    """Rows of a flight as the server hands them to a store."""
    key = {"table_catalog": name[0], "table_schema": name[1], "table_name": name[2], "snapshot_id": snapshot}
    full = [key | row for row in each]
    schema = FLIGHTS[flight].schema
    given = [column for column in schema.names if any(column in row for row in full)]
    table = pa.Table.from_pylist(full, pa.schema([schema.field(column) for column in given]))
    table = validation.prepare(FLIGHTS[flight], table)
    return target_ids.with_storage_ids(table) if flight == "stats.sketches" else table


def columns(*pairs: tuple[int, int], **more: Any) -> pa.Table:
    """Rows of stats.columns: column id and row count."""
    return rows("stats.columns", *({"column_id": i, "row_count": n} for i, n in pairs), **more)


def put(store: StatsStore, flight: str, table: pa.Table, mode: str = "create", key: str | None = None) -> Counts:
    return store.put([Put(flight, table, PutMode(mode))], idempotency_key=key)


def sketch(column_id: int, role: str = "NDV", data: bytes = b"theta") -> dict[str, Any]:
    return {"target_kind": "COLUMN", "column_id": column_id, "role": role, "sketch_type": THETA, "data": data}


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table in some order of their content."""
    return sorted(table.to_pylist(), key=repr)


class StatsStoreContract:
    """Contract suite. Subclasses provide `open`, and set `lasts` to False for a store that ends with its process."""

    lasts: ClassVar[bool] = True

    def open(self, path: Path) -> StatsStore:
        """A store at a path, with what was put there before."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path):
        store = self.open(tmp_path / "s.db")
        yield store
        store.close()

    def sketches(self, store: StatsStore, snapshot: int, *, of_files: bool = False) -> list[tuple[str, str, bytes]]:
        """(storage id, role, data) of each sketch at a snapshot of the table, in order."""
        flight = "file_sketches" if of_files else "stats.sketches"
        found = store.rows(self.entry(store), snapshot, flight).to_pylist()
        return sorted((s["storage_id"], s["role"], s["data"]) for s in found)

    def entry(self, store: StatsStore) -> TableEntry:
        found = store.find(NAME)
        assert found is not None
        return found

    def test_reopened_store_has_records_keys_and_generations(self, tmp_path):
        if not self.lasts:
            pytest.skip("it is in memory")
        store = self.open(tmp_path / "again.db")
        first = put(store, "stats.columns", columns((1, 10), (2, 20)), key="k")
        put(store, "stats.files", rows("stats.files", {"file_path": "a", "row_count": 1}))
        put(store, "stats.sketches", rows("stats.sketches", sketch(1)))
        before = store.list(self.entry(store), 1), self.sketches(store, 1)
        generation = store.meta(self.entry(store), 1, Target.column(1)).generation
        store.close()
        again = self.open(tmp_path / "again.db")
        table = self.entry(again)
        assert (again.list(table, 1), self.sketches(again, 1)) == before
        assert put(again, "stats.columns", columns((1, 10), (2, 20)), key="k") == first
        with pytest.raises(Conflict):
            put(again, "stats.columns", columns((1, 11)), key="k")
        assert (again.count(table, 1), table.current_snapshot_id) == (3, 1)
        put(again, "stats.columns", columns((1, 12)), "upsert")
        assert again.meta(table, 1, Target.column(1)).generation > generation
        assert again.delete(table, 1, Target.column(2)) == 1
        again.close()
        assert self.open(tmp_path / "again.db").count(table, 1) == 2

    def stored(self, store: StatsStore, snapshot: int = 1) -> list[tuple[int, int]]:
        page, token, total = store.list(self.entry(store), snapshot, TargetKind.COLUMN)
        assert not token and total == len(page)
        return [(row["column_id"], row["row_count"]) for row in page]

    # Modes and counts.

    def test_put_counts_created_unchanged_and_replaced_rows(self, store):
        assert put(store, "stats.columns", columns((1, 10), (2, 20))) == Counts(2, 2, 0, 0)
        assert put(store, "stats.columns", columns((1, 10), (3, 30))) == Counts(2, 1, 1, 0)
        assert put(store, "stats.columns", columns((1, 11), (2, 20), (4, 40)), "upsert") == Counts(3, 1, 1, 1)
        assert self.stored(store) == [(1, 11), (2, 20), (3, 30), (4, 40)]

    def test_put_of_zero_rows_succeeds(self, store):
        for flight in ("stats.columns", "stats.files", "stats.sketches", "stats.tables"):
            empty = validation.prepare(FLIGHTS[flight], FLIGHTS[flight].schema.empty_table())
            assert put(store, flight, empty, "replace_snapshot", key=flight) == Counts()

    def test_create_refuses_changed_content_and_names_the_field(self, store):
        put(store, "stats.columns", columns((1, 10), (2, 20)))
        with pytest.raises(Conflict, match=r"column_id=2.*row_count is 20, in the put it is 21") as refusal:
            put(store, "stats.columns", columns((1, 10), (2, 21), (3, 30)))
        assert refusal.value.params["field"] == "row_count"
        assert self.stored(store) == [(1, 10), (2, 20)], "nothing of a refused put is stored"

    def test_field_absent_from_a_put_becomes_null(self, store):
        put(store, "stats.columns", columns((1, 10)))
        only_nulls = rows("stats.columns", {"column_id": 1, "null_count": 3})
        with pytest.raises(Conflict, match="row_count is 10, in the put it is None"):
            put(store, "stats.columns", only_nulls)
        put(store, "stats.columns", only_nulls, "upsert")
        record = store.get(self.entry(store), 1, Target.column(1))
        assert (record["row_count"], record["null_count"]) == (None, 3)

    def test_fill_keeps_stored_records(self, store):
        put(store, "stats.columns", columns((1, 10)))
        assert put(store, "stats.columns", columns((1, 99), (2, 20)), "fill") == Counts(2, 1, 1, 0)
        assert self.stored(store) == [(1, 10), (2, 20)]

    @pytest.mark.parametrize(
        ("flight", "target"),
        [("stats.columns", {"column_id": 1}), ("stats.file_columns", {"file_path": "f", "column_id": 1})],
    )
    def test_partial_capture_never_replaces_a_complete_one(self, store, flight, target):
        def capture(completeness, null_count):
            row = target | {"completeness": completeness, "null_count": null_count}
            counts = put(store, flight, rows(flight, row), "capture")
            return counts.created, counts.unchanged, counts.replaced

        assert capture("PARTIAL", 1) == (1, 0, 0)
        assert capture("PARTIAL", 2) == (0, 0, 1)
        assert capture("COMPLETE", 3) == (0, 0, 1)
        assert capture("PARTIAL", 4) == (0, 1, 0)
        assert capture("COMPLETE", 5) == (0, 0, 1)
        assert put(store, flight, rows(flight, target | {"completeness": "PARTIAL"}), "upsert").replaced == 1

    def test_partial_sketch_never_replaces_a_complete_one(self, store):
        def capture(params, data):
            return put(
                store, "stats.sketches", rows("stats.sketches", sketch(1, data=data) | {"params": params}), "capture"
            ).replaced

        part = '{"completeness": "PARTIAL"}'
        assert [capture(part, b"1"), capture(part, b"2"), capture("{}", b"3"), capture(part, b"4")] == [0, 1, 1, 0]
        assert [data for _, _, data in self.sketches(store, 1)] == [b"3"]

    def test_replace_snapshot_keeps_only_the_records_of_the_put(self, store):
        put(store, "stats.columns", columns((1, 10), (2, 20), (3, 30)))
        put(store, "stats.columns", columns((1, 10), snapshot=2))
        put(store, "stats.tables", rows("stats.tables", {"row_count": 10}))
        done = put(store, "stats.columns", columns((1, 10), (2, 21), (4, 40)), "replace_snapshot")
        assert done == Counts(3, 1, 1, 1)
        assert self.stored(store) == [(1, 10), (2, 21), (4, 40)]
        assert self.stored(store, 2) == [(1, 10)], "another snapshot is left alone"
        assert store.get(self.entry(store), 1, Target.table()) is not None, "and another flight"

    def test_equal_rows_are_stored_once_and_contradicting_rows_refused(self, store):
        assert put(store, "stats.columns", columns((1, 10), (1, 10))) == Counts(2, 1, 0, 0)
        with pytest.raises(InvalidArgument, match=r"two different rows for one target.*column_id=5"):
            put(store, "stats.columns", columns((4, 1), (5, 1), (6, 1), (5, 2)), "upsert")
        assert self.stored(store) == [(1, 10)]

    def test_identical_content_keeps_the_first_timestamps(self, store):
        first = {"column_id": 1, "row_count": 10, "captured_at": EARLY, "column_name": "a"}
        put(store, "stats.columns", rows("stats.columns", first))
        again = rows("stats.columns", first | {"captured_at": LATE, "column_name": "A"})
        assert put(store, "stats.columns", again, "upsert") == Counts(1, 0, 1, 0)
        assert store.get(self.entry(store), 1, Target.column(1))["captured_at"] == EARLY

    def test_put_stores_rows_of_many_tables_and_snapshots(self, store):
        other = ("c", "s", "u")
        mixed = pa.concat_tables(
            [
                columns((1, 1), (2, 2)),
                columns((1, 3), name=other),
                columns((1, 4), snapshot=2),
                columns((3, 5)),
            ]
        )
        assert put(store, "stats.columns", mixed) == Counts(5, 5, 0, 0)
        assert self.stored(store) == [(1, 1), (2, 2), (3, 5)]
        assert self.stored(store, 2) == [(1, 4)]
        table = store.find(other)
        assert table is not None and store.count(table, 1) == 1
        assert self.entry(store).current_snapshot_id == 2, "an external table's greatest snapshot is current"

    def test_put_of_several_flights_is_atomic(self, store):
        put(store, "stats.columns", columns((1, 10)))
        with pytest.raises(Conflict):
            store.put(
                [
                    Put("stats.tables", rows("stats.tables", {"row_count": 1}, snapshot=9)),
                    Put("stats.columns", columns((1, 11))),
                ]
            )
        with pytest.raises(NotFound):
            store.count(self.entry(store), 9)

    def test_refused_put_registers_no_table(self, store):
        mixed = pa.concat_tables([columns((1, 1), name=("c", "s", "new")), columns((1, 2), name=("c", "s", "new"))])
        with pytest.raises(InvalidArgument):
            put(store, "stats.columns", mixed)
        assert store.find(("c", "s", "new")) is None

    def test_column_names_get_stable_ids(self, store):
        named = rows("stats.columns", *({"column_name": n, "row_count": 1} for n in ("b", "a")))
        put(store, "stats.columns", named)
        assert self.stored(store) == [(1, 1), (2, 1)]
        put(
            store,
            "stats.columns",
            rows(
                "stats.columns", {"column_name": "c", "row_count": 1}, {"column_name": "a", "row_count": 7}, snapshot=2
            ),
        )
        assert self.stored(store, 2) == [(2, 7), (3, 1)]

    # Idempotency.

    def test_idempotent_replay_returns_the_first_counts(self, store):
        first = put(store, "stats.columns", columns((1, 10), (2, 20)), key="k")
        assert first == Counts(2, 2, 0, 0)
        put(store, "stats.columns", columns((1, 11)), "upsert")
        cut = pa.concat_tables([columns((1, 10)), columns((2, 20))])
        assert put(store, "stats.columns", cut, key="k") == first, "however the rows were cut"
        assert self.stored(store) == [(1, 11), (2, 20)], "a replay stores nothing"

    @pytest.mark.parametrize("change", ["rows", "mode", "order"])
    def test_idempotency_key_with_other_content_is_refused(self, store, change):
        put(store, "stats.columns", columns((1, 10), (2, 20)), key="k")
        table = {"rows": columns((1, 10)), "mode": columns((1, 10), (2, 20)), "order": columns((2, 20), (1, 10))}[
            change
        ]
        with pytest.raises(Conflict, match="was used before"):
            put(store, "stats.columns", table, "upsert" if change == "mode" else "create", key="k")

    def test_idempotency_key_of_a_refused_put_is_reusable(self, store):
        put(store, "stats.columns", columns((1, 10)))
        with pytest.raises(Conflict):
            put(store, "stats.columns", columns((1, 11)), key="k")
        assert put(store, "stats.columns", columns((2, 20)), key="k") == Counts(1, 1, 0, 0)

    # Sketches.

    def test_replace_snapshot_keeps_the_sketches_of_kept_targets(self, store):
        put(store, "stats.columns", columns((1, 10), (2, 20)))
        put(store, "stats.sketches", rows("stats.sketches", sketch(1), sketch(2), sketch(1, "QUANTILES")))
        put(store, "stats.columns", columns((1, 11), (3, 30)), "replace_snapshot")
        first = Target.column(1).storage_id
        assert self.sketches(store, 1) == [(first, "NDV", b"theta"), (first, "QUANTILES", b"theta")]

    def test_replaced_sketches_keep_the_roles_absent_from_the_put(self, store):
        put(store, "stats.sketches", rows("stats.sketches", sketch(1), sketch(1, "QUANTILES"), sketch(2)))
        done = put(store, "stats.sketches", rows("stats.sketches", sketch(1, data=b"new")), "replace_snapshot")
        assert done == Counts(1, 0, 0, 1)
        first = Target.column(1).storage_id
        assert self.sketches(store, 1) == [(first, "NDV", b"new"), (first, "QUANTILES", b"theta")]

    def test_replace_snapshot_drops_the_sketches_of_dropped_files(self, store):
        put(store, "stats.files", rows("stats.files", {"file_path": "a"}, {"file_path": "b"}))
        of_files = (
            {"target_kind": "FILE", "file_path": f, "column_id": 1, "role": "NDV", "sketch_type": THETA, "data": b"x"}
            for f in "ab"
        )
        put(store, "stats.sketches", rows("stats.sketches", *of_files))
        put(store, "stats.files", rows("stats.files", {"file_path": "b"}), "replace_snapshot")
        assert [s[0] for s in self.sketches(store, 1, of_files=True)] == [Target.file("b").storage_id]

    # Reading.

    def test_list_returns_pages_in_the_order_of_storage_ids(self, store):
        put(store, "stats.columns", columns((10, 1), (9, 1), (100, 1)))
        put(store, "stats.tables", rows("stats.tables", {"row_count": 1}))
        put(store, "stats.files", rows("stats.files", *({"file_path": f"f{i}", "row_count": i} for i in range(5))))
        put(store, "stats.column_groups", rows("stats.column_groups", {"column_ids": [9, 10]}))
        put(
            store,
            "stats.expressions",
            rows("stats.expressions", {"engine_kind": "Spark", "engine_expression_key": b"k"}),
        )
        table = self.entry(store)
        expected = sorted(
            [
                *(Target.column(i).storage_id for i in (9, 10, 100)),
                "table",
                Target.column_group([9, 10]).storage_id,
                Target.expression("spark", b"k").storage_id,
                *(Target.file(f"f{i}").storage_id for i in range(5)),
            ]
        )
        found, token, pages = [], "", 0
        while pages == 0 or token:
            page, token, total = store.list(table, 1, page_token=token, page_size=4)
            assert total == 11
            found += [(row["storage_id"], row["target_kind"]) for row in page]
            pages += 1
        assert [storage_id for storage_id, _ in found] == expected
        assert pages == 3 and found[-1] == ("table", "TABLE")
        assert [r["column_id"] for r in store.list(table, 1, TargetKind.COLUMN)[0]] == [9, 10, 100]

    def test_full_last_page_has_no_token(self, store):
        put(store, "stats.columns", columns((1, 1), (2, 1)))
        page, token, total = store.list(self.entry(store), 1, page_size=2)
        assert (len(page), token, total) == (2, "", 2)

    def test_count_by_target_kind(self, store):
        put(store, "stats.columns", columns((1, 1), (2, 1)))
        put(store, "stats.tables", rows("stats.tables", {"row_count": 1}))
        table = self.entry(store)
        counts = [store.count(table, 1, kind) for kind in (None, TargetKind.COLUMN, TargetKind.TABLE, TargetKind.FILE)]
        assert counts == [3, 2, 1, 0]

    def test_get_finds_targets_of_every_kind(self, store):
        put(store, "stats.columns", columns((1, 7)))
        put(store, "stats.tables", rows("stats.tables", {"row_count": 7}))
        put(store, "stats.files", rows("stats.files", {"file_path": "f", "row_count": 7}))
        put(store, "stats.column_groups", rows("stats.column_groups", {"column_ids": [2, 1], "row_count": 7}))
        expression = {"engine_kind": "spark", "engine_expression_key": b"\0k", "row_count": 7}
        put(store, "stats.expressions", rows("stats.expressions", expression))
        table = self.entry(store)
        targets = [
            Target.table(),
            Target.column(1),
            Target.file("f"),
            Target.column_group([1, 2]),
            Target.expression("SPARK", b"\0k"),
        ]
        assert [store.get(table, 1, target)["row_count"] for target in targets] == [7] * 5
        assert store.get(table, 1, Target.column(2)) is None
        assert store.get(table, 2, Target.table()) is None

    def test_unknown_snapshot_is_not_found_and_an_emptied_one_lists_nothing(self, store):
        put(store, "stats.columns", columns((1, 1)))
        table = self.entry(store)
        for read in (store.count, store.list, lambda t, s: store.meta(t, s, Target.table())):
            with pytest.raises(NotFound):
                read(table, 99)
        store.delete(table, 1)
        assert store.list(table, 1) == ([], "", 0)

    def test_rows_can_be_put_into_another_store(self, store, tmp_path):
        put(store, "stats.tables", rows("stats.tables", {"row_count": 3, "schema_hash": "h"}))
        put(store, "stats.columns", columns((1, 10), (2, 20)))
        put(store, "stats.column_groups", rows("stats.column_groups", {"column_ids": [2, 1], "ndv": 3.0}))
        put(store, "stats.files", rows("stats.files", {"file_path": "a", "row_count": 1}, snapshot=2))
        put(store, "stats.file_columns", rows("stats.file_columns", {"file_path": "a", "column_id": 1}, snapshot=2))
        of_file = {"target_kind": "FILE", "file_path": "a", "column_id": 1, "role": "NDV", "sketch_type": THETA}
        put(store, "stats.sketches", rows("stats.sketches", sketch(1), snapshot=2))
        put(store, "stats.sketches", rows("stats.sketches", of_file | {"data": b"f"}, snapshot=2))
        (table,) = store.tables()
        assert (table.name, store.captured_snapshots(table)) == (NAME, {1, 2})
        other = self.open(tmp_path / "other.db")
        for snapshot, flight in itertools.product((1, 2), IDENTITY):
            found = store.rows(table, snapshot, flight)
            other.put([Put("stats.sketches" if flight == "file_sketches" else flight, found, PutMode.UPSERT)])
        (same,) = other.tables()
        assert (same.table_id, other.captured_snapshots(same)) == (table.table_id, {1, 2})
        for snapshot, flight in itertools.product((1, 2), IDENTITY):
            found = other.rows(same, snapshot, flight)
            assert ordered(found) == ordered(store.rows(table, snapshot, flight)), flight
        other.close()

    # Deleting.

    def test_delete_of_a_target_a_snapshot_or_a_table(self, store):
        for snapshot in (1, 2):
            put(store, "stats.columns", columns((1, 1), (2, 1), snapshot=snapshot))
            put(store, "stats.sketches", rows("stats.sketches", sketch(1), sketch(2), snapshot=snapshot))
            put(store, "stats.files", rows("stats.files", {"file_path": "a"}, {"file_path": "b"}, snapshot=snapshot))
        table = self.entry(store)
        assert store.delete(table, 1, Target.column(1)) == 1
        assert [s[0] for s in self.sketches(store, 1)] == [Target.column(2).storage_id]
        assert store.delete(table, 1, Target.file("a")) == 1
        assert (store.count(table, 1), store.count(table, 2)) == (2, 4)
        assert store.delete(table, None, Target.column(2)) == 2
        assert store.delete(table, 2) == 3
        assert (store.count(table, 1), store.count(table, 2)) == (1, 0)
        assert not self.sketches(store, 2)
        assert store.delete(table) == 1
        assert store.delete(table) == 0

    # Metadata.

    def test_meta_returns_hash_generation_and_times(self, store):
        put(store, "stats.columns", rows("stats.columns", {"column_id": 1, "row_count": 10, "refreshed_at": EARLY}))
        table, target = self.entry(store), Target.column(1)
        first = store.meta(table, 1, target)
        assert first.refreshed_at == EARLY and first.created_at.tzinfo is not None
        assert len(first.content_hash) == 64
        put(store, "stats.columns", columns((1, 11)), "upsert")
        second = store.meta(table, 1, target)
        assert second.content_hash != first.content_hash and second.generation > first.generation
        with pytest.raises(NotFound):
            store.meta(table, 1, Target.column(2))

    def test_content_hash_ignores_only_times_and_names(self, store):
        base = {"column_id": 1, "row_count": 10, "engine_id": "e"}
        changes = [
            {},
            {"captured_at": EARLY},
            {"refreshed_at": LATE},
            {"column_name": "x"},
            {"engine_id": "f"},
            {"min": "a", "logical_type": "STRING"},
            {"null_count": 0},
        ]
        for snapshot, change in enumerate(changes):
            put(store, "stats.columns", rows("stats.columns", base | change, snapshot=snapshot))
        table = self.entry(store)
        hashes = [store.meta(table, snapshot, Target.column(1)).content_hash for snapshot in range(len(changes))]
        assert len(set(hashes[:4])) == 1
        assert len(set(hashes[3:])) == 4

    def test_content_hash_includes_sketches(self, store):
        put(store, "stats.columns", columns((1, 10)))
        table, target = self.entry(store), Target.column(1)
        hashes = [store.meta(table, 1, target).content_hash]
        for change in ({}, {"data": b"other"}):
            put(store, "stats.sketches", rows("stats.sketches", sketch(1, **change)), "upsert")
            hashes.append(store.meta(table, 1, target).content_hash)
        put(store, "stats.sketches", rows("stats.sketches", sketch(1, data=b"other") | {"captured_at": LATE}), "upsert")
        assert len(set(hashes)) == 3
        assert store.meta(table, 1, target).content_hash == hashes[-1], "the hash ignores its time"
