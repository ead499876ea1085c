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
from store.model.errors import Cancelled, NotFound, UpstreamError

SCHEMA = Schema((Column("a", "INT"),))


class Panic(BaseException):
    """A BaseException like the panics of Rust extensions."""


class FakeLake:
    format = "made-up"

    tables_at_once = 1

    def __init__(self, **tables: BaseException | None):
        self.tables = tables
        self.namespaces: dict[str, BaseException | None] = {"s": None}
        self.marks: dict[str, str] = {}

    def format_of(self, namespace: str, name: str) -> str:
        return self.format

    def list_namespaces(self) -> list[str]:
        return list(self.namespaces)

    def list_tables(self, namespace: str) -> list[str]:
        if error := self.namespaces[namespace]:
            raise error
        return list(self.tables)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        if error := self.tables[name]:
            raise error
        return TableDescriptor(namespace, name, None, f"/{name}", SCHEMA)

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        return self.marks.get(name)

    def lake_mark(self, before: str | None = None) -> str | None:
        return " ".join(self.tables)

    def enumerate_snapshots(self, namespace: str, name: str, **_: Any) -> SnapshotListing:
        return SnapshotListing((Snapshot(1, 1, SCHEMA),), frozenset({1}), 1)


def run_inspection(
    lake: Any, progress: Callable[[float | None, str], None] = lambda *_: None, **more: Any
) -> dict[str, Any]:
    return inspect(lake, {"operation": "discover", "only": None, "known": {}, "full_rescan": False} | more, progress)


@pytest.mark.parametrize("error", [UpstreamError("damaged"), ValueError("damaged"), Panic("damaged")])
def test_failing_table_does_not_stop_the_others(error):
    found = run_inspection(FakeLake(a=None, bad=error, z=None))
    assert [table["name"] for table in found["tables"]] == ["a", "z"]
    (error,) = found["errors"]
    assert error["name"] == "bad" and "damaged" in error["reason"]


def test_tables_that_are_as_at_their_mark_are_not_described():
    lake = FakeLake(a=UpstreamError("described"), b=None, c=None)
    lake.marks = {"a": "1", "b": "2"}
    marks = {"s\0a": "1", "s\0b": "1", "s\0c": "1"}
    found = run_inspection(lake, marks=marks, only=[["s", "a"], ["s", "b"], ["s", "c"]])
    assert found["unchanged"] == [("s", "a")] and found["errors"] == []
    assert [(table["name"], table["mark"]) for table in found["tables"]] == [("b", "2"), ("c", None)]


def test_names_are_listed_only_if_the_lake_differs_from_its_mark():
    lake = FakeLake(a=None, b=None)
    asked = {"operation": "names", "connector": {"options": {"exclude": "*.b"}}}
    found = inspect(lake, asked, lambda *_: None)
    assert found["names"] == [("s", "a")] and found["lake_mark"] == "a b"
    assert inspect(lake, asked | {"lake_mark": "a b"}, lambda *_: None) == {}
    assert inspect(lake, asked | {"lake_mark": "a"}, lambda *_: None) == found


def test_failing_namespace_does_not_stop_the_others():
    lake = FakeLake(a=None)
    lake.namespaces = {"closed": UpstreamError("denied"), "s": None}
    found = run_inspection(lake)
    assert found["errors"] == [{"schema": "closed", "name": None, "reason": "denied"}]
    assert [table["name"] for table in found["tables"]] == ["a"]


def test_error_of_a_single_requested_table_is_raised():
    with pytest.raises(NotFound):
        run_inspection(FakeLake(a=NotFound("no table")), only=[["s", "a"]])


def test_failing_requested_table_does_not_stop_the_others():
    found = run_inspection(FakeLake(a=NotFound("no table"), b=None, c=None), only=[["s", "a"], ["s", "b"]])
    assert [table["name"] for table in found["tables"]] == ["b"]
    assert found["errors"] == [{"schema": "s", "name": "a", "reason": "no table"}]


def test_progress_is_reported_and_can_cancel_the_inspection():
    reports: list[tuple[float | None, str]] = []
    run_inspection(FakeLake(a=None, b=None), lambda share, message: reports.append((share, message)))
    assert reports == [(0.0, "0 of 2 tables"), (0.5, "1 of 2 tables")]

    def stop(share: float | None, message: str) -> None:
        raise Cancelled("not wanted")

    with pytest.raises(Cancelled):
        run_inspection(FakeLake(a=None), stop)


def test_directory_walk_reports_progress_and_can_be_cancelled(tmp_path):
    for number in range(5):
        (tmp_path / f"d{number}/t").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"d{number}/t/0.parquet")
    connector = open_connector(ConnectorConfig("c", "parquet", str(tmp_path)))
    reports: list[str] = []
    with reporting(reports.append):
        assert len(connector.list_namespaces()) == 5
    assert "0 directories, 0 tables found" in reports and len(reports) >= 5

    def stop(message: str) -> None:
        if message.startswith("3 directories"):
            raise Cancelled("not wanted")

    with reporting(stop), pytest.raises(Cancelled):
        connector.list_namespaces()
    connector.close()


class ConcurrentLake(FakeLake):
    tables_at_once = 4

    def __init__(self, **tables: BaseException | None):
        super().__init__(**tables)
        self.two = threading.Barrier(2, timeout=30)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        self.two.wait()
        return super().describe(namespace, name)


def test_tables_of_a_remote_lake_are_inspected_concurrently():
    lake = ConcurrentLake(**{f"t{number}": None for number in range(9)}, bad=Panic("damaged"))
    found = run_inspection(lake)
    assert [table["name"] for table in found["tables"]] == [f"t{number}" for number in range(9)]
    assert [error["name"] for error in found["errors"]] == ["bad"]


@pytest.mark.parametrize("operation", ["validate", "discover"])
def test_a_lake_without_tables_of_its_format_says_which_are_there(tmp_path, operation):
    folder = tmp_path / "lake" / "t"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "a.parquet")
    for uri, what in ((folder.parent, "it has parquet tables, such as t"), (folder, "it is a table of format parquet")):
        config = {"catalog": "c", "format": "lance", "uri": str(uri), "options": {}}
        connector = open_connector(ConnectorConfig(**config))
        with pytest.raises(NotFound, match="holds no lance table") as refused:
            run_inspection(connector, operation=operation, connector=config)
        assert refused.value.hint == f"{what}: statflight connect c parquet {uri}"
        with pytest.raises(NotFound) as later:  # it had tables: nothing is looked for
            run_inspection(connector, operation=operation, connector=config, known={"s.t": [1]})
        assert not later.value.hint
