"""`statflight demo`: the main job end to end, on a generated lake, with public commands only."""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from flight_server.faces.present.doctor import java

STARTED_WITHIN = 60.0  # seconds for the server to print its address
STOPPED_WITHIN = 30.0
MARK = ".statflight-demo"  # only a directory with this file is ever emptied
STATFLIGHT = (sys.executable, "-m", "statflight")
TRIP_DAYS, TRIPS_A_DAY = 6, 60_000  # with 8 columns 2.9 million values, enough to make Spark worth its start


def run(directory: Path, *, keep: bool, say: Callable[[str], None]) -> int:
    """Makes a lake, serves and captures it, and shows the results; returns the exit status."""
    directory = directory.resolve()
    if directory.exists() and any(directory.iterdir()) and not (directory / MARK).exists():
        say(f"statflight: {directory} exists and was not made by a demo; name another with --dir")
        return 1
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / MARK).touch()
    try:
        return _run(directory, say)
    finally:
        if keep:
            database = shlex.quote(str(directory / "stats.duckdb"))
            say(f"\nkept {directory}; go on with:\nstatflight serve --db {database} --http-port 8816")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _run(directory: Path, say: Callable[[str], None]) -> int:
    finding = java()
    on_spark = finding.good and find_spec("pyspark") is not None
    if not finding.good:
        say(f"java: {finding.detail}. Going on without Spark; {finding.remedy}.")
    say(f"making a small lake in {directory}")
    lakes = [make_delta(directory), *filter(None, [make_iceberg(directory)]), make_parquet(directory)]
    _Steps("", directory)("show", "./delta/events")  # a table by its path needs no server
    with _server(directory, say) as uri:
        step = _Steps(uri, directory)
        for lake in lakes:
            step("connect", *lake)
        if on_spark:  # the others are too small to be worth it
            step("capture", "parquet.default.trips", "--engine", "spark")
        step("capture", "delta.default.events", "parquet.default.trips", *_iceberg_tables(lakes))
        step("capture", "delta.default.events", "--snapshot", "1")
        step("ls")
        step("show", "parquet.default.trips")
        step("history", "delta.default.events", "value")
        step("check", "*", "--rule", "row_count > 0", "--rule", "null_fraction <= 0.2")
        step("diff", "delta.default.events", "1", "3")
        step(
            "query",
            "stats.columns",
            "--columns",
            "table_name,column_name,ndv,min,max",
            "--where",
            "ndv > 1000",
            "--snapshot",
            "current",
        )
        if _iceberg_tables(lakes):
            step("publish", "iceberg.sales.orders", "--to", "iceberg")
        step("report", "parquet.default.trips", "-o", "report.html")
    say("the server has stopped")
    return 1 if step.failed else 0


def _iceberg_tables(lakes: list[tuple[str, ...]]) -> list[str]:
    return ["iceberg.sales.orders"] if any(lake[0] == "iceberg" for lake in lakes) else []


class _Steps:
    """Runs commands as a user would type them, and prints them."""

    def __init__(self, uri: str, directory: Path):
        variables = {"STATFLIGHT_SERVER": uri, "COLUMNS": os.environ.get("COLUMNS", "140"), "STATFLIGHT_PAGER": ""}
        self._environment = os.environ | variables  # no pager: it would wait for a key
        self._directory = directory
        self.failed = False

    def __call__(self, *arguments: str) -> None:
        sys.stdout.write(f"\n$ statflight {shlex.join(arguments)}\n")
        sys.stdout.flush()
        done = subprocess.run([*STATFLIGHT, *arguments], cwd=self._directory, env=self._environment, check=False)  # noqa: S603
        self.failed |= done.returncode != 0


