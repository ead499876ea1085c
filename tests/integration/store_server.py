"""A server to write to, read from and kill, for tests of the store through its clients."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from store.catalog.catalog import Catalog
from store.catalog.discovery import Discovery
from store.duckdb.database import Database
from store.invariants import check_file
from store.model.puts import MANY_ROWS
from store.stats_store import DuckDBStatsStore
from tests.flight_server.live_server import serving

KEY = {"table_catalog": "c", "table_schema": "s", "table_name": "t"}


class Client:
    def __init__(self, uri: str):
        self.flight = flight.connect(uri)

    def put(self, table: str, rows: pa.Table, mode: str = "create", **more: Any) -> dict[str, int]:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"table": table, "mode": mode} | more))
        writer, reader = self.flight.do_put(descriptor, rows.schema)
        with writer:
            writer.write_table(rows, max_chunksize=1000)
            writer.done_writing()
            return json.loads(reader.read().to_pybytes())

    def get(self, table: str, **more: Any) -> pa.Table:
        command = json.dumps({"table": table} | more).encode()
        return self.flight.do_get(flight.Ticket(command)).read_all()

    def act(self, name: str, **body: Any) -> Any:
        """The only result of an action; None if there is none."""
        results = list(self.flight.do_action(flight.Action(name, json.dumps(body).encode())))
        return json.loads(results[0].body.to_pybytes()) if results else None


def table_predicates(name: str = "t") -> list[dict[str, Any]]:
    return [{"column": c, "op": "EQ", "values": [v]} for c, v in (KEY | {"table_name": name}).items()]


def generation(number: int, rows: int, name: str = "t", snapshot: int = 1) -> pa.Table:
    """Columns with the generation's number as row_count; their count depends on it, so that mixtures are detected."""
    count = rows + number % 7
    return pa.table(
        {
            **{key: [value] * count for key, value in (KEY | {"table_name": name}).items()},
            "snapshot_id": [snapshot] * count,
            "column_id": list(range(1, count + 1)),
            "row_count": [number] * count,
        }
    )


generation(0, 1)  # pyarrow imports pandas with the first value it converts, which takes seconds on a busy machine


class Publisher(threading.Thread):
    """Replaces a snapshot's columns repeatedly until the server is gone or `stop` is set."""

    def __init__(self, uri: str, name: str, first: int, rows: int = 300):
        super().__init__(daemon=True)
        self.uri, self.table_name, self.number, self.rows = uri, name, first, rows
        self.first = first
        self.acknowledged = self.sent = first - 1
        self.stop = threading.Event()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            client = Client(self.uri)
            while not self.stop.is_set():
                self.sent = self.number
                self.publish(client)
                self.acknowledged = self.number
                self.number += 1
        except BaseException as trouble:
            self.trouble = trouble

    def publish(self, client: Client) -> None:
        client.put("stats.columns", generation(self.number, self.rows, self.table_name), "replace_snapshot")


