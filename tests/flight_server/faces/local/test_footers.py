"""Footers kept in the database."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors.footers.kept import footers_of, keeping
from capture.connectors.footers.metadata import read_bytes, schema_in
from flight_server.faces.local.footers import KEPT_FOR, StoredFooters


def test_a_footer_is_that_of_the_same_file_alone(database):
    kept = StoredFooters(database)
    kept.put({("a", 1, 5): b"one", ("b", 2, 0): b"two"})
    assert kept.get([("a", 1, 5), ("a", 1, 6), ("b", 3, 0), ("c", 1, 5)]) == {("a", 1, 5): b"one"}
    kept.put({("a", 1, 6): b"three"})
    assert kept.get([("a", 1, 5), ("a", 1, 6), ("b", 2, 0)]) == {("a", 1, 6): b"three", ("b", 2, 0): b"two"}


def test_old_footers_go_when_others_come(database):
    kept = StoredFooters(database)
    kept.put({("a", 1, 5): b"one"})
    old = datetime.now(UTC) - 2 * KEPT_FOR
    database.write(lambda connection: connection.execute("UPDATE footers SET kept_at = ?", [old]) and None)
    kept.put({("b", 2, 0): b"two"})
    assert database.rows("SELECT path FROM footers") == [("b",)]


def test_a_kept_file_is_not_opened(database, tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), file)
    opened = []

    def opening():
        opened.append(file)
        return pa.OSFile(str(file))

    key = (str(file), file.stat().st_size, 0)
    with keeping(StoredFooters(database)):
        first = dict(footers_of({key: opening}))
        assert dict(footers_of({key: opening})) == first
    assert opened == [file]
    assert schema_in(first[key]) == pa.schema([("id", pa.int32())])
    assert dict(footers_of({key: opening})) == first  # nothing is kept outside of the block
    assert opened == [file, file]


def test_what_was_read_before_an_error_is_kept(database, tmp_path):
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(pa.table({"id": [1]}), good)
    bad.write_bytes(b"not Parquet at all")
    files = {(path.name, 1, 0): lambda path=path: pa.OSFile(str(path)) for path in (good, bad)}
    kept = StoredFooters(database)
    with keeping(kept):
        with pytest.raises((ValueError, pa.ArrowException), match=r"not be a Parquet file|magic bytes"):
            list(footers_of(files))
        with pa.OSFile(str(good)) as file:
            assert kept.get([("good.parquet", 1, 0)]) == {("good.parquet", 1, 0): read_bytes(file)}
