"""A server on the store of another package: SQLite's, installed by its entry point."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from store.model.columns import COMPUTED
from store.model.puts import FLIGHT_OF
from tests.flight_server.live_server import Client, capture, serving
from tests.store.sqlite_store import SqliteStatsStore

FLIGHTS = (*FLIGHT_OF.values(), "stats.file_columns", "stats.sketches")
ROOT = Path(__file__).parents[2]
KEY = {"table_catalog": "own", "table_schema": "s", "table_name": "t", "snapshot_id": 1}


def installed(directory: Path) -> dict[str, str]:
    """The environment of a process that finds the package of the store."""
    package = directory / "plugin" / "sqlite_stats-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-stats\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[statflight.stores]\nsqlite = tests.store.sqlite_store:SqliteStatsStore\n"
    )
    return {
        "PYTHONPATH": f"{package.parent}:{ROOT}",
        "STATFLIGHT_STORE": "sqlite",
        "STATFLIGHT_STORE_URI": str(directory / "stats.sqlite"),
    }


def served(client: Client) -> dict[str, list[Any]]:
    """Flight → what is stored, of all snapshots, as the server answers."""
    found = {}
    for name in FLIGHTS:
        rows = client.get({"table": name})
        rows = rows.drop_columns([column for column in COMPUTED if column in rows.column_names])
        found[name] = sorted(map(repr, rows.to_pylist()))
    return found


def labels(client: Client) -> list[Any]:
    """What readers are told of the current snapshot."""
    rows = client.get({"table": "stats.columns", "snapshot": "current"}).to_pylist()
    told = ("table_name", "snapshot_id", "column_name", "ndv", "max", "freshness", "usable_for")
    return sorted([row[name] for name in told] for row in rows if row["table_catalog"] == "lake")


def test_statistics_live_in_the_other_store(tmp_path):
    segments = tmp_path / "segments"  # of no use here, so that servers may name the same place
    env = installed(tmp_path) | {"STATFLIGHT_SEGMENTS": str(segments)}
    lake = tmp_path / "lake" / "t"
    write_deltalake(lake, pa.table({"n": range(100), "s": [f"v{i % 7}" for i in range(100)]}))
    connector = {"catalog": "lake", "format": "delta", "uri": str(lake.parent)}
    (tmp_path / "one").mkdir()
    with serving(tmp_path / "one", "--workers", 1, env=env) as server, server.connect() as client:
        client.act("register_connector", connector)
        capture(client, "lake.default.t")
        write_deltalake(lake, pa.table({"n": range(50), "s": ["w"] * 50}), mode="append")
        capture(client, "lake.default.t")  # goes on with the listing of the first
        DeltaTable(lake).delete("n = 3")
        capture(client, "lake.default.t")
        client.put("stats.columns", pa.Table.from_pylist([KEY | {"column_id": i, "ndv": 2.0} for i in (1, 2)]))
        client.act("delete_stats", {"table": "own.s.t", "target": {"kind": "COLUMN", "column_id": 2}})
        before = served(client)
        told = labels(client)
        server.kill()
    assert [len(before[name]) for name in ("stats.tables", "stats.columns", "stats.files")] == [3, 7, 4]
    assert before["stats.sketches"]

    with contextlib.closing(SqliteStatsStore(env["STATFLIGHT_STORE_URI"])) as store:
        assert {table.full_name for table in store.tables()} == {"lake.default.t", "own.s.t"}

    (tmp_path / "two").mkdir()
    with serving(tmp_path / "two", env=env) as server, server.connect() as client:
        assert not segments.exists()
        assert "filled the database with" in server.log.read_text()
        assert served(client) == before
        client.act("register_connector", connector)
        client.act("discover", {"catalog": "lake"})
        assert labels(client) == told
        client.put("stats.columns", pa.Table.from_pylist([KEY | {"column_id": 3, "ndv": 4.0}]))
        before = served(client)
    with contextlib.closing(SqliteStatsStore(env["STATFLIGHT_STORE_URI"])) as store:
        assert store.count(store.find(("own", "s", "t")), 1) == 2

    with serving(tmp_path / "two", env=env) as server, server.connect() as client:
        assert server.log.read_text().count("filled the database with") == 1
        assert served(client) == before
