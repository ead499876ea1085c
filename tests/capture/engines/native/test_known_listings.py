"""Known listings: files added and removed between captures, and roll-ups merged from parts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from capture.connectors.spi import FILE_COLUMN_SCHEMA, FILE_SCHEMA, Column, FilePart, Schema
from capture.engines.native import known_listings
from capture.engines.native.known_listings import KnownListings, ListedPart
from capture.engines.rollup import Rollup
from capture.spi import TableHandle


def handle(snapshot_id: int, *columns: str) -> TableHandle:
    schema = Schema(tuple(Column(name, "INT") for name in columns or ("v",)))
    return TableHandle("c", "s", "t", "id", snapshot_id, schema, {n: i for i, n in enumerate(columns, 1)}, None)


def part(key: str, *files: tuple[str, int], marks: list[str] | None = None) -> FilePart:
    rows = [{"file_path": path, "row_count": count, "size_bytes": 1} for path, count in files]
    table = pa.Table.from_pylist(rows, FILE_SCHEMA)
    return FilePart(key, table, lambda: iter(()), None if marks is None else pa.array(marks))


def remembered(table: TableHandle, *parts: FilePart) -> KnownListings:
    found = KnownListings()
    found.remember(table, "m", {p.key: ListedPart(p.files, p.marks, {}) for p in parts})
    return found


def removed_and_added(before: list[FilePart], after: list[FilePart]) -> tuple[list[str], list[str]] | None:
    last = remembered(handle(1), *before).last(handle(2))
    files = pa.concat_tables([p.files for p in after])
    found = known_listings.delta(last, handle(2), after, files)
    return found and (sorted(found.removed.to_pylist()), sorted(found.added.to_pylist()))


def test_new_part_adds_its_files():
    assert removed_and_added([part("p", ("a", 1))], [part("p", ("a", 1)), part("q", ("b", 1))]) == ([], ["b"])


def test_changed_part_counts_only_the_files_that_differ():
    before = [part("p", ("a", 1), ("b", 2), ("c", 3)), part("q", ("d", 4))]
    after = [part("p2", ("a", 1), ("b", 1)), part("q", ("d", 4)), part("r", ("e", 5))]
    assert removed_and_added(before, after) == (["b", "c"], ["b", "e"])


def test_file_that_moves_to_another_part_is_unchanged():
    assert removed_and_added([part("p", ("a", 1)), part("q", ("b", 1))], [part("r", ("a", 1), ("b", 1))]) == ([], [])


def test_file_with_another_mark_is_changed():
    before, after = part("p", ("a", 1), marks=["t1"]), part("p2", ("a", 1), marks=["t2"])
    assert removed_and_added([before], [after]) == (["a"], ["a"])


def test_path_in_two_parts_has_no_delta():
    assert removed_and_added([part("p", ("a", 1))], [part("p", ("a", 1)), part("q", ("a", 1))]) is None


def test_listing_of_another_schema_is_not_reused():
    listings = remembered(handle(1, "v"), part("p", ("a", 1)))
    assert listings.last(handle(2, "v")) is not None
    assert listings.last(handle(2, "v", "w")) is None


def test_changed_listing_of_the_same_snapshot_has_no_delta():
    table = handle(1)
    last = remembered(table, part("p", ("a", 1))).last(table)
    same, other = [part("p", ("a", 1))], [part("q", ("a", 1), ("b", 1))]
    assert known_listings.delta(last, table, same, same[0].files) is not None
    assert known_listings.delta(last, table, other, other[0].files) is None


def test_mark_depends_on_the_parts_and_the_schema():
    parts = [part("p", ("a", 1)), part("q", ("b", 1))]
    mark = known_listings.mark_of(handle(1), parts)
    assert mark == known_listings.mark_of(handle(2), parts[::-1])
    assert (
        len({mark, known_listings.mark_of(handle(1), parts[:1]), known_listings.mark_of(handle(1, "v", "w"), parts)})
        == 3
    )


ROWS = [
    {
        "row_count": 10,
        "null_count": 1,
        "nan_count": None,
        "min": "5",
        "max": "9",
        "min_is_exact": True,
        "max_is_exact": False,
    },
    {
        "row_count": 10,
        "null_count": 0,
        "nan_count": None,
        "min": "-3",
        "max": "9",
        "min_is_exact": False,
        "max_is_exact": True,
    },
    {"row_count": 4, "null_count": 4, "nan_count": None, "min": None, "max": None},
    {
        "row_count": 2,
        "null_count": 0,
        "nan_count": None,
        "min": "100",
        "max": "1000",
        "min_is_exact": True,
        "max_is_exact": True,
    },
]
UNKNOWN = {"row_count": 1, "null_count": None, "min": None, "max": "7"}


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[2:3], [*ROWS, UNKNOWN]])
def test_rollup_of_parts_equals_that_of_all_rows(rows):
    def of(some):
        found = Rollup("v", "INT")
        found.add(pa.Table.from_pylist([row | {"column_name": "v"} for row in some], FILE_COLUMN_SCHEMA))
        return found

    whole, united = of(rows), Rollup.of("v", "INT", [of([row]) for row in rows])
    assert united.scalars(None, None, False) == whole.scalars(None, None, False)
    assert (united.files, united.complete(len(rows))) == (whole.files, whole.complete(len(rows)))
