"""Captures of tables with small changes: unchanged files are neither read nor put again."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from capture.connectors.footers import reader
from capture.connectors.iceberg.io import LakeIO
from capture.connectors.storage import immutable_cache
from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from flight_server.client.connection import Connection
from flight_server.worker.draft_sink import DraftSink
from flight_server.worker.loop import Worker
from store.invariants import check_file
from tests.flight_server.live_server import Client, serving

IGNORED = ("captured_at", "refreshed_at", "capture_mode", "freshness", "usable_for")


@dataclass
class Watch:
    """Files that a worker opened and rows it put, since the last `take`."""

    opened: Counter[str] = field(default_factory=Counter)
    put: Counter[str] = field(default_factory=Counter)

    def take(self) -> tuple[Counter[str], Counter[str]]:
        found = self.opened, self.put
        self.opened, self.put = Counter(), Counter()
        return found


@pytest.fixture
def watch(monkeypatch) -> Watch:
    """Counts calls of the real file systems and the real sink."""
    counts = Watch()
    new_input, put, read_footer = LakeIO.new_input_here, DraftSink.put, reader.read_footer

    def opening(self, location):
        counts.opened["data" if location.endswith(".parquet") else _kind(location)] += 1
        return new_input(self, location)

    def putting(self, flight, rows, **more):
        counts.put[flight] += rows.num_rows
        put(self, flight, rows, **more)

    def reading(place, kept=None):
        counts.opened["footer"] += 1
        return read_footer(place, kept)

    monkeypatch.setattr(LakeIO, "new_input_here", opening)
    monkeypatch.setattr(DraftSink, "put", putting)
    monkeypatch.setattr(reader, "read_footer", reading)
    for cache in (immutable_cache.FILES, immutable_cache.COLUMNS):
        cache.clear()
    return counts


def _kind(location: str) -> str:
    name = location.rpartition("/")[2]
    return "metadata" if name.endswith(".json") else "list" if name.startswith("snap-") else "manifest"


@contextlib.contextmanager
def server_with_worker(directory: Path) -> Iterator[Client]:
    """A new server, and its worker in this process."""
    directory.mkdir()
    with serving(directory) as live:
        worker = Worker(Connection(live.uri, None), Registry([NativeEngine()]))
        worker.start([("control", "sync", "light", "job")])
        try:
            yield live.connect()
        finally:
            worker.stopping.set()


def capture(client: Client, table: str) -> None:
    (outcome,) = client.act("capture", {"requests": [{"table": table, "target": {"kind": "TABLE"}, "mode": "SYNC"}]})
    assert outcome["outcome"] == "CAPTURED", outcome


def stored(client: Client, table: str) -> dict[str, list[dict[str, Any]]]:
    """All stored rows of the table's current snapshot."""
    found = {}
    for flight in ("stats.tables", "stats.columns", "stats.files", "stats.file_columns"):
        rows = client.get({"table": flight, "snapshot": "current"}).drop_columns(
            [name for name in IGNORED if name in client.get({"table": flight, "limit": 0}).column_names]
        )
        found[flight] = sorted(rows.to_pylist(), key=repr)
    assert found["stats.files"] and all(row["table_name"] == table.rpartition(".")[2] for row in found["stats.files"])
    return found


def captured_afresh(directory: Path, connector: dict[str, Any], table: str) -> dict[str, list[dict[str, Any]]]:
    """Stored rows of a new server and worker after one capture, with empty caches."""
    for cache in (immutable_cache.FILES, immutable_cache.COLUMNS):
        cache.clear()
    with server_with_worker(directory) as client:
        client.act("register_connector", connector)
        client.act("discover", {"catalog": connector["catalog"]})
        capture(client, table)
        return stored(client, table)


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i:04}" for i in ids]})


@pytest.fixture
def iceberg(tmp_path):
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    table = catalog.create_table("db.t", schema)
    for start in range(0, 50, 10):
        table.append(rows(start, start + 10))
    yield table
    catalog.close()


