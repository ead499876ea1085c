"""Limits of serving, over the wire: stalled readers, and streams cut by a deadline."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.flight_server.live_server import serving

FILES, COLUMNS = 1500, 100
NO_PROBE = [("grpc.http2.bdp_probe", 0)]
"""Keeps a client from widening its window, which on a busy machine may buffer the whole stream, unread."""


def _many_rows(table: str) -> pa.Table:
    count = FILES * COLUMNS
    paths = [f"s3://bucket/{table}/part-{number // COLUMNS:06d}-{'x' * 60}.parquet" for number in range(count)]
    return pa.table(
        {
            "table_catalog": pa.repeat("lake", count),
            "table_schema": pa.repeat("s", count),
            "table_name": pa.repeat(table, count),
            "snapshot_id": pa.repeat(1, count),
            "file_path": paths,
            "column_id": [number % COLUMNS + 1 for number in range(count)],
            "row_count": pa.repeat(10, count),
            "min": [str(number) for number in range(count)],
        }
    )


@pytest.fixture(scope="module")
def limited_server(tmp_path_factory):
    """A server limited to 64 streams, whose memory shows the cost of stalled readers."""
    variables = {"STATFLIGHT_MAX_STREAMS": "64", "STATFLIGHT_CACHE_BYTES": "0"}
    with serving(tmp_path_factory.mktemp("limited"), env=variables) as server:
        with server.connect() as client:
            client.put("stats.file_columns", _many_rows("big"))
        yield server


def _memory(server) -> int:
    with Path(f"/proc/{server.process.pid}/smaps_rollup").open() as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon"))


def test_stalled_readers_do_not_block_small_calls(limited_server):
    ticket = flight.Ticket(json.dumps({"table": "stats.file_columns"}).encode())
    small = {"table": "sys.flights", "columns": ["name"]}
    with limited_server.connect() as quiet:
        quiet.get(small)
        before = _memory(limited_server)
        clients = [flight.connect(limited_server.uri, generic_options=NO_PROBE) for _ in range(64)]
        stalled = [client.do_get(ticket) for client in clients]
        for reader in stalled:
            reader.read_chunk()
        time.sleep(1.0)
        assert (_memory(limited_server) - before) / len(stalled) < 25e6
        for _ in range(30):
            assert quiet.get(small).num_rows > 20
        # A stream that nobody reads gives way to one that is read.
        assert quiet.get({"table": "stats.file_columns"}).num_rows == FILES * COLUMNS
        for reader in stalled:
            reader.cancel()
        for client in clients:
            client.close()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                assert quiet.get({"table": "stats.file_columns"}).num_rows == FILES * COLUMNS
                return
            except flight.FlightUnavailableError:
                time.sleep(0.1)
        pytest.fail("streams of cancelled readers still count towards the limit")


def test_stream_cut_by_its_deadline_raises_deadline_exceeded(tmp_path):
    variables = {"STATFLIGHT_STREAM_SECONDS": "0.5", "STATFLIGHT_CACHE_BYTES": "0"}
    with serving(tmp_path, env=variables) as server, server.connect() as client:
        client.put("stats.file_columns", _many_rows("big"))
        stalled = flight.connect(server.uri, generic_options=NO_PROBE)
        reader = stalled.do_get(flight.Ticket(b'{"table": "stats.file_columns"}'))
        reader.read_chunk()
        time.sleep(1.0)
        with pytest.raises(flight.FlightTimedOutError, match="DEADLINE_EXCEEDED"):
            reader.read_all()
