"""The metadata of a table of 1,000 columns by the Iceberg door: with distinct counts against without, in turn.

Processor time of `GET …/tables/{t}` in one process, without a socket, to clients that take gzip and those that do not:
warm, and the first time after a commit, when metadata and answer are made anew.
`python -m pytest tests/benchmarks/bench_door.py -m benchmark -s`
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.requests import Request
from starlette.responses import Response

from flight_server.core.auth.tokens import Guard
from flight_server.faces.iceberg_rest.door import Door
from flight_server.faces.local.tables import LocalTables

pytestmark = pytest.mark.benchmark

COLUMNS, ROUNDS = 1_000, 30
MOST = 1.3  # times the processor time without distinct counts


def get(path: str, **headers: str) -> Request:
    encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": encoded,
            "server": ("127.0.0.1", 80),
            "scheme": "http",
        }
    )


def test_distinct_counts_of_a_thousand_columns_cost_a_third_at_most(tmp_path: Path) -> None:
    directory = tmp_path / "lake" / "wide"
    directory.mkdir(parents=True)
    columns = {f"column_{at:04}": np.arange(100) + at for at in range(COLUMNS)}
    pq.write_table(pa.table(columns), directory / "0.parquet")
    tables = LocalTables(None, lambda _: None)
    catalog, schema, name = tables.add(str(directory)).split(".")
    door = Door(tables.app, Guard(None, "internal"), lambda table, snapshot: None)
    path = f"/iceberg/v1/namespaces/{catalog}%1F{schema}/tables/{name}"

    def ask(side: str, encoding: str, *, anew: bool) -> tuple[float, Response]:
        if anew:
            door._tables._bodies.clear()
            door._tables._made_up.clear()
        request = get(path, x_statflight_statistics=side, accept_encoding=encoding)
        began = time.process_time()
        response = door._response(request, b"")
        return (time.process_time() - began) * 1000, response

    print(f"\n{COLUMNS:,} columns; processor time, median of {ROUNDS}")
    worst = 0.0
    for encoding in ("identity", "gzip"):
        for anew in (False, True):
            took: dict[str, list[float]] = {"off": [], "on": []}
            sizes: dict[str, int] = {}
            for _ in range(ROUNDS):
                for side in took:
                    ms, response = ask(side, encoding, anew=anew)
                    assert response.status_code == 200
                    took[side].append(ms)
                    sizes[side] = len(response.body)
            off, on = (statistics.median(took[side]) for side in ("off", "on"))
            what = f"{encoding}, {'after a commit' if anew else 'warm'}"
            told = f"{off:6.2f} ms ({sizes['off']:,} B) without, {on:6.2f} ms ({sizes['on']:,} B) with"
            print(f"  {what:<22} {told}: {on / off:.2f} x")
            worst = max(worst, 0.0 if anew else on / off)
    tables.close()
    assert worst <= MOST
