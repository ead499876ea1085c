"""Unique columns, by reading Parquet files."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute import uniqueness
from capture.connectors.spi import ScanColumn, ScanTask

NAN = float("nan")


def task(path, values, lt, deleted=None):
    pq.write_table(pa.table({"x": values}), path)
    size = path.stat().st_size
    column = ScanColumn(1, "x", lt, "x")
    return ScanTask("parquet", path.name, str(path), len(values), size, (column,), path.name, deleted_rows=deleted)


def unique(tmp_path, lt, *files):
    return uniqueness.is_unique(
        [task(tmp_path / f"{i}.parquet", values, lt) for i, values in enumerate(files)], 1, lambda words: None
    )


@pytest.mark.parametrize(
    ("lt", "files", "expected"),
    [
        ("INT", [pa.array([1, 2, None], pa.int32()), pa.array([3, None, 4], pa.int64())], True),
        ("INT", [pa.array([1, 2], pa.int32()), pa.array([3, 2], pa.int64())], False),
        ("DOUBLE", [pa.array([0.0, -0.0])], False),
        ("DOUBLE", [pa.array([NAN, 1.0]), pa.array([NAN])], False),
        ("DOUBLE", [pa.array([NAN, 0.1 + 0.2, 0.3])], True),
        ("STRING", [pa.array(["a", "A", "a ", "", "á", "a\u0301"])], True),
        ("STRING", [pa.array(["x" * 70 + "1", "y"]), pa.array(["x" * 70 + "1"])], False),
        ("DECIMAL(10, 2)", [pa.array([Decimal("1.0")]), pa.array([Decimal("1.00")])], False),
        ("INT", [pa.array([None, None], pa.int64())], True),
        ("INT", [pa.array([], pa.int64())], True),
        ("BOOLEAN", [pa.array([True, False])], True),
        ("BINARY", [pa.array([b"a", b"a"])], False),
    ],
)
def test_values_that_occur_twice(tmp_path, lt, files, expected):
    assert unique(tmp_path, lt, *files) is expected


def test_deleted_rows_do_not_count(tmp_path):
    values = pa.array([1, 1, 2])
    assert not uniqueness.is_unique([task(tmp_path / "a", values, "INT")], 1, lambda words: None)
    deleted = task(tmp_path / "b", values, "INT", pa.array([0], pa.int64()))
    assert uniqueness.is_unique([deleted], 1, lambda words: None)


def test_equal_hashes_of_other_values_do_not_count(tmp_path, monkeypatch):
    hashes = uniqueness.row_hashes

    def colliding(values, lt):
        found, nulls = hashes(values, lt)
        return np.where(np.isin(values.to_numpy(), [3, 7]), np.uint64(5), found), nulls

    monkeypatch.setattr(uniqueness, "row_hashes", colliding)
    assert unique(tmp_path, "INT", pa.array(range(10)))
    assert not unique(tmp_path, "INT", pa.array([*range(10), 7]))
