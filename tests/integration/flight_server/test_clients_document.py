"""The Python blocks of CLIENTS.md, run in order against a server."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import flight_server
from tests.flight_server.live_server import serving

DOCUMENT = Path(flight_server.__file__).with_name("CLIENTS.md").read_text(encoding="utf-8")
BLOCKS = [
    (DOCUMENT[: found.start()].count("\n") + 1, found[1])
    for found in re.finditer(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
]
KEY = {"table_catalog": "lake", "table_schema": "sales", "table_name": "orders", "snapshot_id": 1}


def test_blocks_run_in_order(tmp_path, monkeypatch):
    rows = [
        KEY | {"column_id": i, "column_name": name, "ndv": ndv}
        for i, (name, ndv) in enumerate([("id", 1000.0), ("region", 3.0)], 1)
    ]
    names: dict[str, object] = {}
    (tmp_path / "lake/visits").mkdir(parents=True)
    for i in range(10):
        pq.write_table(pa.table({"id": range(100 * i, 100 * i + 100)}), tmp_path / f"lake/visits/{i}.parquet")
    with serving(tmp_path, "--http-port", 0, "--workers", 1) as server:
        (pages,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        with server.connect() as client:
            client.act("register_connector", {"catalog": "logs", "format": "parquet", "uri": str(tmp_path / "lake")})
            client.act("discover", {"catalog": "logs"})
            client.put("stats.columns", pa.Table.from_pylist(rows))
            client.put("stats.tables", pa.Table.from_pylist([KEY | {"row_count": 1000}]))
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        for line, text in BLOCKS:
            here = text.replace("http://127.0.0.1:8816/", pages)
            exec(compile("\n" * line + here, "CLIENTS.md", "exec"), names)
        names["client"].close()
        names["server"].close()
    assert len(BLOCKS) == 12


def test_links_point_to_sections():
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-")
        for line in re.findall(r"^##+ (.*)$", DOCUMENT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", DOCUMENT)) <= headings
