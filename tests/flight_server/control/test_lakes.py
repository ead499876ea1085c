"""Lakes without a worker's process: a thread of the test answers the looks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flight_server.auth.vault import Vault
from flight_server.control.lakes import Lakes
from flight_server.control.leases import Leases
from flight_server.control.publication import Publication
from flight_server.control.task_queue import TaskQueue
from store.catalog_store import Catalog
from store.database import Database
from store.errors import Cancelled, Conflict, NotFound, UpstreamError, to_json
from store.job_store import JobStore
from store.stats_store import DuckDBStatsStore


def table(name: str, schema: str = "s", table_id: str | None = None, snapshots: tuple[int, ...] = (1,)) -> Any:
    told = [{"snapshot_id": i, "ordinal": i, "schema_hash": "h", "parent_snapshot_id": None, "sequence_number": None,
             "committed_at": None, "operation": None} for i in snapshots]  # fmt: skip
    return {
        "schema": schema, "name": name, "table_id": table_id or name, "location": f"/{name}", "schema_hash": "h",
        "schemas": {"h": [["a", "INT", True, None]]}, "snapshots": told, "live_snapshot_ids": list(snapshots),
        "current_snapshot_id": max(snapshots), "partition_keys": [], "properties": {}, "constraints": [],
    }  # fmt: skip


class House:
    def __init__(self) -> None:
        self.database = Database(":memory:")
        self.catalog = Catalog(self.database)
        self.vault = Vault(None)
        jobs = JobStore(self.database)
        self.tasks = TaskQueue(self.catalog)
        publication = Publication(jobs, DuckDBStatsStore(self.database, self.catalog), self.catalog)
        self.work = Leases(self.tasks, jobs, self.database, publication)
        self.lakes = Lakes(self.database, self.catalog, self.vault, self.tasks)
        self.found: dict[str, Any] = {"namespaces": ["s"], "tables": [table("t")], "errors": []}
        self.trouble: Exception | None = None
        self.asked: list[Any] = []
        self.before: Callable[[dict[str, Any]], None] = lambda lease: None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while not self._stop.is_set():
            lease = next(iter(self.work.lease("w", ["control"], 0.05, [], lambda: False)), None)
            if lease is not None:
                self.asked.append(lease["payload"])
                self.before(lease)
                body = {"error": to_json(self.trouble)} if self.trouble else {"result": self.found}
                self.work.finish(lease["job_id"], lease["lease_token"], body)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.database.close()

    def register(self, uri: str = "/a", format: str = "delta", **more: Any) -> dict[str, Any]:
        options = more.pop("options", {})
        config = {"catalog": "c", "format": format, "uri": uri, "options": options}
        return self.lakes.register(config, lambda: False, **more)

    def connectors(self) -> list[tuple[str, str, str | None]]:
        return self.database.rows("SELECT format, uri, last_error FROM connectors")

    def states(self) -> dict[str, tuple[str, str | None]]:
        rows = self.database.rows("SELECT table_name, state, last_error FROM tables WHERE NOT dropped")
        return {name: (state, error) for name, state, error in rows}


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


@pytest.mark.parametrize("change", [{"uri": "/b"}, {"format": "parquet"}])
def test_a_taken_catalog_is_a_conflict_unless_replaced(house, change):
    house.register()
    house.register(options={"timeout": "5"})  # another option is still the same lake
    with pytest.raises(Conflict, match='"c" is connected to the delta lake /a'):
        house.register(**change)
    assert house.connectors() == [("delta", "/a", None)]
    house.register(**change, replace=True)
    assert house.connectors() == [(change.get("format", "delta"), change.get("uri", "/a"), None)]


def test_a_conflict_asks_no_worker(house):
    house.register()
    with pytest.raises(Conflict):
        house.register(uri="/b")
    assert len(house.asked) == 1


def test_a_lake_in_trouble_is_not_registered(house):
    house.trouble = UpstreamError("no such bucket")
    for discover in (False, True):
        with pytest.raises(UpstreamError, match="no such bucket"):
            house.register(discover=discover)
    assert house.connectors() == [] and house.states() == {}


def test_a_stopped_connect_leaves_the_catalog_as_it_was(house):
    house.register(discover=True)
    begun, noticed = threading.Event(), threading.Event()
    house.before = lambda _: (begun.set(), noticed.wait(60))[0]  # the look outlasts its caller

    def is_cancelled() -> bool:
        if begun.is_set():
            noticed.set()
        return begun.is_set()

    with pytest.raises(Cancelled):
        house.lakes.register(
            {"catalog": "c", "format": "delta", "uri": "/b", "options": {}}, is_cancelled, replace=True, discover=True
        )
    assert house.connectors() == [("delta", "/a", None)] and house.states() == {"t": ("ACTIVE", None)}


def test_registration_and_discovery_are_one_look(house):
    answer = house.register(discover=True)
    assert [found["table"] for found in answer["tables"]] == ["c.s.t"]
    assert [asked["operation"] for asked in house.asked] == ["discover"]
    assert house.states() == {"t": ("ACTIVE", None)}


def test_another_lake_takes_the_tables_along(house):
    house.register(discover=True)
    house.found = {"namespaces": ["s"], "tables": [table("other")], "errors": []}
    house.register(uri="/b", replace=True, discover=True)
    assert set(house.states()) == {"other"}
    assert house.asked[-1]["known"] == {}  # snapshots of the lake before say nothing of this one


def test_a_table_that_cannot_be_read_has_a_row_and_heals(house):
    house.found["errors"] = [{"schema": "s", "name": "bad", "reason": "its log is damaged"}]
    (good, bad) = house.register(discover=True)["tables"]
    assert good["table"] == "c.s.t" and bad == {"table": "c.s.bad", "error": "its log is damaged"}
    assert house.states() == {"t": ("ACTIVE", None), "bad": ("FAILING", "its log is damaged")}
    house.found = {"namespaces": ["s"], "tables": [table("t"), table("bad")], "errors": []}
    house.lakes.discover("c", None, False, lambda: False)
    assert house.states() == {"t": ("ACTIVE", None), "bad": ("ACTIVE", None)}


def test_a_namespace_that_cannot_be_listed_keeps_its_tables(house):
    house.register(discover=True)
    house.found = {"namespaces": ["s", "r"], "tables": [table("x", "r")],
                   "errors": [{"schema": "s", "name": None, "reason": "denied"}]}  # fmt: skip
    found = house.lakes.discover("c", None, False, lambda: False)
    assert {"table": "c.s", "error": "denied"} in found
    assert set(house.states()) == {"t", "x"}


def test_one_table_in_trouble_is_noted_of_the_table_alone(house):
    house.register(discover=True)
    house.trouble = UpstreamError("damaged")
    with pytest.raises(UpstreamError):
        house.lakes.discover("c", "s.t", False, lambda: False)
    assert house.states() == {"t": ("FAILING", "damaged")} and house.connectors() == [("delta", "/a", None)]
    with pytest.raises(UpstreamError):
        house.lakes.discover("c", None, False, lambda: False)
    assert house.connectors() == [("delta", "/a", "damaged")]


def test_findings_of_the_lake_before_are_not_stored(house):
    house.register(discover=True)
    config = house.lakes.config("c")
    house.register(uri="/b", replace=True)
    with pytest.raises(Conflict, match="another lake meanwhile"):
        house.lakes.store("c", config, {"tables": [table("late")], "errors": []}, whole=True)
    house.lakes.drop("c")
    with pytest.raises(NotFound):
        house.lakes.store("c", config, {"tables": [table("late")], "errors": []}, whole=True)


def test_an_address_with_a_password_reaches_workers_whole_and_nobody_else(house):
    house.register(uri="postgresql://me:hush@db/x", format="iceberg")
    assert house.lakes.config("c")["uri"] == "postgresql://me:hush@db/x"
    ((_, shown, _),) = house.connectors()
    assert "hush" not in shown
    assert house.lakes.config("c")["options"] == {}


def test_looks_are_in_the_job_list_with_their_progress(house):
    seen: list[Any] = []

    def report(lease: dict[str, Any]) -> None:
        house.work.renew(lease["job_id"], lease["lease_token"], None, "40 directories, 3 tables found")
        seen.extend(house.tasks.live_jobs())

    house.before = report
    house.register()
    (job,) = seen
    assert (job["table_catalog"], job["mode"], job["state"]) == ("c", "LOOK", "RUNNING")
    assert job["message"] == "40 directories, 3 tables found"
    assert house.tasks.live_jobs() == []


def test_tables_of_one_request_are_looked_at_together(house):
    house.found["tables"] = [table("t"), table("u"), table("gone")]
    house.register(discover=True)
    house.asked.clear()
    house.found["tables"] = [table("t", snapshots=(1, 2)), table("u")]
    house.found["errors"] = [{"schema": "s", "name": "gone", "reason": "no table"}]
    house.lakes.refresh(house.catalog.tables() * 2, lambda: False)
    (asked,) = house.asked
    assert sorted(asked["only"]) == [["s", "gone"], ["s", "t"], ["s", "u"]]
    assert asked["known"] == {"s\0gone": [1], "s\0t": [1], "s\0u": [1]}
    assert house.catalog.get("c.s.t").current_snapshot_id == 2
    assert {name: error for name, (_, error) in house.states().items()} == {"gone": "no table", "t": None, "u": None}

    house.trouble = UpstreamError("the lake is away")
    house.lakes.refresh(house.catalog.tables(), lambda: False)
    assert {error for _, error in house.states().values()} == {"the lake is away"}


def test_a_capture_waits_for_what_a_look_found_and_not_for_when_it_was(house):
    house.register(discover=True)
    ((checked,),) = house.database.rows("SELECT checked_at FROM tables")
    house.found["tables"] = [table("t") | {"snapshots": []}]
    house.lakes.discover("c", None, False, lambda: False)
    busy = threading.Event()
    writing = house.database.submit(lambda _: busy.wait(60))
    house.lakes.refresh(house.catalog.tables(), lambda: False)
    assert not writing.done()
    busy.set()
    house.database.write(lambda _: None)
    assert house.database.rows("SELECT checked_at > ? FROM tables", checked) == [(True,)]

    house.found["tables"] = [table("t", snapshots=(1, 2))]
    house.lakes.refresh(house.catalog.tables(), lambda: False)
    assert house.catalog.get("c.s.t").current_snapshot_id == 2


@pytest.mark.parametrize("change", [{"location": "/moved"}, {"properties": {"p": "1"}}, {"current_snapshot_id": 0}])
def test_a_change_without_a_new_snapshot_is_stored_before_a_capture(house, change):
    house.register(discover=True)
    found = table("t", snapshots=(0, 1)) | {"snapshots": []}
    house.found["tables"] = [found]
    house.lakes.discover("c", None, False, lambda: False)
    house.found["tables"] = [found | change]
    house.lakes.refresh(house.catalog.tables(), lambda: False)
    entry = house.catalog.get("c.s.t")
    ((properties,),) = house.database.rows("SELECT properties FROM tables")
    is_stored = {"location": entry.location, "current_snapshot_id": entry.current_snapshot_id,
                 "properties": json.loads(properties)}  # fmt: skip
    assert change.items() <= is_stored.items()
