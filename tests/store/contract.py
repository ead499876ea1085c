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
from store.model.errors import Conflict, InvalidArgument
from store.model.puts import IDENTITY
from store.model.schemas import FLIGHTS, THETA
from store.model.targets import Target
from store.stats_store import Counts, Put, PutMode
from store.stores import StatsStore

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
        before = self.records(store)
        store.close()
        again = self.open(tmp_path / "again.db")
        table = self.entry(again)
        assert self.records(again) == before
        assert put(again, "stats.columns", columns((1, 10), (2, 20)), key="k") == first
        with pytest.raises(Conflict):
            put(again, "stats.columns", columns((1, 11)), key="k")
        assert table.current_snapshot_id == 1
        put(again, "stats.columns", columns((1, 12)), "upsert")
        assert again.delete(table, 1, Target.column(2)) == 1
        again.close()
        assert self.stored(self.open(tmp_path / "again.db")) == [(1, 12)]

    def stored(self, store: StatsStore, snapshot: int = 1) -> list[tuple[int, int]]:
        """(column id, row count) of each record of a column at a snapshot, in order."""
        found = store.rows(self.entry(store), snapshot, "stats.columns").to_pylist()
        return sorted((row["column_id"], row["row_count"]) for row in found)

    def records(self, store: StatsStore, snapshot: int = 1) -> dict[str, list[dict[str, Any]]]:
        """The records of each flight at a snapshot."""
        return {flight: ordered(store.rows(self.entry(store), snapshot, flight)) for flight in IDENTITY}

    def count(self, store: StatsStore, snapshot: int) -> int:
        """Number of records of tables, columns and files at a snapshot."""
        flights = ("stats.tables", "stats.columns", "stats.files")
        return sum(store.rows(self.entry(store), snapshot, flight).num_rows for flight in flights)

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
        (record,) = self.records(store)["stats.columns"]
        assert (record["row_count"], record["null_count"]) == (None, 3)

    def test_fill_keeps_stored_records(self, store):
        put(store, "stats.columns", columns((1, 10)))
        assert put(store, "stats.columns", columns((1, 99), (2, 20)), "fill") == Counts(2, 1, 1, 0)
        assert self.stored(store) == [(1, 10), (2, 20)]

    @pytest.mark.parametrize(("flight", "target"), [
        ("stats.columns", {"column_id": 1}), ("stats.file_columns", {"file_path": "f", "column_id": 1})])  # fmt: skip
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
            return put(store, "stats.sketches", rows("stats.sketches", sketch(1, data=data) | {"params": params}),
                       "capture").replaced  # fmt: skip

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
        assert self.records(store)["stats.tables"], "and another flight"

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
        assert self.records(store)["stats.columns"][0]["captured_at"] == EARLY

    def test_put_stores_rows_of_many_tables_and_snapshots(self, store):
        other = ("c", "s", "u")
        mixed = pa.concat_tables([
            columns((1, 1), (2, 2)), columns((1, 3), name=other), columns((1, 4), snapshot=2), columns((3, 5)),
        ])  # fmt: skip
        assert put(store, "stats.columns", mixed) == Counts(5, 5, 0, 0)
        assert self.stored(store) == [(1, 1), (2, 2), (3, 5)]
        assert self.stored(store, 2) == [(1, 4)]
        table = store.find(other)
        assert table is not None and store.rows(table, 1, "stats.columns").num_rows == 1
        assert self.entry(store).current_snapshot_id == 2, "an external table's greatest snapshot is current"

    def test_put_of_several_flights_is_atomic(self, store):
        put(store, "stats.columns", columns((1, 10)))
        with pytest.raises(Conflict):
            store.put([
                Put("stats.tables", rows("stats.tables", {"row_count": 1}, snapshot=9)),
                Put("stats.columns", columns((1, 11))),
            ])  # fmt: skip
        assert store.captured_snapshots(self.entry(store)) == {1}

    def test_refused_put_registers_no_table(self, store):
        mixed = pa.concat_tables([columns((1, 1), name=("c", "s", "new")), columns((1, 2), name=("c", "s", "new"))])
        with pytest.raises(InvalidArgument):
            put(store, "stats.columns", mixed)
        assert store.find(("c", "s", "new")) is None

    def test_column_names_get_stable_ids(self, store):
        named = rows("stats.columns", *({"column_name": n, "row_count": 1} for n in ("b", "a")))
        put(store, "stats.columns", named)
        assert self.stored(store) == [(1, 1), (2, 1)]
        put(store, "stats.columns", rows("stats.columns", {"column_name": "c", "row_count": 1},
                                         {"column_name": "a", "row_count": 7}, snapshot=2))  # fmt: skip
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
        with pytest.raises(Conflict, match='"k" was used before'):
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
        of_files = ({"target_kind": "FILE", "file_path": f, "column_id": 1, "role": "NDV", "sketch_type": THETA,
                     "data": b"x"} for f in "ab")  # fmt: skip
        put(store, "stats.sketches", rows("stats.sketches", *of_files))
        put(store, "stats.files", rows("stats.files", {"file_path": "b"}), "replace_snapshot")
        assert [s[0] for s in self.sketches(store, 1, of_files=True)] == [Target.file("b").storage_id]

    # Reading.

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
        assert (self.count(store, 1), self.count(store, 2)) == (2, 4)
        assert store.delete(table, None, Target.column(2)) == 2
        assert store.delete(table, 2) == 3
        assert (self.count(store, 1), self.count(store, 2)) == (1, 0)
        assert not self.sketches(store, 2)
        assert store.delete(table) == 1
        assert store.delete(table) == 0
