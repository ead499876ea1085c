"""Spark elsewhere than in a local session: it computes the same statistics as the worker itself.

A standalone cluster of real processes on loopback, a master, two workers and an executor on each; a Spark Connect
server. Their Java is out of a Python package. Their executors' Python has the libraries but not the project, whose code
is shipped with the job.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from capture.spark.java import java_home
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.spark

SPARK_HOME = Path(pyspark.__file__).parent
WITHIN = 300.0  # seconds: only ends a test that fails


@pytest.fixture(scope="module")
def no_java(tmp_path_factory) -> dict[str, str]:
    """An environment with all programs of this one except Java."""
    programs = tmp_path_factory.mktemp("programs")
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    assert shutil.which("java", path=str(programs)) is None
    return {"PATH": str(programs), "JAVA_HOME": ""}


@pytest.fixture(scope="module")
def environment(no_java, tmp_path_factory) -> dict[str, str]:
    """Settings of every process of the cluster and of its driver."""
    path = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in no_java.items():
            patch.setenv(name, value)
        java = java_home()
    assert java is not None
    python = path / "python"
    # Without `site` the project's entry in the site packages is ignored.
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{sysconfig.get_path("purelib")}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o755)
    missing = subprocess.run([python, "-c", "import pyarrow, capture"], capture_output=True, text=True, cwd=path)
    assert "No module named 'capture'" in missing.stderr
    return {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": java,
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
        "JDK_JAVA_OPTIONS": os.environ.get("SPARK_SUBMIT_OPTS", ""),  # of executors too
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(path / "work"),
        "PYSPARK_PYTHON": str(python),
    }


@pytest.fixture(scope="module")
def master(environment, tmp_path_factory) -> Iterator[str]:
    """The URL of a master that two workers of one core each have registered with."""
    path = tmp_path_factory.mktemp("daemons")
    with contextlib.ExitStack() as stack:
        any_port = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = stack.enter_context(daemon(environment, path / "master", "master.Master", *any_port))
        url = wait_for_log(log, r"Starting Spark master at (spark://\S+)")
        size = ("--cores", "1", "--memory", "1g")
        workers = [
            stack.enter_context(daemon(environment, path / f"worker{n}", "worker.Worker", *any_port, *size, url))
            for n in range(2)
        ]
        for log in workers:
            wait_for_log(log, "(Successfully registered) with master")
        yield url


@contextlib.contextmanager
def daemon(environment: dict[str, str], log: Path, name: str, *arguments: str) -> Iterator[Path]:
    command = [SPARK_HOME / "bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
        ) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()
            process.wait(60)


def wait_for_log(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{pattern} is not in {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("lake")
    (path / "t").mkdir()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(12):
        ids = range(number * 1000, number * 1000 + 1000)
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "word": [None if i % 9 == 0 else f"w{i % 5000}" for i in ids],
                "ratio": pa.array([i / 7 for i in ids]),
                "day": [date(2026, 1, 1) + timedelta(days=i % 300) for i in ids],
                "at": pa.array([start + timedelta(seconds=i) for i in ids], pa.timestamp("us", "UTC")),
                "place": [{"zip": i % 100} for i in ids],
            }
        )
        pq.write_table(rows, path / "t" / f"{number}.parquet")
    return path


def captured(directory: Path, lake: Path, settings: str, **options: Any) -> tuple[str, list[Any]]:
    """Captures the lake with these settings; the execution, and the stored rows without times and engine."""
    directory.mkdir(exist_ok=True)
    (directory / "statflight.toml").write_text(settings)
    with serving(directory, "--workers", 1, **options) as server, server.connect() as client:
        client.timeout = WITHIN
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        client.act("discover", {"catalog": "lake"})
        columns = client.get({"table": "information_schema.columns"}).to_pylist()
        targets = [{"kind": "COLUMN", "column_id": c["column_id"]} for c in columns if c["data_type"] != "STRUCT"]
        targets.append({"kind": "COLUMN_GROUP", "column_ids": [1, 2]})
        requests = [{"table": "lake.default.t", "target": target} for target in targets]
        outcomes = client.act("capture", {"requests": requests})
        assert {(o["outcome"], o["detail"]) for o in outcomes} == {("CAPTURED", "")}
        flights = ("stats.columns", "stats.file_columns", "stats.column_groups", "stats.sketches")
        stored = [row for flight in flights for row in client.get({"table": flight}).to_pylist()]
    (execution,) = {outcome["attributes"]["execution"] for outcome in outcomes}
    for row in stored:
        row.pop("captured_at"), row.pop("refreshed_at", None)
    engines = {row.pop("engine_id") for row in stored if row.get("engine_id") in ("local", "spark")}
    assert engines == {"spark" if execution == "spark" else "local"}
    return execution, sorted(stored, key=repr)


@pytest.fixture(scope="module")
def inline_rows(lake, tmp_path_factory) -> list[Any]:
    """The statistics that the worker computes without Spark."""
    execution, found = captured(tmp_path_factory.mktemp("alone") / "inline", lake, "")
    assert execution == "inline" and len(found) > 100
    return found


def test_standalone_cluster_computes_the_same_rows_as_inline(master, environment, no_java, lake, inline_rows, tmp_path):
    """The driver finds its Java, too, in the Python package; executors their Python in an archive."""
    archive = tmp_path / "executors.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment["PYSPARK_PYTHON"], "bin/python")
    settings = f'spark_master = "{master}"\n[spark]\nspark.archives = "{archive}#packed"\n'
    variables = environment | no_java | {"PYSPARK_PYTHON": "./packed/bin/python"}
    execution, spark_rows = captured(tmp_path / "cluster", lake, settings, env=variables)
    assert execution == "spark"
    assert spark_rows == inline_rows
    shipped = list(Path(environment["SPARK_WORKER_DIR"]).glob("app-*/*/statflight-capture.zip"))
    assert shipped, "the executors fetched no code"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segments/*.parquet"))


def test_executors_write_the_rows_of_files_as_segments(master, environment, lake, inline_rows, tmp_path):
    settings = f'spark_master = "{master}"\nsegment_cells = 20\n'
    execution, spark_rows = captured(tmp_path / "cluster", lake, settings, env=environment)
    assert execution == "spark"
    assert spark_rows == inline_rows
    assert len(segments(tmp_path / "cluster")) == 8  # of each of four tasks one for each flight; a worker writes two


@pytest.fixture(scope="module")
def large_lake(tmp_path_factory) -> Path:
    """A lake whose files take an executor a while."""
    path = tmp_path_factory.mktemp("large")
    (path / "t").mkdir()
    for number in range(24):
        ids = range(number * 60_000, number * 60_000 + 60_000)
        rows = pa.table(
            {"id": pa.array(ids, pa.int64()), "word": [f"w{i}" for i in ids], "ratio": [i / 7 for i in ids]}
        )
        pq.write_table(rows, path / "t" / f"{number:02}.parquet")
    return path


def executors(environment: dict[str, str]) -> list[int]:
    """Processes of the cluster's executors."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = str((process / "cwd").readlink()).startswith(environment["SPARK_WORKER_DIR"])
            if is_ours and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def test_executor_that_is_killed_leaves_no_row_twice(master, environment, large_lake, tmp_path):
    """Its tasks run again elsewhere; the segments that they had written are of nobody, and go with the next start."""
    _, expected = captured(tmp_path / "inline", large_lake, "")
    directory, ended, killed = tmp_path / "cluster", threading.Event(), list[int]()
    directory.mkdir()

    def kill() -> None:
        while not ended.wait(0.01):
            if segments(directory) and (running := executors(environment)):
                os.kill(running[0], signal.SIGKILL)
                killed.append(running[0])
                return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        settings = f'spark_master = "{master}"\nsegment_cells = 20\n'
        execution, found = captured(directory, large_lake, settings, env=environment)
    finally:
        ended.set()
        killer.join()
    assert killed, "no executor wrote a segment"
    assert execution == "spark"
    assert found == expected