@contextmanager
def _server(directory: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Runs a server for the length of the block; yields its address."""
    log = directory / "server.log"
    command = [*STATFLIGHT, "serve", "--port", "0", "--db", str(directory / "stats.duckdb")]
    sys.stdout.write(f"\n$ statflight {shlex.join(command[len(STATFLIGHT) :])}\n")
    sys.stdout.flush()
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=stderr, text=True)  # noqa: S603
    try:
        assert process.stdout is not None
        yield _address(process.stdout, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say("the server did not stop in time and was killed")


def _address(stdout: IO[str], log: Path) -> str:
    """Reads the server's address, which is all that it prints."""
    ready, _, _ = select.select([stdout], [], [], STARTED_WITHIN)
    line = stdout.readline() if ready else ""
    if (match := re.search(r"listening on (grpc\S+)", line)) is None:
        raise OSError(f"the server did not start; it said:\n{log.read_text(errors='replace')[-2000:]}")
    sys.stdout.write(line)
    sys.stdout.flush()
    return match[1]


# The lake: a catalog's name, format, address and options, as `connect` takes them.


def make_delta(root: Path) -> tuple[str, ...]:
    """Makes events in Delta: three appends and a delete, versions 0 to 3."""
    from deltalake import DeltaTable, write_deltalake

    path = root / "delta" / "events"
    for start in (0, 2_000, 4_000):
        write_deltalake(str(path), _events(start, start + 2_000), mode="append")
    DeltaTable(str(path)).delete("id < 500")
    return ("delta", "delta", str(path.parent))


def _events(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": [("click", "view", "buy")[i % 3] if i % 11 else None for i in ids],
            "user_name": [f"user{i * 7919 % 900}" for i in ids],
            "happened_at": pa.array([begin + timedelta(seconds=37 * i) for i in ids], pa.timestamp("us", "UTC")),
            "value": [i % 1000 / 8 for i in ids],
        }
    )


def make_iceberg(root: Path) -> tuple[str, ...] | None:
    """Makes orders in Iceberg with a SQL catalog: two appends. None if pyiceberg is not installed."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError:
        return None
    warehouse = root / "iceberg"
    warehouse.mkdir()
    uri, place = f"sqlite:///{warehouse / 'catalog.db'}", f"file://{warehouse}"
    catalog = SqlCatalog("iceberg", uri=uri, warehouse=place)
    catalog.create_namespace("sales")
    first, second = _orders(0, 3_000), _orders(3_000, 5_000)
    table = catalog.create_table("sales.orders", first.schema)
    table.append(first)
    table.append(second)
    catalog.engine.dispose()
    return ("iceberg", "iceberg", uri, "-o", "type=sql", "-o", "name=iceberg", "-o", f"warehouse={place}")


def _orders(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "region": [("north", "south", "east", "west")[i % 4] for i in ids],
            "amount": [(i * 37 % 9_973) / 4 for i in ids],
        }
    )


def make_parquet(root: Path) -> tuple[str, ...]:
    """Makes trips in plain Parquet, a hive partition for each day."""
    import numpy as np

    random = np.random.default_rng(7)
    for day in range(TRIP_DAYS):
        home = root / "parquet" / "trips" / f"day=2026-03-{day + 1:02}"
        home.mkdir(parents=True)
        many = TRIPS_A_DAY
        minutes = np.clip(random.gamma(3.0, 5.0, many), 1, 180)
        start = np.datetime64(f"2026-03-{day + 1:02}T00:00:00", "us") + random.integers(0, 86_400_000_000, many)
        trips = pa.table(
            {
                "trip_id": pa.array(np.arange(day * many, (day + 1) * many)),
                "started_at": pa.array(start, pa.timestamp("us")),
                "minutes": pa.array(np.round(minutes, 2), mask=random.random(many) < 0.02),
                "distance_km": pa.array(np.round(minutes * random.uniform(0.2, 0.6, many), 2)),
                "from_zone": pa.array(random.zipf(1.6, many).clip(1, 265)),
                "to_zone": pa.array(random.integers(1, 266, many)),
                "rider": pa.array([f"r{number:06}" for number in random.integers(0, 120_000, many)]),
                "payment": pa.array(np.array(["card", "cash", "app"])[random.choice(3, many, p=[0.7, 0.1, 0.2])]),
            }
        )
        pq.write_table(trips, home / "part-0.parquet")
    return ("parquet", "parquet", str(root / "parquet"))
