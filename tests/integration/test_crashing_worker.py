"""A file that ends the process of whoever reads it: its job fails after two workers, and names it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import serving

ENGINE = """
import os

from capture.connectors.storage.places import open_place
from capture.spi import Capabilities, CaptureEngine
from store.model.targets import TargetKind


class Crashing(CaptureEngine):
    id, priority = "crashing", 1
    capabilities = Capabilities({TargetKind.COLUMN: frozenset()})

    def supports(self, request):
        return "" if request.table.name == "bad" else "not of this table"

    def capture_batch(self, requests, sink):
        table = requests[0].table
        for task in table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids):
            with open_place(task.location, task.storage).open() as file:
                if file.size() > 2000:
                    os.abort()
"""


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """Variables with which a server's workers find the engine, as if it were installed."""
    folder = tmp_path / "plugin"
    metadata = folder / "crashing_engine-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "crashing_engine.py").write_text(ENGINE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: crashing-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[statflight.engines]\ncrashing = crashing_engine:Crashing\n")
    return {"PYTHONPATH": str(folder)}


def test_job_that_ends_its_worker_twice_fails_with_the_name_of_the_file(tmp_path, plugin):
    for table in ("bad", "good"):
        (tmp_path / "lake" / table).mkdir(parents=True)
        pq.write_table(pa.table({"a": range(10)}), tmp_path / "lake" / table / "0.parquet")
    pq.write_table(pa.table({"a": range(1000)}), tmp_path / "lake" / "bad" / "1.parquet")
    with serving(tmp_path, "--workers", 1, env=plugin) as server, server.connect() as client:
        client.timeout = 180.0
        client.act(
            "register_connector",
            {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake"), "discover": True},
        )
        target = {"target": {"kind": "COLUMN", "column_id": 1}}
        requests = [{"table": f"lake.default.{table}"} | target for table in ("bad", "good")]
        bad, good = client.act("capture", {"requests": requests})
        assert good["outcome"] == "CAPTURED"
        reason = f'2 workers were lost over it (SIGABRT), the last one while it read "{tmp_path}/lake/bad/1.parquet"'
        assert (bad["outcome"], bad["detail"]) == ("DEGRADED", f"[WORKER_LOST] {reason}")
        (queued,) = client.act("capture", {"requests": [requests[0] | {"mode": "ASYNC"}]})
        (job,) = client.act("wait_job", {"job_id": queued["job_id"]})
        assert (job["state"], job["message"], job["attempts"]) == ("FAILED", reason, 2)
    assert server.log.read_text().count("Fatal Python error: Aborted") == 4
