"""Publishers with failing catalogs, homes without write permission, and writers that are killed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors.spi import ConnectorConfig
from capture.publishers import files
from capture.publishers.publishing import publish
from store.model.errors import UpstreamError
from tests.capture.publishers.contract import Table, rows
from tests.capture.publishers.test_ducklake import created
from tests.integration.aws_server import process
from tests.integration.publishing import CONTRACTS, contract_of
from tests.integration.test_catalogs import _REST, Rest

_PUBLISHING = """
import sys
from pathlib import Path
from tests.integration.publishing import publish_repeatedly
publish_repeatedly(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
"""
_AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from tests.integration.publishing import contract_of, publish_repeatedly
home, root, other = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
contract_of(home).build(other)
publish_repeatedly(home, other, 1)  # imports all modules while they are readable
os.setgid(65534)
os.setuid(65534)
publish_repeatedly(home, root, 1)
"""


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rest")
    with process(_REST, str(folder)) as port:
        server = Rest(folder, port)
        server.client().create_namespace("sales")
        yield server


@pytest.fixture
def rest_table(rest_server, request):
    """The server, and a table of its own for each test."""
    name = re.sub(r"\W+", "_", request.node.name).strip("_")
    rest_server.client().create_table(("sales", name), rows(0, 1).schema).append(rows(0, 150))
    config = ConnectorConfig("c", "iceberg", rest_server.uri, {"type": "rest"})
    yield rest_server, Table("iceberg", config, "sales", name, rest_server.folder / "wh/sales" / name, rows(0, 150))
    (rest_server.folder / "fault").unlink(missing_ok=True)


def statistics_files(server: Rest, table: Table) -> tuple[set[str], set[str]]:
    """Names of the Puffin files on disk, and of those in the table's metadata."""
    files = server.client().load_table((table.namespace, table.name)).metadata.statistics
    named = {file.statistics_path.rpartition("/")[2] for file in files}
    return {file.name for file in table.path.rglob("*.stats")}, named


@pytest.mark.parametrize("times", [1, 3])
def test_commit_is_retried_after_409(rest_table, times):
    server, table = rest_table
    server.fault(status=409, times=times, method="POST", about=table.name)
    assert publish(table.publisher(), pause=lambda _: None).state == "CURRENT"
    on_disk, named = statistics_files(server, table)
    assert on_disk == named and len(named) == 1


def test_commit_with_persistent_500_raises_unknown_outcome(rest_table):
    server, table = rest_table
    server.fault(status=500, times=99, method="POST", about=table.name)
    with pytest.raises(UpstreamError, match="it is unknown whether it applied the commit"):
        publish(table.publisher(), pause=lambda _: None)
    assert not statistics_files(server, table)[1]


def test_commit_with_a_lost_response_is_recognized(rest_table):
    server, table = rest_table
    server.fault(status=500, times=1, method="POST", about=table.name, done=True)
    assert publish(table.publisher(), pause=lambda _: None).state == "CURRENT"
    on_disk, named = statistics_files(server, table)
    assert on_disk == named and len(named) == 1


# Writers that are killed.


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("home", CONTRACTS)
def test_killed_publisher_leaves_a_complete_state_and_no_orphan(home, kills, tmp_path, monkeypatch):
    contract = contract_of(home)
    table = contract.build(tmp_path)
    for number in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", _PUBLISHING, home, str(tmp_path), "1000"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.05 + 0.4 * number / kills)
        assert child.poll() is None, "it still publishes"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert contract.count(table) == 150
        published = table.publisher().read()
        assert published is None or set(published.distinct) in ({"id", "label"}, {"label"})
    monkeypatch.setattr(files, "ORPHAN_SECONDS", 0.0)
    statistics = table.statistics()
    other = tuple(dataclasses.replace(column, ndv=3.0) for column in statistics.columns)
    for columns in (other, statistics.columns):  # other numbers, so that there is something to write
        publish(table.publisher(table.statistics(columns=columns)))
    left = [name for name in table.files() if "statflight" in name]
    assert contract.count(table) == 150 and table.publisher().read() is not None
    if home in ("iceberg", "trino"):
        assert len(left) <= 2, left  # the file in use, and the one that it replaced a moment ago
    if home == "paimon":
        named = json.dumps([json.loads(f.read_text()) for f in (table.path / "snapshot").glob("snapshot-*")])
        statistics_files = [name for name in left if name.startswith("statistics/stat-statflight")]
        assert all(name.rpartition("/")[2] in named for name in left if "sidecar" not in name and "tmp" not in name)
        assert statistics_files and not [name for name in left if name.endswith(".tmp")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be refused as")
@pytest.mark.parametrize("home", CONTRACTS)
def test_publish_without_write_permission_fails_and_leaves_no_file(home, tmp_path):
    """A user other than the owner gets "permission denied", and the files are unchanged."""
    root = Path(tempfile.mkdtemp(prefix="statflight-read-only-"))
    try:
        other = tmp_path / "other"
        other.mkdir()
        table = contract_of(home).build(root)
        root.chmod(0o755)
        for path in root.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = table.files()
        done = subprocess.run(
            [sys.executable, "-c", _AS_ANOTHER_USER, home, str(root), str(other)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 1
        assert "permission denied" in done.stderr.splitlines()[-1].lower(), done.stderr
        assert table.files() == before
    finally:
        shutil.rmtree(root)


def test_ducklake_gets_no_files_and_no_bounds_of_an_earlier_snapshot(client, tmp_path):
    """It reads those files, and leaves out conditions by those bounds."""
    name, lake = "lake.default.t", tmp_path / "lake"
    catalog = created(tmp_path / "catalog.ducklake")
    body = {"table": name, "to": "ducklake", "allow_inherited": True, "options": {"catalog": str(catalog)}}

    def capture(**request: Any) -> None:
        client.act("discover", {"catalog": "lake"})
        (outcome,) = client.act("capture", {"requests": [{"table": name} | request]})
        assert outcome["outcome"] == "CAPTURED", outcome

    def add(value: int) -> None:
        (lake / "t").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [value, value], "b": [value, None]}), lake / "t" / f"{value}.parquet")

    add(1)
    client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake), "options": {}})
    capture()
    add(2)
    capture(target={"kind": "COLUMN", "column_id": 1})
    with pytest.raises(pa.ArrowInvalid, match=r"\[NOT_CAPTURED\] .* files of .* are not stored"):
        client.act("publish", body)
    capture(column_selectors=["b"])
    add(3)
    capture(column_selectors=["b"])
    (published,) = client.act("publish", body)
    assert published["state"] == "CURRENT" and "inherited: a " in published["detail"]
    with duckdb.connect(str(catalog), read_only=True) as reader:
        files = reader.execute("SELECT path, record_count FROM ducklake_data_file").fetchall()
        bounds = reader.execute(
            "SELECT column_name, min_value, max_value, contains_null FROM ducklake_table_column_stats"
            " JOIN ducklake_column USING (column_id) ORDER BY 1"
        ).fetchall()
    assert sorted(files) == [(str(lake / "t" / f"{value}.parquet"), 2) for value in (1, 2, 3)]
    assert bounds == [("a", None, None, None), ("b", "1", "3", True)]
