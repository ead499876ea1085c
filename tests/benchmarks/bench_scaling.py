"""Beyond one process: one large table on 1, 2 and 4 executors, in many files or one, and many small ones on as many
workers.

On a machine with fewer cores than executors the trend counts, not the values. Each line has seconds, and their ratio to
the first; those of Spark also the tasks, and the median of their seconds. `python -m pytest
tests/benchmarks/bench_scaling.py -m benchmark -s`; STATFLIGHT_BENCH_ROWS (million), STATFLIGHT_BENCH_TABLES and
STATFLIGHT_BENCH_SIZES (such as 1,2) make it smaller.
"""

import contextlib
import json
import os
import statistics
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import serving
from tests.integration.test_spark_cluster import daemon, environment, wait_for_log

pytestmark = [pytest.mark.benchmark, pytest.mark.spark]

MILLION_ROWS = int(os.environ.get("STATFLIGHT_BENCH_ROWS", "100"))
TABLES = int(os.environ.get("STATFLIGHT_BENCH_TABLES", "2000"))
CHUNKS = 25
SIZES = tuple(int(size) for size in os.environ.get("STATFLIGHT_BENCH_SIZES", "1,2,4").split(","))
TIMEOUT_SECONDS = 3600.0

__all__ = ["environment"]  # a fixture


def large_table(root, files):
    """One table of MILLION_ROWS million rows: a key, a number of few values, a double and a text."""
    folder = root / "large"
    folder.mkdir(parents=True)
    rows = MILLION_ROWS * 1_000_000 // CHUNKS
    words = pa.array([f"word {n}" for n in range(10_000)])
    with contextlib.ExitStack() as stack:
        for number in range(CHUNKS):
            random = np.random.default_rng(number)
            chunk = pa.table(
                {
                    "id": pa.array(np.arange(number * rows, (number + 1) * rows)),
                    "kind": pa.array(random.integers(0, 100, rows, np.int32)),
                    "price": pa.array(random.random(rows)),
                    "word": pa.DictionaryArray.from_arrays(pa.array(random.integers(0, 10_000, rows, np.int32)), words),
                }
            )
            if number % (CHUNKS // files) == 0:
                writer = stack.enter_context(pq.ParquetWriter(folder / f"{number:02}.parquet", chunk.schema))
            writer.write_table(chunk)
    return root


def seconds_of_tasks(log):
    """Seconds of each task that Spark ran, from its event log."""
    events = (json.loads(line) for file in log.rglob("events_*") for line in file.read_text().splitlines())
    tasks = [event["Task Info"] for event in events if event.get("Event") == "SparkListenerTaskEnd"]
    return [(task["Finish Time"] - task["Launch Time"]) / 1000 for task in tasks]


def small_tables(root):
    """TABLES directories of one file with 1000 rows and 10 columns."""
    first = None
    for number in range(TABLES):
        folder = root / f"t{number:05}"
        folder.mkdir(parents=True)
        if first is None:
            rows = pa.table({f"c{c}": pa.array(np.arange(1000) * (c + 1)) for c in range(10)})
            pq.write_table(rows, folder / "0.parquet")
            first = (folder / "0.parquet").read_bytes()
        else:
            (folder / "0.parquet").write_bytes(first)
    return root


def seconds_to_capture(directory, lake, workers, settings="", **options):
    """Seconds from the request to the last result, on a server with `workers` workers."""
    directory.mkdir()
    (directory / "statflight.toml").write_text(settings)
    with serving(directory, "--workers", workers, **options) as server, server.connect() as client:
        client.timeout = TIMEOUT_SECONDS
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        client.act("discover", {"catalog": "lake"})
        columns = client.get({"table": "information_schema.columns"}).to_pylist()
        requests = [
            {
                "table": f"lake.default.{column['table_name']}",
                "target": {"kind": "COLUMN", "column_id": column["column_id"]},
            }
            for column in columns
        ]
        started = time.perf_counter()
        outcomes = client.act("capture", {"requests": requests})
        took = time.perf_counter() - started
    assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}
    return took


def show(capsys, title, seconds, tasks=None):
    with capsys.disabled():
        print(f"\n{title}")
        for size, took in seconds.items():
            of = "" if tasks is None else f"   {len(tasks[size])} tasks of {statistics.median(tasks[size]):.2f} s"
            print(f"  {size}: {took:8.1f} s   {took / seconds[SIZES[0]]:.2f} of the first{of}")


@pytest.mark.parametrize("files", [CHUNKS, 1])
def test_one_large_table_on_more_executors(environment, tmp_path, capsys, files):
    lake = large_table(tmp_path / "lake", files)
    seconds, tasks = {}, {}
    for size in SIZES:
        with contextlib.ExitStack() as stack:
            any_port = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            folder = tmp_path / f"on{size}"
            folder.mkdir()
            log = stack.enter_context(daemon(environment, folder / "master", "master.Master", *any_port))
            url = wait_for_log(log, r"Starting Spark master at (spark://\S+)")
            for number in range(size):
                arguments = (*any_port, "--cores", "1", "--memory", "1g", url)
                log = stack.enter_context(daemon(environment, folder / f"w{number}", "worker.Worker", *arguments))
                wait_for_log(log, "(Successfully registered) with master")
            (events := folder / "events").mkdir()
            settings = f"""spark_master = "{url}"

[spark]
"spark.eventLog.enabled" = true
"spark.eventLog.compress" = false
"spark.eventLog.dir" = "file://{events}"
"""
            seconds[size] = seconds_to_capture(folder / "server", lake, 1, settings, env=environment)
            tasks[size] = seconds_of_tasks(events)
    show(capsys, f"{MILLION_ROWS} million rows in {files} files, executors of one core", seconds, tasks)
    assert all(len(tasks[size]) >= 2 * size for size in SIZES), "a file of many row groups is two tasks per core"


def test_many_small_tables_on_more_workers(tmp_path, capsys):
    lake = small_tables(tmp_path / "lake")
    seconds = {size: seconds_to_capture(tmp_path / f"workers{size}", lake, size) for size in SIZES}
    show(capsys, f"{TABLES} tables of 1000 rows, workers", seconds)