class Capturer(Publisher):
    """Publishes a generation as a worker does: in two halves into the draft of a job, which it then finishes."""

    def publish(self, client: Client) -> None:
        # another column each time: a job equal to one interrupted by a kill would wait like that one
        target = {"kind": "COLUMN", "column_id": self.number + 1}
        request = {"table": f"c.s.{self.table_name}", "snapshot": 1, "target": target, "mode": "ASYNC"}
        client.act("capture", requests=[request])
        lease = client.act("lease_job", worker_id="w", kinds=["job"], wait_seconds=10)
        rows = generation(self.number, self.rows, self.table_name)
        for part in (rows.slice(0, self.rows // 2), rows.slice(self.rows // 2)):
            client.put("stats.columns", part, draft=lease["lease_token"], whole=True)
        outcomes = [{"outcome": "CAPTURED", "engine_id": "e", "snapshot_id": 1, "storage_id": "table"}]
        done = client.act("finish_job", job_id=lease["job_id"], lease_token=lease["lease_token"], outcomes=outcomes)
        assert done["state"] == "SUCCEEDED", done


class FilesPublisher(Publisher):
    """Replaces a listing of so many files that its rows are stored in pieces, before its commit."""

    def __init__(self, uri: str, name: str, first: int):
        super().__init__(uri, name, first, MANY_ROWS)

    def publish(self, client: Client) -> None:
        rows = generation(self.number, self.rows, self.table_name)
        rows = rows.append_column("file_path", pc.cast(rows["column_id"], pa.string()))
        client.put("stats.file_columns", rows, "replace_snapshot")


def make_lake(db: Path, name: str) -> None:
    """Creates a database whose catalog has a table of a lake, so that captures accept it."""
    table = {
        "schema": KEY["table_schema"],
        "name": name,
        "table_id": "id",
        "location": "/nowhere",
        "schema_hash": "h",
        "schemas": {"h": [["a", "INT", True, 1]]},
        "current_snapshot_id": 1,
        "live_snapshot_ids": [1],
        "snapshots": [
            {
                "snapshot_id": 1,
                "ordinal": 1,
                "parent_snapshot_id": None,
                "sequence_number": 1,
                "committed_at": None,
                "operation": None,
                "schema_hash": "h",
            }
        ],
    }
    database = Database(db)
    catalog = DuckDBStatsStore(database, Catalog(database)).catalog

    def run(connection: Any) -> None:
        catalog.connectors.put(connection, KEY["table_catalog"], "iceberg", "/nowhere", {})
        Discovery(catalog).store(connection, KEY["table_catalog"], "iceberg", [table])

    database.write(run)
    database.close()


def check_whole(found: pa.Table, rows: int = 300) -> int | None:
    """The generation that a read returned; it must be a single, complete one. None if there is none yet."""
    if not found.num_rows:
        return None
    (number,) = found["row_count"].unique().to_pylist()
    assert found.num_rows == rows + number % 7, f"{found.num_rows} rows of generation {number}"
    return int(number)


def kill_loop(directory: Path, kills: int, busy: float = 0.3) -> tuple[list[float], int]:
    """Kills a server during puts and publications repeatedly.

    After each start the store has each acknowledged generation, or a newer one that was being sent, and no partial one.

    Returns:
        Seconds of each start until the first response, and the number of acknowledged puts and publications.
    """
    db, starts, acknowledged = directory / "kill.db", [], 0
    writers = {"a": Publisher, "b": Publisher, "drafts": Capturer, "files": FilesPublisher}
    last = dict.fromkeys(writers, (0, 0))  # table → acknowledged, sent
    make_lake(db, "drafts")
    for number in range(kills + 1):
        begun = time.perf_counter()
        with serving(directory, "--db", db) as server:
            client = Client(server.uri)
            client.act("health")
            starts.append(time.perf_counter() - begun)
            for name, (least, most) in last.items():
                flight_name, rows = ("stats.file_columns", MANY_ROWS) if name == "files" else ("stats.columns", 300)
                found = client.get(flight_name, columns=["row_count"], predicates=table_predicates(name))
                seen = check_whole(found, rows) or 0
                assert least <= seen <= most, f"generation {seen} after {least} was acknowledged, {most} sent"
                last[name] = (seen, seen)
            if number == kills:
                break
            publishers = [writer(server.uri, name, last[name][0] + 1) for name, writer in writers.items()]
            for publisher in publishers:
                publisher.start()
            # the moment of the kill varies, but each publisher has put something before it
            until = time.monotonic() + 10
            while time.monotonic() < until and any(p.acknowledged < p.first for p in publishers):
                time.sleep(0.01)
            time.sleep(busy * (number % 8) / 8)
            server.kill()
        assert list(check_file(db)) == []
        for publisher in publishers:
            publisher.join(30)
            assert isinstance(publisher.trouble, pa.ArrowException), publisher.trouble
            acknowledged += publisher.acknowledged - last[publisher.table_name][0]
            last[publisher.table_name] = (publisher.acknowledged, publisher.sent)
    return starts, acknowledged


def read_against_writers(db: Path, seconds: float, least: int = 1, readers: int = 2) -> tuple[int, int]:
    """Reads against publishing writers; no read may see part of a publication.

    Args:
        db: A new database.
        seconds: How long.
        least: Publications to wait for even if that takes longer, at most a minute.
        readers: How many read at once.

    Returns:
        Counts of reads and publications.
    """
    with serving(db.parent, "--db", db) as server:
        publishers = [Publisher(server.uri, name, 1) for name in ("a", "b")]
        trouble: list[BaseException] = []
        counts = [0] * readers
        end = time.monotonic() + seconds

        def going_on() -> bool:
            acknowledged = sum(publisher.acknowledged for publisher in publishers)
            return time.monotonic() < end or (acknowledged < least and time.monotonic() < end + 60)

        def read(reader: int) -> None:
            client = Client(server.uri)
            scopes: list[dict[str, Any]] = [{}, {"snapshot": "current"}, {"snapshot": 1, "columns": ["row_count"]}]
            seen = {"a": 0, "b": 0}
            try:
                while going_on():
                    name, scope = ("a", "b")[counts[reader] % 2], scopes[counts[reader] % len(scopes)]
                    number = check_whole(client.get("stats.columns", predicates=table_predicates(name), **scope))
                    assert number is None or number >= seen[name], "a reader saw an older generation than before"
                    seen[name] = number or 0
                    counts[reader] += 1
            except BaseException as error:
                trouble.append(error)

        threads = [threading.Thread(target=read, args=(reader,)) for reader in range(readers)]
        for thread in (*publishers, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        for publisher in publishers:
            publisher.stop.set()
        for publisher in publishers:
            publisher.join()
            trouble += [publisher.trouble] if publisher.trouble else []
    if trouble:
        raise trouble[0]
    return sum(counts), sum(publisher.acknowledged for publisher in publishers)
