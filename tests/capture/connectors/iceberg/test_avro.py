"""Manifests whose schemas are alike are resolved once; a file without a schema is refused."""

from __future__ import annotations

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from capture.connectors.iceberg import avro
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import ROWS, directory, file_columns, home, rows, stats


def test_schema_of_a_writer_is_resolved_once(tmp_path):
    avro._entries.cache_clear()
    avro._lists.cache_clear()
    for count in (10, 20):
        table = built.simple_table(tmp_path / str(count), ROWS, rows(0, count), rows(count, 2 * count))
        found = file_columns(stats(directory(home(table))))
        assert {row["row_count"] for row in found.values()} == {count}
    assert (avro._entries.cache_info().misses, avro._lists.cache_info().misses) == (1, 1)


def test_file_without_a_schema_is_refused(tmp_path):
    path = tmp_path / "m.avro"
    path.write_bytes(b"Obj\x01" + b"\x00" + bytes(16))  # no metadata
    with pytest.raises(ValueError, match="no schema in the header"):
        avro.manifest_list(PyArrowFileIO().new_input(str(path)))
