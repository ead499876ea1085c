"""Files of segments: what is refused, whose a directory is, and which files are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.duckdb.arrow_sql import OverArrow
from store.duckdb.layout import OPEN_END
from store.duckdb.segment_files import SegmentError, SegmentFiles, Written
from store.duckdb.segments import Segment
from store.model.errors import InvalidArgument
from tests.store.empty_store import empty_database

ROWS = pa.table({"file_path": ["a", "b"], "column_id": [1, 2]})


@pytest.fixture
def files(tmp_path: Path) -> SegmentFiles:
    return SegmentFiles(tmp_path / "segments")


def test_file_is_private_and_read_as_it_was_written(files):
    written = files.write(ROWS)
    path = files.path(written.name)
    assert path.stat().st_mode & 0o077 == 0
    assert SegmentFiles(files.directory).check(written.name, written.digest) == {"file_path", "column_id"}
    assert pq.read_table(path).equals(ROWS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged"),
        (lambda path: pq.write_table(ROWS.slice(1), path), "is damaged"),
    ],
)
def test_changed_file_is_refused_by_its_name(files, change, reason):
    written = files.write(ROWS)
    change(files.path(written.name))
    with pytest.raises(SegmentError, match=f"{written.name} {reason}"):
        files.check(written.name, written.digest)


def test_columns_without_values_are_not_told_of_a_file_just_written(files):
    written = files.write(ROWS.append_column("mean", pa.nulls(ROWS.num_rows, pa.float64())))
    known = files.check(written.name, written.digest)
    assert "mean" not in known
    assert known == SegmentFiles(files.directory).check(written.name, written.digest)


def test_directory_belongs_to_one_database(files):
    files.prepare()
    files.claim("one")
    files.claim("one")
    with pytest.raises(InvalidArgument, match="another database"):
        files.claim("two")


def test_file_that_no_row_names_is_deleted_once_its_reads_have_ended(files):
    used, left, pending = (files.write(ROWS).name for _ in range(3))
    files.keep([used, left])
    assert files.collect([used], grace_seconds=900) == 0
    assert files.collect([used], grace_seconds=0) == 1
    assert not files.path(left).exists()
    assert files.path(used).exists()
    assert files.path(pending).exists()


def test_file_that_appears_during_a_capture_stays_until_that_has_ended(files):
    before = files.write(ROWS).name
    files.keep([before])
    files.collect([], grace_seconds=900)
    for capture in ("one", "another", "one"):
        files.expect(capture)
    since = SegmentFiles(files.directory).write(ROWS).name  # by another process
    assert files.collect([], grace_seconds=0) == 1
    assert [path.name for path in files.directory.glob("*")] == [since]
    files.expect_no_more("one")
    assert files.collect([], grace_seconds=0) == 0
    files.expect_no_more("another")
    assert files.collect([], grace_seconds=900) == 0
    assert files.collect([], grace_seconds=0) == 1


class Counting(OverArrow):
    """A connection that counts its statements."""

    def __init__(self, connection: Any):
        self._connection, self.count = connection, 0

    def execute(self, sql: str, given: Any = None, tables: Mapping[str, pa.Table] = MappingProxyType({})) -> Any:
        self.count += 1
        for name, table in tables.items():
            self._connection.register(name, table)
        return self._connection.execute(sql, given)


@pytest.mark.parametrize("files", [0, 1, 500])
def test_commit_of_many_files_is_as_few_statements_as_of_one(files):
    """Other writes wait for it: each statement takes a millisecond."""
    written = [Written(f"{number:032x}.parquet", "0" * 64, 9, 7) for number in range(files)]
    database = empty_database()
    segments = database.segments
    segments.expect(1)

    def add(connection: Any) -> tuple[list[int], int]:
        counting = Counting(connection)
        return segments.add(counting, 1, "stats.files", written, (None, OPEN_END), 3, 5), counting.count

    numbers, count = database.write(add)
    assert count <= 3
    with database.reading() as cursor:
        found = segments.find(cursor)
    expected = [
        Segment(number, 1, "stats.files", file.name, file.digest, 7, None, OPEN_END, 3, 5, has_ends=False)
        for number, file in zip(numbers, written, strict=True)
    ]
    assert found == expected
    database.close()


@pytest.mark.parametrize(("listed", "end"), [([0], OPEN_END), ([], None)])
def test_listings_that_are_deleted_change_many_segments_by_few_statements(listed, end):
    written = [Written(f"{number:032x}.parquet", "0" * 64, 9, 7) for number in range(300)]
    database = empty_database()
    segments = database.segments
    segments.expect(1)

    def change(connection: Any) -> tuple[int, int]:
        segments.add(connection, 1, "stats.files", written, (0, 5), 3, 5)
        for pos in listed:
            connection.execute(
                "INSERT INTO file_snapshots (table_key, family, snapshot_id, pos) VALUES (1, 'stats.files', 9, ?)",
                [pos],
            )
        counting = Counting(connection)
        return segments.tidy(counting, "stats.files", [1]), counting.count

    changed, count = database.write(change)
    assert changed == len(written)
    assert count <= 5
    with database.reading() as cursor:
        assert {segment.to_pos for segment in segments.find(cursor)} == ({end} if end else set())
    database.close()
