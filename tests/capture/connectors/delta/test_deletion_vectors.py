"""Deletion vectors: deleted rows, encoding, listing with their file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.capture.connectors.delta.lakes import LAKES, captured, connector, needs_lakes, scanned

pytest.importorskip("deltalake")


@needs_lakes
def test_rows_of_deletion_vectors_are_deleted_and_bounds_inexact():
    found = connector(LAKES)
    stats, rows = captured(found, "table-with-dv-small")
    assert (stats.row_count, stats.row_deletes, stats.data_file_count) == (8, True, 1)
    (row,) = rows["value"]
    assert (row["row_count"], row["null_count"], row["min"], row["max"]) == (8, 0, "0", "9")
    assert row["min_is_exact"] is row["max_is_exact"] is False
    assert scanned(found, "table-with-dv-small", 1) == {"value": list(range(1, 9))}
    before, rows = captured(found, "table-with-dv-small", 0)
    assert (before.row_count, before.row_deletes, rows["value"][0]["max_is_exact"]) == (10, False, True)
    short, _ = captured(found, "with-short-dv")
    assert (short.row_count, sorted(scanned(found, "with-short-dv", 0)["id"])) == (7, list(range(3, 10)))


@needs_lakes
def test_deletion_vector_changes_the_fingerprint():
    found = connector(LAKES)
    plans = [found.plan_files("default", "table-with-dv-small", v, {"value": 1}) for v in (0, 1)]
    before, after = map(next, plans)
    assert before.file_path == after.file_path
    assert before.fingerprint != after.fingerprint


def test_vector_is_decoded_as_in_the_delta_protocol():
    from capture.connectors.delta.deletion_vectors import identity, relative_path, z85

    # the example of the Delta protocol
    assert z85("^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")[:4] == (1681511377).to_bytes(4, "little")
    assert relative_path("ab^-aqEH.-t@S}K{vb[*k^") == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 4}
    assert identity(vector) != identity(vector | {"offset": 8}) != identity(None) == ""
    assert z85("0rr91##093") == b"\x01\0\0\0\x03\0"
    for wrong in ("abcd", "~~~~~", "#####", "##0930rr91"):
        with pytest.raises(ValueError, match="not valid Z85"):
            z85(wrong)


@needs_lakes
def test_vector_is_listed_as_a_delete_file_of_its_data_file():
    files = captured(connector(LAKES / "table-with-dv-small"), "table-with-dv-small", 1)[0].files.to_pylist()
    (vector,) = files[0]["delete_files"]
    assert Path(vector["file_path"]).is_file()
    assert (vector["file_content"], vector["content_offset"], vector["content_size"]) == ("DELETION_VECTOR", 1, 36)
    before = captured(connector(LAKES / "table-with-dv-small"), "table-with-dv-small", 0)[0].files
    assert before["delete_files"].to_pylist() == [[]]
    plain = captured(connector(LAKES / "simple_table"), "simple_table")[0].files
    assert set(map(len, plain["delete_files"].to_pylist())) == {0}


def test_inline_vector_has_no_file_path():
    from capture.connectors.delta.deletion_vectors import delete_files
    from capture.connectors.delta.log_files import VECTOR
    from capture.connectors.storage.places import open_place

    place = open_place("/t", {})
    inline = {"storageType": "i", "pathOrInlineDv": "0rr91", "offset": None, "sizeInBytes": 4, "cardinality": 1}
    stored = inline | {"storageType": "p", "pathOrInlineDv": "/dv.bin", "offset": 7}
    found = delete_files(pa.array([inline, None, stored], VECTOR), place, lambda path: open_place(path, {}))
    assert [[tuple(row.values()) for row in rows] for rows in found.to_pylist()] == [
        [(None, "DELETION_VECTOR", None, 4)],
        [],
        [("/dv.bin", "DELETION_VECTOR", 7, 4)],
    ]
