"""Files of segments in a bucket: whose it is, what a copy is worth, and what is deleted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.duckdb.segment_buckets import BucketFiles, carry, files_at
from store.duckdb.segment_files import SegmentError, SegmentFiles
from store.model.errors import InvalidArgument
from store.places import IDENTITY, Directory

ROWS = pa.table({"file_path": ["a", "b"], "column_id": [1, 2]})


@pytest.fixture
def bucket(tmp_path: Path) -> Directory:
    place = Directory("bucket", tmp_path / "bucket")
    place.create(IDENTITY, b"{}")
    return place


@pytest.fixture
def files(bucket: Directory, tmp_path: Path) -> BucketFiles:
    return BucketFiles(bucket, tmp_path / "copies")


def object_of(bucket: Directory, name: str) -> Path:
    return bucket._root / "files" / name


def test_what_another_process_writes_is_read_as_it_was_written(files, bucket):
    written = BucketFiles(bucket, None).write(ROWS)
    files.adopt(written)
    assert not files.path(written.name).exists()
    assert files.check(written.name, written.digest) == {"file_path", "column_id"}
    assert pq.read_table(files.path(written.name)).equals(ROWS)
    assert files.path(written.name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"PAR1")])
def test_copy_that_is_missing_or_damaged_is_fetched_again(files, damage):
    written = files.write(ROWS)
    damage(files.path(written.name))
    files.check(written.name, written.digest)
    assert pq.read_table(files.path(written.name)).equals(ROWS)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(lambda path: path.unlink(), "is missing"), (lambda path: path.write_bytes(b"PAR1"), "is damaged")],
)
def test_object_that_is_missing_or_damaged_is_refused_by_its_name(bucket, files, damage, reason):
    written = BucketFiles(bucket, None).write(ROWS)
    damage(object_of(bucket, written.name))
    with pytest.raises(SegmentError, match=f"{written.name} {reason}"):
        files.check(written.name, written.digest)
    assert not files.path(written.name).exists()


def test_several_are_fetched_at_once_and_kept(bucket, files):
    written = [BucketFiles(bucket, None).write(ROWS) for _ in range(5)]
    files.bring({each.name: each.digest for each in written})
    for each in written:
        object_of(bucket, each.name).unlink()
        files.check(each.name, each.digest)


def test_bucket_belongs_to_one_database(files, bucket):
    files.claim("one")
    files.claim("one")
    assert BucketFiles(bucket, None).is_shared_with("one")
    assert not BucketFiles(bucket, None).is_shared_with("two")
    with pytest.raises(InvalidArgument, match="another database"):
        files.claim("two")


def test_object_that_no_row_names_is_deleted_with_its_copy_once_its_reads_have_ended(files, bucket):
    used, left, pending = (files.write(ROWS).name for _ in range(3))
    files.keep([used, left])
    assert files.collect([used], grace_seconds=900) == 0
    assert files.collect([used], grace_seconds=0) == 1
    assert files.names() == {used, pending}
    assert {path.name for path in files.directory.glob("*")} == {used, pending}


def test_copies_that_were_not_read_for_longest_go_first(files):
    written = [files.write(ROWS) for _ in range(3)]
    names = [each.name for each in written]
    files.keep(names)
    files.copies_bytes = sum(each.size_bytes for each in written[:2])
    files.check(names[0], written[0].digest)
    files.collect(names, grace_seconds=900)
    assert all(files.path(name).exists() for name in names)
    files.collect(names, grace_seconds=0)
    assert not files.path(names[1]).exists()
    assert files.path(names[0]).exists()
    assert files.names() >= set(names)


def test_files_follow_from_a_directory_to_a_bucket_and_back(bucket, tmp_path):
    before = SegmentFiles(tmp_path / "copies")
    written = [before.write(ROWS) for _ in range(2)]
    names = [each.name for each in written]
    files = BucketFiles(bucket, tmp_path / "copies")
    assert carry(before, files, [*names, "0" * 32 + ".parquet"]) == 2
    assert carry(before, files, names) == 0
    assert files.names() == set(names)
    after = SegmentFiles(tmp_path / "elsewhere")
    assert carry(files, after, names) == 2
    assert all(after.check(each.name, each.digest) for each in written)


def test_places_are_told_by_their_scheme(tmp_path):
    assert files_at(str(tmp_path), None).location == str(tmp_path)
    assert files_at(f"file://{tmp_path}", None).location == str(tmp_path)
    with pytest.raises(InvalidArgument, match=r'segments "ftp://x/y": cannot be written to'):
        files_at("ftp://x/y", None)
