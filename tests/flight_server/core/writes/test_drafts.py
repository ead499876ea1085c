"""Drafts committed in one transaction: stored together, rejected one by one; many rows go to the store before it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.core.writes import drafts
from flight_server.core.writes.drafts import Draft, store_drafts
from store import segment_listings, staged_listings
from store.catalog.catalog import Catalog
from store.duckdb.layout import BY_SNAPSHOT
from store.duckdb.segment_files import SegmentError, SegmentFiles, Written
from store.history import validation
from store.history.file_listings import FAMILIES, ListingChanged
from store.history.file_spans import rows_of
from store.model.errors import InvalidArgument
from store.model.puts import Listing
from store.model.schemas import FLIGHTS
from store.segment_making import HandedOver, SegmentMaker, taken_over
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.store.empty_store import empty_database


class DraftStore:
    def __init__(self) -> None:
        self.database = empty_database()
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(self.database, self.catalog)
        self.puts: list[int] = []
        self.makes = False  # the worker writes rows of files itself
        put_in = self.store.put_in

        def counted(connection: Any, puts: Any, **more: Any) -> Any:
            self.puts.append(sum(put.rows.num_rows for put in puts))
            return put_in(connection, puts, **more)

        self.store.put_in = counted  # type: ignore[method-assign]

    def table(self, name: str) -> Any:
        return self.database.write(lambda c: self.catalog.register(c, ("lake", "s", name), None, "parquet"))

    def count(self, table: Any) -> int:
        """Number of stored column records of the table."""
        physical = BY_SNAPSHOT["stats.columns"]
        return self.database.rows(f"SELECT count(*) FROM {physical} WHERE table_key = ?", table.table_key)[0][0]


@pytest.fixture
def draft_store():
    created = DraftStore()
    yield created
    created.database.close()


def draft(name: str, *columns: int, twice: bool = False) -> Draft:
    created = Draft()
    for number in (1, 2) if twice else (1,):
        rows = pa.Table.from_pylist(
            [
                {
                    "table_catalog": "lake",
                    "table_schema": "s",
                    "table_name": name,
                    "snapshot_id": 1,
                    "column_id": i,
                    "row_count": number,
                }
                for i in columns
            ]
        )
        created.add(Put("stats.columns", validation.prepare(FLIGHTS["stats.columns"], rows), PutMode.CAPTURE), False)
    return created


def commit(draft_store: DraftStore, drafts: list[tuple[Draft, Any]]) -> None:
    """Stores drafts in one write."""
    draft_store.database.write(lambda connection: store_drafts(connection, draft_store.store, drafts))


def test_drafts_of_one_transaction_are_stored_by_one_put(draft_store):
    tables = [draft_store.table(f"t{n}") for n in range(4)]
    commit(draft_store, [(draft(t.table_name, 1, 2), t) for t in tables])
    assert draft_store.puts == [8]
    assert [draft_store.count(t) for t in tables] == [2] * 4


def test_conflicting_rows_of_one_draft_refuse_the_write(draft_store):
    tables = [draft_store.table(f"t{n}") for n in range(3)]
    drafts = [draft("t0", 1), draft("t1", 1, twice=True), draft("t2", 1)]  # two different rows for one target
    with pytest.raises(InvalidArgument, match="two different rows"):
        commit(draft_store, list(zip(drafts, tables, strict=True)))
    assert [draft_store.count(t) for t in tables] == [0, 0, 0]


def test_single_draft_is_stored(draft_store):
    table = draft_store.table("t")
    commit(draft_store, [(draft("t", 1, 2, 3), table)])
    assert (draft_store.puts, draft_store.count(table)) == ([3], 3)


def continued(name: str, snapshot: int, values: dict[str, int], base: Listing | None = None, *gone: str) -> Draft:
    """A draft with the files of a snapshot that differ from those of its base."""
    created = Draft()
    created.declare(Listing(snapshot, f"{name} {snapshot}", base and base.snapshot_id, base.mark if base else "", gone))
    mode = PutMode.CAPTURE if base else PutMode.REPLACE_SNAPSHOT
    for flight in FAMILIES:
        created.add(files(flight, values, snapshot, mode, name), whole=base is None)
    return created


def test_drafts_that_continue_listings_are_stored_by_one_put_unless_they_are_of_one_table(draft_store):
    tables = [draft_store.table(f"t{n}") for n in range(3)]
    commit(draft_store, [(continued(t.table_name, 1, {"a": 1, "b": 1}), t) for t in tables])
    first = {t: Listing(1, f"{t.table_name} 1") for t in tables}
    draft_store.puts.clear()
    later = [(continued(t.table_name, 2, {"c": 2}, first[t], "a"), t) for t in tables[:2]]
    unchanged = Draft()
    unchanged.declare(Listing(1, "again", 1, first[tables[2]].mark))
    commit(draft_store, [*later, (unchanged, tables[2])])
    assert draft_store.puts == [4]
    for flight in FAMILIES:
        assert [stored(draft_store, t, 2, flight) for t in tables] == [{"b": 1, "c": 2}, {"b": 1, "c": 2}, {}]
        assert [stored(draft_store, t, 1, flight) for t in tables] == [{"a": 1, "b": 1}] * 3
    second = Listing(2, "t0 2")
    draft_store.puts.clear()
    chain = [continued("t0", 3, {"d": 3}, second), continued("t0", 4, {"e": 4}, Listing(3, "t0 3"), "b")]
    commit(draft_store, [(each, tables[0]) for each in chain])
    assert draft_store.puts == [2, 2, 0]
    assert stored(draft_store, tables[0], 4) == {"c": 2, "d": 3, "e": 4}


# Many rows.


@pytest.fixture(params=["pieces", "segments", "handed over"])
def many_rows(draft_store, monkeypatch, request):
    """A table of a lake; rows of files are many from 4 on, and stored in pieces of 3, or in segments of 3, or written
    by the worker as segments of any size."""
    draft_store.makes = request.param == "handed over"
    monkeypatch.setattr(draft_store.database.segments, "cells", None if request.param == "pieces" else 4)
    monkeypatch.setattr(segment_listings, "ROWS", 3)
    monkeypatch.setattr(drafts, "MANY_ROWS", 4)
    monkeypatch.setattr(staged_listings, "_PIECE_ROWS", 3)
    return draft_store.table("t")


def files(flight: str, values: dict[str, int], snapshot: int, mode: PutMode, name: str = "t") -> Put:
    more = {} if flight == "stats.files" else {"column_id": 1}
    each = [
        {
            "table_catalog": "lake",
            "table_schema": "s",
            "table_name": name,
            "snapshot_id": snapshot,
            "file_path": path,
            "row_count": count,
        }
        | more
        for path, count in values.items()
    ]
    return Put(flight, validation.prepare(FLIGHTS[flight], pa.Table.from_pylist(each)), mode)


def stored(draft_store: DraftStore, table: Any, snapshot: int, flight: str = "stats.file_columns") -> dict[str, int]:
    source, values = rows_of(flight, table, snapshot)
    with draft_store.database.reading() as cursor:
        draft_store.database.segments.attach(cursor)
        return dict(cursor.execute(f"SELECT t.file_path, t.row_count FROM {source}", values).fetchall())


def taken(draft_store: DraftStore, put: Put, written: Written) -> HandedOver:
    place = put.rows.slice(0, 0).select(["table_catalog", "table_schema", "table_name", "snapshot_id"])
    place = pa.Table.from_pylist(put.rows.select(place.column_names).slice(0, 1).to_pylist(), place.schema)
    return taken_over(draft_store.database.segments.files, Put(put.flight, place, put.mode), written)


def in_pieces(draft_store: DraftStore, puts: list[Put], snapshot: int = 1, listing: Listing | None = None) -> Draft:
    created = Draft(draft_store.store)
    if listing is not None:
        created.declare(listing)
    maker = SegmentMaker(SegmentFiles(draft_store.database.segments.files.directory)) if draft_store.makes else None
    for put in puts[:-1]:
        rows = put.rows
        if maker is not None:
            made = maker.make(put.flight, rows, checked=False)
            rows = made.repeated
            if made.written is not None:
                created.add_file(taken(draft_store, put, made.written))
        if rows.num_rows:
            created.add(Put(put.flight, rows, put.mode), whole=put.mode is PutMode.REPLACE_SNAPSHOT)
    created.add(puts[-1], whole=puts[-1].mode is PutMode.REPLACE_SNAPSHOT, few=True)  # the last ones come with the end
    return created


FIVE = dict.fromkeys("abcde", 1)


def test_many_rows_go_to_the_store_before_the_commit_and_the_last_ones_with_them(draft_store, many_rows):
    created = in_pieces(
        draft_store,
        [
            files("stats.files", FIVE, 1, PutMode.REPLACE_SNAPSHOT),
            files("stats.file_columns", FIVE, 1, PutMode.FILL),
            files("stats.file_columns", {"f": 2}, 1, PutMode.FILL),
        ],
    )
    assert created.staged.keys() == {"stats.files", "stats.file_columns"}
    created.settle()
    assert stored(draft_store, many_rows, 1) == {}
    commit(draft_store, [(created, many_rows), (draft("t", 1), many_rows)])
    assert stored(draft_store, many_rows, 1) == FIVE | {"f": 2}
    assert stored(draft_store, many_rows, 1, "stats.files") == FIVE
    assert draft_store.puts == [0, 1], "no rows of files are left to the commit"
    assert draft_store.database.rows("SELECT * FROM staged_listings") == []


@pytest.mark.parametrize("order", [(PutMode.FILL, PutMode.CAPTURE), (PutMode.CAPTURE, PutMode.FILL)])
def test_requested_rows_win_over_filled_ones_whichever_come_first(draft_store, many_rows, order):
    values = {PutMode.FILL: dict.fromkeys("abcdef", 1), PutMode.CAPTURE: dict.fromkeys("abcde", 2)}
    puts = [files("stats.file_columns", values[mode], 1, mode) for mode in order]
    created = in_pieces(draft_store, [*puts, files("stats.file_columns", {"g": 3}, 1, PutMode.FILL)])
    created.settle()
    commit(draft_store, [(created, many_rows)])
    assert stored(draft_store, many_rows, 1) == dict.fromkeys("abcde", 2) | {"f": 1, "g": 3}


def test_many_rows_continue_a_listing(draft_store, many_rows):
    first = [
        files(flight, FIVE, 1, mode)
        for flight, mode in (("stats.files", PutMode.REPLACE_SNAPSHOT), ("stats.file_columns", PutMode.FILL))
    ]
    created = in_pieces(
        draft_store, [*first, files("stats.file_columns", {"z": 1}, 1, PutMode.FILL)], listing=Listing(1, "one")
    )
    created.settle()
    commit(draft_store, [(created, many_rows)])
    new = {"a": 2, "v": 3, "w": 3, "x": 3}
    created = in_pieces(
        draft_store,
        [files("stats.file_columns", new, 2, PutMode.FILL), files("stats.files", new, 2, PutMode.CAPTURE)],
        listing=Listing(2, "two", 1, "one", ("a", "b")),
    )
    created.settle()
    assert "stats.file_columns" in created.staged
    commit(draft_store, [(created, many_rows)])
    assert stored(draft_store, many_rows, 2) == {"c": 1, "d": 1, "e": 1, "z": 1} | new
    assert stored(draft_store, many_rows, 2, "stats.files") == {"c": 1, "d": 1, "e": 1} | new
    assert stored(draft_store, many_rows, 1) == FIVE | {"z": 1}
    marks = draft_store.database.rows("SELECT DISTINCT snapshot_id, mark FROM file_snapshots ORDER BY ALL")
    assert marks == [(1, "one"), (2, "two")]


def test_closed_draft_leaves_nothing_and_takes_no_more(draft_store, many_rows):
    created = Draft(draft_store.store)
    created.add(files("stats.file_columns", FIVE, 1, PutMode.FILL), False)
    created.close()
    staged_listings.unstage(draft_store.database, "stats.file_columns", many_rows.table_key)  # or it was done already
    assert draft_store.database.rows("SELECT 1 FROM stats_file_columns") == []
    for late in (lambda: created.add(files("stats.file_columns", {"x": 1}, 1, PutMode.FILL), False), created.settle):
        with pytest.raises(ListingChanged):
            late()
            commit(draft_store, [(created, many_rows)])


# Files that a worker has written.


@pytest.fixture
def handing(draft_store, monkeypatch):
    """A table of a lake, whose rows of files are many from 4 on, and the files of its segments."""
    monkeypatch.setattr(draft_store.database.segments, "cells", 4)
    return draft_store.table("t"), draft_store.database.segments.files


def written(draft_store: DraftStore, values: dict[str, int], snapshot: int = 1) -> tuple[Put, Written]:
    """A put, and the file of its rows, as a worker writes it."""
    put = files("stats.file_columns", values, snapshot, PutMode.FILL)
    made = SegmentMaker(SegmentFiles(draft_store.database.segments.files.directory)).make(
        put.flight, put.rows, checked=False
    )
    assert made.written is not None
    return put, made.written


def test_few_handed_over_rows_go_into_the_database_and_their_file_is_deleted(draft_store, handing):
    table, segment_files = handing
    put, file = written(draft_store, {"a": 1, "b": 2})
    created = Draft(draft_store.store)
    created.add_file(taken(draft_store, put, file))
    created.settle()
    commit(draft_store, [(created, table)])
    created.close()
    assert stored(draft_store, table, 1) == {"a": 1, "b": 2}
    assert not segment_files.path(file.name).exists()
    assert draft_store.database.rows("SELECT 1 FROM segments") == []


def test_file_becomes_a_segment_as_it_is_and_stays(draft_store, handing):
    table, segment_files = handing
    put, file = written(draft_store, FIVE)
    created = Draft(draft_store.store)
    created.add_file(taken(draft_store, put, file))
    created.settle()
    commit(draft_store, [(created, table)])
    created.close()
    assert draft_store.database.rows("SELECT name FROM segments") == [(file.name,)]
    assert stored(draft_store, table, 1) == FIVE
    assert not segment_files.being_written


@pytest.mark.parametrize("count", [2, 5], ids=["few", "many"])
def test_closed_draft_deletes_its_files(draft_store, handing, count):
    _, segment_files = handing
    put, file = written(draft_store, dict.fromkeys("abcdefg"[:count], 1))
    created = Draft(draft_store.store)
    created.add_file(taken(draft_store, put, file))
    created.close()
    assert not segment_files.path(file.name).exists()
    put, file = written(draft_store, {"x": 1})
    created.add_file(taken(draft_store, put, file))
    assert not segment_files.path(file.name).exists(), "a closed draft takes no more"


def test_file_replaces_the_rows_that_differ_and_no_others(draft_store, handing):
    table, segment_files = handing
    for snapshot, values in ((1, FIVE), (2, FIVE | {"a": 2, "f": 1})):
        put, file = written(draft_store, values, snapshot)
        created = Draft(draft_store.store)
        created.add_file(taken(draft_store, put, file))
        created.settle()
        commit(draft_store, [(created, table)])
        created.close()
        assert stored(draft_store, table, snapshot) == values
    assert stored(draft_store, table, 1) == FIVE
    assert not segment_files.path(file.name).exists(), "rows that are stored are not stored twice"


def test_row_that_differs_from_one_of_a_file_is_refused(draft_store, handing):
    table, _ = handing
    created = in_pieces(
        draft_store,
        [
            files("stats.file_columns", FIVE, 1, PutMode.CAPTURE),
            files("stats.file_columns", FIVE | {"a": 2}, 1, PutMode.CAPTURE),
            files("stats.file_columns", {"g": 1}, 1, PutMode.CAPTURE),
        ],
    )
    with pytest.raises(InvalidArgument, match="two different rows"):
        created.settle()
    assert stored(draft_store, table, 1) == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: file._replace(digest="0" * 64), "is damaged"),
        (lambda file: file._replace(size_bytes=file.size_bytes + 1), "is not of the size"),
        (lambda file: file._replace(row_count=file.row_count - 1), "does not have the rows"),
        (lambda file: file._replace(name="0" * 32 + ".parquet"), "is missing"),
    ],
)
def test_file_that_is_not_what_was_written_is_refused(draft_store, handing, change, reason):
    put, file = written(draft_store, FIVE)
    with pytest.raises(SegmentError, match=reason):
        taken(draft_store, put, change(file))


@pytest.mark.parametrize("name", ["../stats.duckdb", "owner", "a.parquet", "/etc/passwd"])
def test_only_files_of_segments_are_taken(draft_store, handing, name):
    put, file = written(draft_store, FIVE)
    with pytest.raises(InvalidArgument, match="cannot be taken"):
        taken(draft_store, put, file._replace(name=name))
    taken(draft_store, put, file)
    with pytest.raises(InvalidArgument, match="cannot be taken"):
        taken(draft_store, put, file)


def test_file_of_other_columns_is_refused(draft_store, handing):
    _, segment_files = handing
    put, _ = written(draft_store, FIVE)
    other = SegmentFiles(segment_files.directory).write(pa.table({"file_path": ["a"], "column_id": ["1"]}))
    with pytest.raises(SegmentError, match="does not have the rows"):
        taken(draft_store, put, other)


def test_files_that_a_draft_is_told_of_later_stay_until_it_ends(draft_store):
    segments = draft_store.database.segments.files
    taking = Draft(draft_store.store)
    taking.expect_files()
    written = SegmentFiles(segments.directory).write(pa.table({"file_path": ["a"]}))  # by an executor
    assert segments.collect([], grace_seconds=0) == 0
    taking.close()
    taking.expect_files()  # by a late call
    assert segments.collect([], grace_seconds=0) == 1
    assert not segments.path(written.name).exists()