def test_iceberg_recapture_reads_and_puts_only_changed_files(iceberg, tmp_path, watch):
    connector = {"catalog": "lake", "format": "iceberg", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    with server_with_worker(tmp_path / "server") as client:
        client.act("register_connector", connector)
        client.act("discover", {"catalog": "lake"})
        watch.take()
        capture(client, "lake.db.t")
        opened, put = watch.take()
        assert (opened["manifest"], opened["data"]) == (5, 0)
        assert (put["stats.files"], put["stats.file_columns"]) == (5, 10)
        first = stored(client, "lake.db.t")

        capture(client, "lake.db.t")  # nothing changed
        opened, put = watch.take()
        assert (opened["manifest"], opened["data"]) == (0, 0)
        assert (put["stats.files"], put["stats.file_columns"]) == (0, 0)
        assert stored(client, "lake.db.t") == first

        iceberg.append(rows(100, 110))
        capture(client, "lake.db.t")
        opened, put = watch.take()
        assert (opened["manifest"], opened["data"]) == (1, 0)
        assert (put["stats.files"], put["stats.file_columns"]) == (1, 2)
        second = stored(client, "lake.db.t")
        assert len(second["stats.files"]) == 6
        assert {row["max"] for row in second["stats.columns"]} == {"109", "n0109"}

        iceberg.delete("id >= 40 and id < 45")  # half a file, which is rewritten
        iceberg.delete("id < 10")  # a whole file
        capture(client, "lake.db.t")
        opened, put = watch.take()
        assert opened["data"] == 0 and put["stats.files"] == 1 and put["stats.file_columns"] == 2
        last = stored(client, "lake.db.t")
        assert sorted(row["row_count"] for row in last["stats.files"]) == [5, 10, 10, 10, 10]
        older = client.get({"table": "stats.file_columns", "snapshot": first["stats.tables"][0]["snapshot_id"]})
        assert older.num_rows == 10  # the first snapshot is unchanged
    assert last == captured_afresh(tmp_path / "again", connector, "lake.db.t")


def test_parquet_recapture_reads_and_puts_only_changed_files(tmp_path, watch):
    lake = tmp_path / "lake" / "t"
    lake.mkdir(parents=True)
    for n in range(6):
        pq.write_table(rows(n * 10, n * 10 + 10), lake / f"{n}.parquet")
    connector = {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake")}
    with server_with_worker(tmp_path / "server") as client:
        client.act("register_connector", connector)
        client.act("discover", {"catalog": "lake"})
        capture(client, "lake.default.t")
        opened, put = watch.take()
        assert opened["footer"] == 6  # by discovery only
        assert put["stats.file_columns"] == 12
        capture(client, "lake.default.t")
        assert watch.take() == (Counter(), Counter({"stats.tables": 1, "stats.columns": 2}))
        pq.write_table(rows(500, 510), lake / "7.parquet")
        pq.write_table(rows(700, 710), lake / "3.parquet")  # other content with as many rows and bytes
        (lake / "0.parquet").unlink()
        capture(client, "lake.default.t")
        opened, put = watch.take()
        assert opened["footer"] == 2
        assert (put["stats.files"], put["stats.file_columns"]) == (2, 4)
        last = stored(client, "lake.default.t")
    assert last == captured_afresh(tmp_path / "again", connector, "lake.default.t")


@pytest.mark.parametrize("format", ["delta", "lance"])
def test_a_table_that_is_emptied_has_no_files(tmp_path, format):
    """The files of its snapshot are known: those of an earlier one do not apply, and scans need no capture."""
    import lance
    from deltalake import DeltaTable, write_deltalake

    path = tmp_path / "lake" / ("t.lance" if format == "lance" else "t")

    def append() -> None:
        if format == "delta":
            write_deltalake(path, rows(0, 10), mode="append")
        else:
            lance.write_dataset(rows(0, 10), str(path), mode="append" if path.exists() else "create")

    def found() -> list[int]:
        client.act("discover", {"catalog": "lake"})
        capture(client, "lake.default.t")
        flights = ("stats.files", "stats.file_columns", "stats.partitions")
        reads = [client.get({"table": flight, "snapshot": "current"}) for flight in flights]
        assert {row["freshness"] for read in reads for row in read.to_pylist()} == {"EXACT"}
        scanned = client.get({"scan": "lake.default.t"}).num_rows
        return [reads[0].num_rows, reads[1].num_rows, reads[2]["row_count"].to_pylist(), scanned]

    path.parent.mkdir()
    append()
    columns = 2 if format == "delta" else 0  # in metadata
    with server_with_worker(tmp_path / "server") as client:
        client.act("register_connector", {"catalog": "lake", "format": format, "uri": str(tmp_path / "lake")})
        assert found() == [1, columns, [10], 1]
        _ = DeltaTable(path).delete() if format == "delta" else lance.dataset(str(path)).delete("true")
        assert found() == [0, 0, [0], 0]
        append()
        assert found() == [1, columns, [10], 1]
    assert list(check_file(tmp_path / "server" / "stats.duckdb")) == []


def test_all_files_are_put_again_after_statistics_of_one_were_deleted(iceberg, tmp_path, watch):
    connector = {"catalog": "lake", "format": "iceberg", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    with server_with_worker(tmp_path / "server") as client:
        client.act("register_connector", connector)
        client.act("discover", {"catalog": "lake"})
        capture(client, "lake.db.t")
        deleted = stored(client, "lake.db.t")["stats.files"][0]["file_path"]
        result = client.act("delete_stats", {"table": "lake.db.t", "target": {"kind": "FILE", "file_path": deleted}})
        assert result == [{"deleted": 3}]
        iceberg.append(rows(100, 110))
        watch.take()
        capture(client, "lake.db.t")
        opened, put = watch.take()
        assert opened["manifest"] == 1  # the other manifests are cached
        assert (put["stats.files"], put["stats.file_columns"]) == (6, 12)
        last = stored(client, "lake.db.t")
    assert last == captured_afresh(tmp_path / "again", connector, "lake.db.t")