READS = """
import os, sys, pyarrow as pa
from pyspark.sql import SparkSession
from flight_server.client.spark_reader import StatflightDataSource

spark = SparkSession.builder.master(sys.argv[1]).getOrCreate()
spark.dataSource.register(StatflightDataSource)
reader = spark.read.format("statflight").option("uri", sys.argv[2]).option("flight", "stats.columns")
rows = reader.option("partitions", 4).load().where("column_id > 0")

def places(batches):
    yield pa.RecordBatch.from_pydict({"place": [os.getcwd()], "count": [sum(batch.num_rows for batch in batches)]})

for place, count in sorted(rows.mapInArrow(places, "place string, count long").collect()):
    print(place, count)
spark.stop()
"""


def test_executors_read_flights_in_parallel(master, environment, tmp_path):
    """Both executors read shares of one flight; the package is not installed there but shipped with the query."""
    rows = [
        {"table_catalog": "c", "table_schema": "s", "table_name": f"t{i % 8}", "snapshot_id": 1, "column_id": i + 1}
        for i in range(400)
    ]
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.memory": "512m",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{WITHIN:.0f}s",
        "spark.locality.wait": "0",
    }
    conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    (tmp_path / "server").mkdir()
    (tmp_path / "reads.py").write_text(READS)
    with serving(tmp_path / "server") as server:
        with server.connect() as client:
            client.put("stats.columns", pa.Table.from_pylist(rows))
        done = subprocess.run(
            [sys.executable, tmp_path / "reads.py", master, server.uri],
            cwd=tmp_path,
            timeout=WITHIN,
            env=os.environ | environment | {"PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    shares = [line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.startswith("/")]
    assert len(shares) == 4 and sum(int(count) for _, count in shares) == len(rows), done.stdout
    assert all(int(count) for _, count in shares) and len({place for place, _ in shares}) == 2, shares


def test_connect_server_computes_the_same_rows_as_inline(environment, no_java, lake, inline_rows, tmp_path):
    submitted = [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master",
        "local[2]",
        "--name",
        "c",
        *(
            f"--conf={name}={value}"
            for name, value in {
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": "0",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.ui.enabled": "false",
            }.items()
        ),
        "spark-internal",
    ]
    variables = environment | {"SPARK_DAEMON_MEMORY": "1g"}
    with daemon(variables, tmp_path / "connect", "SparkSubmit", *submitted) as log:
        port = wait_for_log(log, r"Spark Connect server started at: 127\.0\.0\.1:(\d+)")
        settings = f'spark_master = "sc://127.0.0.1:{port}"\n'
        execution, spark_rows = captured(tmp_path / "client", lake, settings, env=no_java)
    assert execution == "spark"
    assert spark_rows == inline_rows
