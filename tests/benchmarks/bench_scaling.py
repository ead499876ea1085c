"""Beyond one process: one large table in a Spark session of this machine (`local[*]`) and on clusters of 1, 2 and 4
executors, in many files or one; Spark's own ANALYZE of it in the same places, in turns; the worker's own process; and
many small tables on as many workers.

The first capture, with the start of a session, is told apart; the others are warm. Of executors each has one core, so
on a machine with fewer cores the trend counts, not the values. Rows for each second of the processor, that of servers,
drivers and executors together, depend less on what else runs than those for each second on the clock and core.
`python -m pytest tests/benchmarks/bench_scaling.py -m benchmark -s`; STATFLIGHT_BENCH_ROWS (million),
STATFLIGHT_BENCH_TABLES, STATFLIGHT_BENCH_SIZES (such as 1,2) and STATFLIGHT_BENCH_ROUNDS (3) make it smaller.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.bench_large_tables import capture
from tests.flight_server.live_server import serving
from tests.integration.test_spark_cluster import daemon, environment, no_java, wait_for_log

pytestmark = [pytest.mark.benchmark, pytest.mark.spark]

MILLION_ROWS = int(os.environ.get("STATFLIGHT_BENCH_ROWS", "100"))
TABLES = int(os.environ.get("STATFLIGHT_BENCH_TABLES", "2000"))
ROUNDS = int(os.environ.get("STATFLIGHT_BENCH_ROUNDS", "3"))
CHUNKS, COLUMNS = 25, 4
SIZES = tuple(int(size) for size in os.environ.get("STATFLIGHT_BENCH_SIZES", "1,2,4").split(","))
TIMEOUT_SECONDS = 3600.0
LOCAL = "local[*]"
ANALYZE = """
import json, sys
from pyspark.sql import SparkSession

lake, settings = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.config(map=settings).getOrCreate()
spark.sql(f"CREATE TABLE large USING parquet LOCATION '{lake}/large'")
for line in sys.stdin:
    spark.sql("ANALYZE TABLE large COMPUTE STATISTICS FOR ALL COLUMNS").collect()
    print("analyzed", flush=True)
spark.stop()
"""

__all__ = ["environment", "no_java"]  # fixtures


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


class Place(NamedTuple):
    """A place at which a table is read.

    Attributes:
        spark: Spark's settings there; none for the worker's own process.
        events: Directory of the event log of captures.
    """

    name: str
    cores: int
    spark: dict[str, str]
    events: Path


class Took(NamedTuple):
    """Seconds of one round."""

    clock: float
    processor: float


class Measured(NamedTuple):
    """Seconds of each round; that of the first is the start of a session too."""

    place: Place
    what: str
    rounds: list[Took]

    @property
    def rows_of_core(self) -> float:
        """Rows for each second on the clock, and core."""
        seconds = statistics.median(each.clock for each in self.rounds[1:])
        return MILLION_ROWS * 1_000_000 / seconds / self.place.cores

    @property
    def rows_of_processor(self) -> float:
        """Rows for each second of the processor."""
        return MILLION_ROWS * 1_000_000 / statistics.median(each.processor for each in self.rounds[1:])


def used_seconds() -> float:
    """Processor time of all that this process has started, and they have, so far."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields, pid = stat.read_text().rpartition(")")[2].split(), int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))  # and of children that ended
    below, found = [os.getpid()], 0
    while below:
        above = set(below)
        below = [pid for pid, parent in parents.items() if parent in above]
        found += sum(ticks[pid] for pid in below)
    ended = os.times()
    return found / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system


def timed(action: Callable[[], object]) -> Took:
    began, before = time.perf_counter(), used_seconds()
    action()
    return Took(time.perf_counter() - began, used_seconds() - before)


@contextlib.contextmanager
def cluster(environment, folder: Path, size: int) -> Iterator[Place]:
    """A standalone cluster; it has twice the cores that one application takes, of which two run in turns."""
    any_port = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(daemon(environment, folder / "master", "master.Master", *any_port))
        url = wait_for_log(log, r"Starting Spark master at (spark://\S+)")
        for number in range(size):
            arguments = (*any_port, "--cores", "2", "--memory", "2g", url)
            log = stack.enter_context(daemon(environment, folder / f"w{number}", "worker.Worker", *arguments))
            wait_for_log(log, "(Successfully registered) with master")
        executors = {"spark.executor.cores": "1", "spark.cores.max": str(size), "spark.executor.memory": "1g"}
        yield Place(f"{size} executors", size, {"spark.master": url} | executors, folder / "events")


