"""Pass over the values of a table: every file once, few at a time, cancellable."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from capture.connectors.parquet.connector import ParquetConnector
from capture.connectors.progress import reporting
from capture.connectors.spi import ConnectorConfig
from capture.publishers.data_pass import AT_ONCE, scan
from store.model.errors import Cancelled, UpstreamError

FILES = 12 * AT_ONCE


@pytest.fixture
def lake(tmp_path):
    (tmp_path / "t").mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"x": [number] * 10, "y": ["a"] * 10}), tmp_path / f"t/part-{number:03}.parquet")
    connector = ParquetConnector(ConnectorConfig("c", "parquet", str(tmp_path)))
    return connector, connector.enumerate_snapshots("default", "t").current_snapshot_id


def test_scan_merges_every_row_once(lake):
    connector, snapshot = lake
    found = {"x": 0, "y": 0}

    def read(name: str, values: pa.ChunkedArray) -> int:
        return pc.sum(values).as_py() if name == "x" else len(values)

    for name, part in scan(connector, "default", "t", snapshot, {"x": 1, "y": 2}, read):
        found[name] += part
    assert found == {"x": 10 * sum(range(FILES)), "y": 10 * FILES}


def test_scan_reports_progress_and_stops_when_cancelled(lake):
    connector, snapshot = lake
    messages, merged = [], []

    def listen(message: str) -> None:
        messages.append(message)
        if len(messages) == 3:
            raise Cancelled("the job was cancelled")

    with reporting(listen), pytest.raises(Cancelled):
        for part in scan(connector, "default", "t", snapshot, {"x": 1}, lambda *_: 1):
            merged.append(part)
    assert messages == ["1 files read", "2 files read", "3 files read"] and len(merged) == 3


def test_damaged_file_ends_the_scan(lake, tmp_path):
    connector, snapshot = lake
    tasks = list(connector.plan_files("default", "t", snapshot, {"x": 1}, frozenset({"x"})))
    (tmp_path / "t/part-005.parquet").write_bytes(b"PAR1 no more")
    connector.plan_files = lambda *_: iter(tasks)
    with pytest.raises(UpstreamError, match=r"part-005\.parquet"):
        list(scan(connector, "default", "t", snapshot, {"x": 1}, lambda *_: 1))
