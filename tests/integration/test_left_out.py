"""Builds without a part: the server starts, stores and reads, and says what is missing when it is asked for."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from flight_server.client import StatsClient
from flight_server.core.wire.flight_sql import write_any
from tests.sources import PACKAGES, ROOT

SERVE = "import sys; from flight_server.cli import main; sys.exit(main())"


def without(directory: Path, left_out: str) -> Path:
    """A copy of the sources without a folder or file; with bytecode, which three processes would make otherwise."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package)
    gone = directory / left_out
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    return directory


def command(sources: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(sources)!r}); {SERVE}", *arguments]


@contextmanager
def served(sources: Path) -> Iterator[StatsClient]:
    """A client of a server with a worker that runs these sources."""
    log = sources / "server.log"
    environment = os.environ | {"PYTHONPATH": str(sources)}
    serve = command(sources, "serve", "--db", str(sources / "stats.duckdb"), "--port", "0", "--workers", "1")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            serve, cwd=sources, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        found = re.search(r"grpc://\S+", process.stdout.readline())
        assert found, log.read_text()
        with StatsClient(found[0]) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "Traceback" not in log.read_text()


ROWS = pa.table(
    {
        "table_catalog": ["lake"],
        "table_schema": ["s"],
        "table_name": ["t"],
        "snapshot_id": [1],
        "column_id": [1],
        "column_name": ["c"],
        "row_count": [10],
    }
)


NATIVE = "capture/engines/native"  # which alone has the files of a table


def captured(client: StatsClient, directory: Path, left_out: str = "") -> None:
    """Checks that rows can be put and read, and a table and its columns captured."""
    client.put("stats.columns", ROWS)
    assert client.read("stats.columns", ["row_count"]).to_pylist() == [{"row_count": 10}]
    lake = directory / "lake" / "orders"
    lake.mkdir(parents=True)
    pq.write_table(pa.table({"id": range(5)}), lake / "1.parquet")
    client.actions.register_connector(catalog="files", format="parquet", uri=f"file://{directory}", discover=True)
    of_table, of_column = client.capture("files.lake.orders", kinds=["ROW_COUNT", "NULL_COUNT"])
    assert of_table["outcome"] == ("UNCAPTURABLE" if left_out == NATIVE else "CAPTURED")
    assert of_column["outcome"] == "CAPTURED"


PAIMON = "capture/connectors/paimon"
LEFT_OUT = (
    PAIMON,
    "capture/connectors/delta",
    "capture/connectors/hudi",
    "capture/connectors/iceberg",
    "capture/connectors/lance",
    NATIVE,
    "capture/publishers",
    "capture/spark",
    "flight_server/faces/iceberg_rest",
    "flight_server/faces/local",
    "flight_server/faces/mcp",
    "flight_server/faces/present",
    "flight_server/faces/sql",
    "flight_server/faces/web",
    "flight_server/faces/costs",
    "flight_server/insight",
    "flight_server/planning",
    "flight_server/publishing",
    "store/postgres",
    "store/replication",
    "store/write_through.py",
)


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_the_rest_works_without(left_out, tmp_path):
    with served(without(tmp_path / "src", left_out)) as client:
        captured(client, tmp_path, left_out)
        if (refused := REFUSED.get(left_out)) is not None:
            ask, message = refused
            with pytest.raises(pa.ArrowException, match=message):
                ask(client, tmp_path)


def _select(client: StatsClient, _: Path) -> None:
    ticket = flight.Ticket(write_any("CommandStatementQuery", (1, b"SELECT 1")))
    with flight.connect(client.uri) as plain:
        plain.do_get(ticket).read_all()


def _expression(client: StatsClient, _: Path) -> None:
    target = {"kind": "EXPRESSION", "engine_kind": "spark", "engine_expression_key": "aWQgKyAx"}
    (outcome,) = client.capture([{"table": "files.lake.orders", "target": target, "mode": "SYNC"}])
    assert outcome["outcome"] != "CAPTURED"
    raise pa.ArrowInvalid(outcome["detail"])


REFUSED: dict[str, tuple[Callable[[StatsClient, Path], object], str]] = {
    PAIMON: (
        lambda client, lake: client.actions.register_connector(catalog="p", format="paimon", uri=f"file://{lake}"),
        "paimon is not part of this build",
    ),
    "capture/publishers": (
        lambda client, _: client.actions.publish(table="files.lake.orders", to="trino"),
        "trino is not part of this build",
    ),
    "capture/spark": (_expression, "Spark is not part of this build|spark is not part of this build"),
    "flight_server/faces/sql": (_select, "Flight SQL is not part of this build"),
    "flight_server/publishing": (
        lambda client, _: client.actions.publish(table="files.lake.orders", to="trino"),
        'no action "publish"',
    ),
}


@pytest.mark.parametrize(
    ("left_out", "settings", "message"),
    [
        ("flight_server/faces/web", ["--http-port", "0"], "--http-port: the pages are not part of this build"),
        ("flight_server/faces/present", ["--http-port", "0"], "faces.present is not part of this build"),
        ("flight_server/insight", ["--checks", "rules.toml"], "insight is not part of this build"),
    ],
)
def test_a_setting_of_what_is_left_out_is_refused(left_out, settings, message, tmp_path):
    sources = without(tmp_path / "src", left_out)
    (sources / "rules.toml").touch()
    serve = command(sources, "serve", "--db", str(tmp_path / "db.duckdb"), "--port", "0", *settings)
    environment = os.environ | {"PYTHONPATH": str(sources)}
    done = subprocess.run(serve, cwd=sources, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and message in done.stderr
    assert "Traceback" not in done.stderr