@contextlib.contextmanager
def capturing(environment, folder: Path, lake: Path, place: Place) -> Iterator[Callable[[], object]]:
    """A server whose worker reads at a place; what it gives captures the large table."""
    lines = ['engine = "local"']
    if place.spark:
        place.events.mkdir()
        log = {"enabled": "true", "compress": "false", "dir": f"file://{place.events}"}
        spark = place.spark | {f"spark.eventLog.{name}": value for name, value in log.items()}
        lines = ['engine = "spark"', f'spark_master = "{spark.pop("spark.master")}"', "[spark]"]
        lines += [f'"{name}" = "{value}"' for name, value in spark.items()]
    folder.mkdir()
    (folder / "statflight.toml").write_text("\n".join(lines))
    with serving(folder, "--workers", 1, env=environment) as server, server.connect() as client:
        client.timeout = TIMEOUT_SECONDS
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        client.act("discover", {"catalog": "lake"})
        yield lambda: capture(client, "large", COLUMNS)


@contextlib.contextmanager
def analyzing(environment, folder: Path, lake: Path, place: Place) -> Iterator[Callable[[], object]]:
    """A driver at a place; what it gives has Spark analyze the large table."""
    folder.mkdir()
    command = [sys.executable, "-c", ANALYZE, lake, json.dumps(place.spark | {"spark.ui.enabled": "false"})]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        given, told = process.stdin, process.stdout

        def analyze() -> None:
            given.write("again\n")
            given.flush()
            assert told.readline() == "analyzed\n", (folder / "log").read_text()[-2000:]

        yield analyze


def measure(environment, folder: Path, lake: Path, place: Place) -> list[Measured]:
    """Captures of the large table at a place and, if Spark is there, its ANALYZE, in turns."""
    with contextlib.ExitStack() as stack:
        sides = {"capture": stack.enter_context(capturing(environment, folder / "server", lake, place))}
        if place.spark:
            sides["ANALYZE"] = stack.enter_context(analyzing(environment, folder / "analyze", lake, place))
        found = [Measured(place, what, []) for what in sides]
        for _ in range(ROUNDS + 1):
            for measured in found:
                measured.rounds.append(timed(sides[measured.what]))
    return found


def show(found: list[Measured], title: str) -> None:
    print(f"\n{title}; medians of {ROUNDS} rounds; the ratios are to a capture in {LOCAL}")
    print(
        f"{'place':<15}{'what':<9}{'first s':>9}{'s':>8}{'rows/s/core':>13}{'ratio':>7}"
        f"{'rows/processor s':>18}{'ratio':>7}"
    )
    (beside,) = (each for each in found if (each.place.name, each.what) == (LOCAL, "capture"))
    for each in found:
        clock = statistics.median(took.clock for took in each.rounds[1:])
        of_core, of_processor = each.rows_of_core, each.rows_of_processor
        print(
            f"{each.place.name:<15}{each.what:<9}{each.rounds[0].clock:>9.1f}{clock:>8.2f}"
            f"{of_core:>13,.0f}{of_core / beside.rows_of_core:>7.2f}"
            f"{of_processor:>18,.0f}{of_processor / beside.rows_of_processor:>7.2f}"
        )


@pytest.mark.parametrize("files", [CHUNKS, 1])
def test_one_large_table_on_more_executors(environment, tmp_path, capsys, files):
    lake, machine = large_table(tmp_path / "lake", files), os.cpu_count() or 1
    driver = {"spark.driver.host": "127.0.0.1", "spark.master": LOCAL}
    places = [
        Place("the worker", machine, {}, tmp_path),
        Place(LOCAL, machine, driver, tmp_path / "local_events"),
    ]
    found = []
    for number, place in enumerate(places):
        (tmp_path / str(number)).mkdir()
        found += measure(environment, tmp_path / str(number), lake, place)
    for size in SIZES:
        folder = tmp_path / f"on{size}"
        folder.mkdir()
        with cluster(environment, folder, size) as place:
            found += measure(environment, folder, lake, place)
        tasks = seconds_of_tasks(place.events)
        assert len(tasks) >= 2 * size * (ROUNDS + 1), "a file of many row groups is two tasks per core"
    with capsys.disabled():
        show(found, f"{MILLION_ROWS} million rows x {COLUMNS} columns in {files} files")


def test_many_small_tables_on_more_workers(tmp_path, capsys):
    lake = small_tables(tmp_path / "lake")
    seconds = {size: seconds_to_capture(tmp_path / f"workers{size}", lake, size) for size in SIZES}
    with capsys.disabled():
        print(f"\n{TABLES} tables of 1000 rows, workers")
        for size, took in seconds.items():
            print(f"  {size}: {took:8.1f} s   {took / seconds[SIZES[0]]:.2f} of the first")
