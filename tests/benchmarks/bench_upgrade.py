"""Upgrades of a large file: their time beside a plain copy, kills in the middle of them, and opening a current file
beside DuckDB alone.

STATFLIGHT_BENCH_KILLS (300) and STATFLIGHT_BENCH_FILE_MB (1000).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from store.duckdb.arrow_sql import execute
from store.duckdb.backup import wal
from store.duckdb.database import Database
from store.duckdb.layout import OLDEST, VERSION
from store.duckdb.upgrading import before
from tests.flight_server.live_server import STATFLIGHT
from tests.layouts import unpack

pytestmark = pytest.mark.benchmark

KILLS = int(os.environ.get("STATFLIGHT_BENCH_KILLS", "300"))
MEGABYTES = int(os.environ.get("STATFLIGHT_BENCH_FILE_MB", "1000"))
OPENINGS = 41
SKETCH_BYTES = 32_000
OPEN_RATIO = 3.0  # of opening and closing: of a current file by the store, and by DuckDB with a query

Content = dict[str, tuple[int, int]]
Columns = dict[str, str]


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A file of the oldest layout without a log: the fixture, with many sketches of which nothing compresses."""
    path = unpack(OLDEST, tmp_path_factory.mktemp("large"))
    numbers = np.random.default_rng(1)
    with duckdb.connect(str(path)) as connection:
        ((table, snapshot),) = connection.execute(
            "SELECT table_key, snapshot_id FROM stats_sketches_history LIMIT 1"
        ).fetchall()
        # DuckDB writes them to the log, and again with the checkpoint: some of the file is free then
        for part in range(MEGABYTES // 20):
            data = numbers.integers(0, 256, (500, SKETCH_BYTES), np.uint8)
            sketches = pa.table(
                {"column_id": np.arange(500) + 1000 * (part + 1), "data": [row.tobytes() for row in data]}
            )
            execute(
                connection,
                "INSERT INTO stats_sketches_history (table_key, snapshot_id, target_kind, column_id, role, data)"
                f" SELECT {table}, {snapshot}, 'COLUMN', column_id, 'NDV', data FROM {{sketches}}",
                sketches=sketches,
            )
        connection.execute("CHECKPOINT")
    assert not wal(path).exists()
    return path


def columns_of(path: Path) -> Columns:
    """Table → its columns, as an argument of SQL functions. The steps change no value of them, but add others."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return dict(
            connection.execute(
                "SELECT table_name, string_agg(column_name, ', ' ORDER BY column_index) FROM duckdb_columns()"
                " WHERE NOT internal AND table_name <> 'settings' GROUP BY table_name"
            ).fetchall()
        )


def content(path: Path, columns: Columns) -> Content:
    """Rows of each table, and a digest of all values of its columns."""
    with duckdb.connect(str(path), read_only=True) as connection:
        digest = "SELECT count(*), coalesce(bit_xor(hash({names})), 0) FROM {table}"
        found = {
            table: connection.execute(digest.format(names=names, table=table)).fetchall()
            for table, names in columns.items()
        }
    return {table: rows[0] for table, rows in found.items()}


def layout(path: Path) -> int:
    with duckdb.connect(str(path), read_only=True) as connection:
        return int(connection.execute("SELECT value FROM settings WHERE name = 'schema_version'").fetchall()[0][0])


def upgrading(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([STATFLIGHT, "upgrade", "--db", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finished(path: Path) -> float:
    """Seconds of an upgrade that nobody kills."""
    began = time.monotonic()
    with upgrading(path) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    return time.monotonic() - began


def placed(large: Path, folder: Path) -> Path:
    """A name of the large file in a new folder: an upgrade changes no byte of a file that has no log."""
    folder.mkdir()
    os.link(large, folder / large.name)
    return folder / large.name


def test_kills(large, tmp_path):
    columns = columns_of(large)
    wanted = content(large, columns)
    first = placed(large, tmp_path / "first")
    spent = [finished(first)]
    began = time.monotonic()
    shutil.copyfile(large, tmp_path / "copy")
    os.sync()
    copied = time.monotonic() - began
    (tmp_path / "copy").unlink()
    assert content(first, columns) == wanted
    shutil.rmtree(first.parent)
    draw, found = random.Random(1), {OLDEST: 0, VERSION: 0}
    for kill in range(KILLS):
        path = placed(large, tmp_path / str(kill))
        with upgrading(path) as process:
            time.sleep(draw.uniform(0.1, 1.05) * statistics.median(spent[-9:]))
            process.kill()
        found[layout(path)] += 1
        if layout(path) == OLDEST:
            assert path.samefile(large)
            spent.append(finished(path))
        assert (layout(path), before(path, OLDEST).samefile(large)) == (VERSION, True)
        if kill % 20 == 0:
            assert content(path, columns) == wanted
        assert sorted(file.name for file in path.parent.iterdir()) == [path.name, before(path, OLDEST).name]
        shutil.rmtree(path.parent)
    assert content(large, columns) == wanted
    size = large.stat().st_size / 1e6
    print(f"\n{size:.0f} MB: upgraded in {statistics.median(spent):.1f} s by a process; a copy alone {copied:.1f} s")
    print(f"{KILLS} kills: the old file opened {found[OLDEST]} times, the new one {found[VERSION]} times")


OPENING = """
import json, sys, time
import duckdb
from store.duckdb.database import Database

def ours():
    Database(sys.argv[1]).close()

def bare():
    connection = duckdb.connect(sys.argv[1])
    connection.execute("SELECT value FROM settings, (SELECT 1 FROM snapshots, stats_sketches LIMIT 0)").fetchall()
    connection.close()

used = {"ours": [], "bare": []}
for _ in range(int(sys.argv[2])):
    for name, function in (("ours", ours), ("bare", bare)):
        began = time.process_time()
        function()
        used[name].append(time.process_time() - began)
print(json.dumps(used))
"""


def test_opening_a_current_file(tmp_path):
    path = unpack(OLDEST, tmp_path)
    Database(path).close()
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(path), str(OPENINGS)], capture_output=True, check=True, text=True
    )
    medians = {name: statistics.median(each) * 1000 for name, each in json.loads(done.stdout).items()}
    ratio = medians["ours"] / medians["bare"]
    print(f"\nopened and closed: ours {medians['ours']:.1f} ms, DuckDB {medians['bare']:.1f} ms; {ratio:.2f}")
    assert ratio <= OPEN_RATIO
