"""A store in PostgreSQL: a put beside one into a file, how soon others see it, and kills of any of three writers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import pytest

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.postgres.join import join
from store.stats_store import DuckDBStatsStore
from tests.store.contract import put, rows
from tests.store.postgres.postgres_server import postgres  # noqa: F401

pytestmark = pytest.mark.benchmark

KILLS = int(os.environ.get("STATFLIGHT_KILLS", "20"))
SERVERS = 3
ROOT = Path(__file__).parents[2]


def test_put_costs_about_two_into_a_file_and_is_seen_soon(postgres, tmp_path):  # noqa: F811
    address = postgres.new()
    database = Database(tmp_path / "alone.duckdb")
    alone = DuckDBStatsStore(database, Catalog(database))
    (ours, member), (theirs, other) = (join(address, tmp_path / f"{name}.duckdb") for name in ("ours", "theirs"))
    shared = DuckDBStatsStore(ours, Catalog(ours), role=member)
    follower = DuckDBStatsStore(theirs, Catalog(theirs), role=other)
    assert follower.tables() == []
    for each in (member, other):
        each.start()
    times: dict[str, list[float]] = {"alone": [], "shared": [], "seen": []}
    for number in range(1, 101):
        each = ({"column_id": i, "row_count": number, "min": "a", "logical_type": "STRING"} for i in range(1, 21))
        table = rows("stats.columns", *each, snapshot=number)
        for name, store in (("alone", alone), ("shared", shared)):
            began = time.perf_counter()
            put(store, "stats.columns", table)
            times[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        other._await(member.generation)
        times["seen"].append(time.perf_counter() - began)
    for each in (member, other):
        each.close()
    for each in (database, ours, theirs):
        each.close()
    alone_ms, shared_ms, seen_ms = (1000 * median(of[10:]) for of in times.values())
    print(f"put of 20 columns: {alone_ms:.1f} ms into a file, {shared_ms:.1f} ms shared: {shared_ms / alone_ms:.2f};")
    print(f"seen elsewhere after {seen_ms:.1f} ms, at most {1000 * max(times['seen']):.0f} ms")
    assert shared_ms < 3 * alone_ms and max(times["seen"]) < 5


class Putter:
    """A process that puts (`tests.store.postgres.putting`), with the numbers that it was told are stored."""

    def __init__(self, address: str, cache: Path, first: int):
        command = [sys.executable, "-m", "tests.store.postgres.putting", address, cache, str(first), str(SERVERS)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.cache, self.found, self.parts = cache, set[int](), list[str]()
        self.acknowledged: list[int] = []
        self.began = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break
            what, *numbers = line.split()
            if what == "put":
                self.acknowledged.append(int(numbers[0]))
            elif what == "part":
                self.parts.append(line)
            else:
                self.found = set(map(int, numbers))
                self.began.set()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_nothing_acknowledged_is_lost_by_kills(postgres, tmp_path):  # noqa: F811
    address, chance = postgres.new(), random.Random(53)
    putters = [Putter(address, tmp_path / f"{at}.duckdb", at + 1) for at in range(SERVERS)]
    acknowledged, lost, parts = set[int](), set[int](), list[str]()
    try:
        for kills in range(1, KILLS + 1):
            at = chance.randrange(SERVERS)
            assert putters[at].began.wait(120)
            time.sleep(chance.uniform(0.0, 0.7))
            putters[at].kill()
            acknowledged.update(*(putter.acknowledged for putter in putters))
            own = [number for number in acknowledged if number % SERVERS == (at + 1) % SERVERS]
            putters[at] = Putter(address, putters[at].cache, max(own, default=at + 1 - SERVERS) + SERVERS)
            assert putters[at].began.wait(120)
            lost |= acknowledged - putters[at].found
            parts += putters[at].parts
            print(f"{kills} kills, {len(acknowledged)} puts acknowledged: {len(lost)} lost, {len(parts)} in part")
            assert not lost and not parts
    finally:
        for putter in putters:
            putter.kill()
    assert acknowledged
