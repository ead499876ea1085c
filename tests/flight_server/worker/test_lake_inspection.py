"""Reports of a lake inspection: tables, errors, progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.progress import reporting
from capture.connectors.spi import Column, ConnectorConfig, Schema, Snapshot, SnapshotListing, TableDescriptor
from flight_server.worker.lake_inspection import inspect
from store.errors import Cancelled, NotFound, UpstreamError

SCHEMA = Schema((Column("a", "INT"),))


class Panic(BaseException):
    """As Rust's panics come."""


class Lake:
    format = "made-up"

    def __init__(self, **tables: BaseException | None):
        self.tables = tables
        self.namespaces: dict[str, BaseException | None] = {"s": None}

    def list_namespaces(self) -> list[str]:
        return list(self.namespaces)

    def list_tables(self, namespace: str) -> list[str]:
        if trouble := self.namespaces[namespace]:
            raise trouble
        return list(self.tables)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        if trouble := self.tables[name]:
            raise trouble
        return TableDescriptor(namespace, name, None, f"/{name}", SCHEMA)

    def enumerate_snapshots(self, namespace: str, name: str, **_: Any) -> SnapshotListing:
        return SnapshotListing((Snapshot(1, 1, SCHEMA),), frozenset({1}), 1)


def look(lake: Any, progress: Callable[[float | None, str], None] = lambda *_: None, **more: Any) -> dict[str, Any]:
    return inspect(lake, {"operation": "discover", "only": None, "known": {}, "full_rescan": False} | more, progress)


@pytest.mark.parametrize("trouble", [UpstreamError("damaged"), ValueError("damaged"), Panic("damaged")])
def test_trouble_with_one_table_stops_no_other(trouble):
    found = look(Lake(a=None, bad=trouble, z=None))
    assert [table["name"] for table in found["tables"]] == ["a", "z"]
    (error,) = found["errors"]
    assert error["name"] == "bad" and "damaged" in error["reason"]


def test_a_namespace_that_cannot_be_listed_stops_no_other():
    lake = Lake(a=None)
    lake.namespaces = {"closed": UpstreamError("denied"), "s": None}
    found = look(lake)
    assert found["errors"] == [{"schema": "closed", "name": None, "reason": "denied"}]
    assert [table["name"] for table in found["tables"]] == ["a"]


def test_trouble_with_the_one_table_asked_for_is_the_answer():
    with pytest.raises(NotFound):
        look(Lake(a=NotFound("no table")), only=[["s", "a"]])


def test_trouble_with_one_of_the_tables_asked_for_stops_no_other():
    found = look(Lake(a=NotFound("no table"), b=None, c=None), only=[["s", "a"], ["s", "b"]])
    assert [table["name"] for table in found["tables"]] == ["b"]
    assert found["errors"] == [{"schema": "s", "name": "a", "reason": "no table"}]


def test_progress_is_told_and_may_stop_the_look():
    told: list[tuple[float | None, str]] = []
    look(Lake(a=None, b=None), lambda share, message: told.append((share, message)))
    assert told == [(0.0, "0 of 2 tables"), (0.5, "1 of 2 tables")]

    def stop(share: float | None, message: str) -> None:
        raise Cancelled("not wanted")

    with pytest.raises(Cancelled):
        look(Lake(a=None), stop)


def test_a_walk_of_directories_reports_and_can_be_stopped(tmp_path):
    for number in range(5):
        (tmp_path / f"d{number}/t").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"d{number}/t/0.parquet")
    connector = open_connector(ConnectorConfig("c", "parquet", str(tmp_path)))
    told: list[str] = []
    with reporting(told.append):
        assert len(connector.list_namespaces()) == 5
    assert "0 directories, 0 tables found" in told and len(told) >= 5

    def stop(message: str) -> None:
        if message.startswith("3 directories"):
            raise Cancelled("not wanted")

    with reporting(stop), pytest.raises(Cancelled):
        connector.list_namespaces()
    connector.close()


class FarLake(Lake):
    tables_at_once = 4

    def __init__(self, **tables: BaseException | None):
        super().__init__(**tables)
        self.two = threading.Barrier(2, timeout=30)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        self.two.wait()
        return super().describe(namespace, name)


def test_tables_of_a_lake_far_away_are_looked_at_at_once():
    lake = FarLake(**{f"t{number}": None for number in range(9)}, bad=Panic("damaged"))
    found = look(lake)
    assert [table["name"] for table in found["tables"]] == [f"t{number}" for number in range(9)]
    assert [error["name"] for error in found["errors"]] == ["bad"]
