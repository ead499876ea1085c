"""Registration, discovery and refresh of lakes, with a thread of the test as the worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flight_server.core.auth.vault import Vault
from flight_server.core.control.capture_commit import CaptureCommit
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes
from store.catalog.catalog import Catalog
from store.model.errors import Cancelled, Conflict, NotFound, UpstreamError, to_json
from store.queue.job_store import JobStore
from store.stats_store import DuckDBStatsStore
from tests.store.empty_store import empty_database


def table(name: str, schema: str = "s", table_id: str | None = None, snapshots: tuple[int, ...] = (1,)) -> Any:
    history = [
        {
            "snapshot_id": i,
            "ordinal": i,
            "schema_hash": "h",
            "parent_snapshot_id": None,
            "sequence_number": None,
            "committed_at": None,
            "operation": None,
        }
        for i in snapshots
    ]
    return {
        "schema": schema,
        "name": name,
        "table_id": table_id or name,
        "location": f"/{name}",
        "schema_hash": "h",
        "schemas": {"h": [["a", "INT", True, None]]},
        "snapshots": history,
        "live_snapshot_ids": list(snapshots),
        "current_snapshot_id": max(snapshots),
        "partition_keys": [],
        "properties": {},
        "constraints": [],
    }


class LakesEnv:
    def __init__(self) -> None:
        self.database = empty_database()
        self.catalog = Catalog(self.database)
        self.vault = Vault(None)
        jobs = JobStore(self.database, self.catalog.by_key)
        commit = CaptureCommit(jobs, DuckDBStatsStore(self.database, self.catalog, queue=jobs), self.catalog)
        self.queue = JobQueue(jobs, commit)
        self.lakes = Lakes(self.database, self.catalog, self.vault, self.queue)
        self.result: dict[str, Any] = {"namespaces": ["s"], "tables": [table("t")], "errors": []}
        self.error: Exception | None = None
        self.payloads: list[Any] = []
        self.on_lease: Callable[[dict[str, Any]], None] = lambda lease: None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve_leases, daemon=True)
        self._thread.start()

    def _serve_leases(self) -> None:
        while not self._stop.is_set():
            lease = next(iter(self.queue.lease("w", ["control"], 0.05, [], lambda: False)), None)
            if lease is not None:
                self.payloads.append(lease["payload"])
                self.on_lease(lease)
                body = {"error": to_json(self.error)} if self.error else {"result": self.result}
                self.queue.finish([{name: lease[name] for name in ("job_id", "lease_token")} | body])

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

    def errors(self) -> dict[str, str | None]:
        return dict(self.database.rows("SELECT table_name, last_error FROM tables WHERE NOT dropped"))


@pytest.fixture
def env() -> Iterator[LakesEnv]:
    env = LakesEnv()
    yield env
    env.close()


@pytest.mark.parametrize("change", [{"uri": "/b"}, {"format": "parquet"}])
def test_registering_a_taken_catalog_conflicts_unless_replace_is_set(env, change):
    env.register()
    env.register(options={"timeout": "5"})  # other options are still the same lake
    with pytest.raises(Conflict, match='"c" is connected to the delta lake /a'):
        env.register(**change)
    assert env.connectors() == [("delta", "/a", None)]
    env.register(**change, replace=True)
    assert env.connectors() == [(change.get("format", "delta"), change.get("uri", "/a"), None)]


def test_register_conflict_submits_no_task(env):
    env.register()
    with pytest.raises(Conflict):
        env.register(uri="/b")
    assert len(env.payloads) == 1


def test_failed_validation_or_discovery_registers_nothing(env):
    env.error = UpstreamError("no such bucket")
    for discover in (False, True):
        with pytest.raises(UpstreamError, match="no such bucket"):
            env.register(discover=discover)
    assert env.connectors() == [] and env.errors() == {}


def test_cancelled_register_leaves_the_catalog_unchanged(env):
    env.register(discover=True)
    started, noticed = threading.Event(), threading.Event()
    env.on_lease = lambda _: (started.set(), noticed.wait(60))[0]  # the inspection outlasts its caller

    def is_cancelled() -> bool:
        if started.is_set():
            noticed.set()
        return started.is_set()

    with pytest.raises(Cancelled):
        env.lakes.register(
            {"catalog": "c", "format": "delta", "uri": "/b", "options": {}}, is_cancelled, replace=True, discover=True
        )
    assert env.connectors() == [("delta", "/a", None)] and env.errors() == {"t": None}


def test_register_with_discover_submits_one_discover_task(env):
    result = env.register(discover=True)
    assert [found["table"] for found in result["tables"]] == ["c.s.t"]
    assert [payload["operation"] for payload in env.payloads] == ["discover"]
    assert env.errors() == {"t": None}


def test_replacing_the_lake_drops_its_tables(env):
    env.register(discover=True)
    env.result = {"namespaces": ["s"], "tables": [table("other")], "errors": []}
    env.register(uri="/b", replace=True, discover=True)
    assert set(env.errors()) == {"other"}
    assert env.payloads[-1]["known"] == {}  # snapshots of the previous lake do not apply
    env.register(uri="/c", replace=True)
    assert env.errors() == {}, "before the first inspection, too"


def test_unreadable_table_is_failing_until_a_discovery_succeeds(env):
    env.result["errors"] = [{"schema": "s", "name": "bad", "reason": "its log is damaged"}]
    (good, bad) = env.register(discover=True)["tables"]
    assert good["table"] == "c.s.t" and bad == {"table": "c.s.bad", "error": "its log is damaged"}
    assert env.errors() == {"t": None, "bad": "its log is damaged"}
    env.result = {"namespaces": ["s"], "tables": [table("t"), table("bad")], "errors": []}
    env.lakes.discover("c", None, False, lambda: False)
    assert env.errors() == {"t": None, "bad": None}


def test_namespace_that_cannot_be_listed_keeps_its_tables(env):
    env.register(discover=True)
    env.result = {
        "namespaces": ["s", "r"],
        "tables": [table("x", "r")],
        "errors": [{"schema": "s", "name": None, "reason": "denied"}],
    }
    found = env.lakes.discover("c", None, False, lambda: False)
    assert {"table": "c.s", "error": "denied"} in found
    assert set(env.errors()) == {"t", "x"}


def test_error_of_a_single_table_discovery_is_stored_on_the_table_only(env):
    env.register(discover=True)
    env.error = UpstreamError("damaged")
    with pytest.raises(UpstreamError):
        env.lakes.discover("c", "s.t", False, lambda: False)
    assert env.errors() == {"t": "damaged"} and env.connectors() == [("delta", "/a", None)]
    with pytest.raises(UpstreamError):
        env.lakes.discover("c", None, False, lambda: False)
    assert env.connectors() == [("delta", "/a", "damaged")]


def test_discovery_of_a_replaced_or_dropped_lake_is_not_stored(env):
    env.register(discover=True)
    config, _ = env.lakes.look_job("c", [["s", "t"]])
    env.register(uri="/b", replace=True)
    with pytest.raises(Conflict, match="another lake meanwhile"):
        env.lakes.findings.store("c", config, {"tables": [table("late")], "errors": []}, whole=True)
    env.lakes.drop("c")
    with pytest.raises(NotFound):
        env.lakes.findings.store("c", config, {"tables": [table("late")], "errors": []}, whole=True)


def test_uri_password_is_hidden_in_the_catalog_and_kept_in_the_config(env):
    env.register(uri="postgresql://me:hush@db/x", format="iceberg")
    assert env.lakes.config("c")["uri"] == "postgresql://me:hush@db/x"
    ((_, shown, _),) = env.connectors()
    assert "hush" not in shown
    assert env.lakes.config("c")["options"] == {}


def test_secrets_of_a_catalog_that_is_registered_while_it_is_dropped_are_kept(env, monkeypatch):
    secret = {"client.secret": "hush"}
    env.register(options=secret)
    write, writes = env.database.write, []

    def write_and_register(function: Any) -> Any:
        result = write(function)
        if not writes:  # the connector is dropped, its secrets are not
            writes.append(function)
            env.register(options=secret)
        return result

    monkeypatch.setattr(env.database, "write", write_and_register)
    env.lakes.drop("c")
    assert env.lakes.config("c")["options"] == secret
    env.lakes.drop("c")
    assert env.vault.get("c", {}) == {}


def test_running_inspections_are_listed_as_live_jobs_with_progress(env):
    seen: list[Any] = []

    def report(lease: dict[str, Any]) -> None:
        env.queue.renew(lease["job_id"], lease["lease_token"], None, "40 directories, 3 tables found")
        seen.extend(env.queue.rows())

    env.on_lease = report
    env.register()
    (job,) = seen
    assert (job["table_catalog"], job["mode"], job["state"]) == ("c", "LOOK", "RUNNING")
    assert job["message"] == "40 directories, 3 tables found"
    assert env.queue.rows() == []


def test_refresh_inspects_all_tables_of_a_lake_in_one_task(env):
    env.result["tables"] = [table("t"), table("u"), table("gone")]
    env.register(discover=True)
    env.payloads.clear()
    env.result["tables"] = [table("t", snapshots=(1, 2)), table("u")]
    env.result["errors"] = [{"schema": "s", "name": "gone", "reason": "no table"}]
    with env.lakes.refreshed(env.catalog.tables() * 2, lambda: False):
        pass
    (payload,) = env.payloads
    assert sorted(payload["only"]) == [["s", "gone"], ["s", "t"], ["s", "u"]]
    assert payload["known"] == {"s\0gone": [1], "s\0t": [1], "s\0u": [1]}
    assert env.catalog.get("c.s.t").current_snapshot_id == 2
    assert env.errors() == {"gone": "no table", "t": None, "u": None}

    env.error = UpstreamError("the lake is away")
    with env.lakes.refreshed(env.catalog.tables(), lambda: False):
        pass
    assert set(env.errors().values()) == {"the lake is away"}


def test_refresh_waits_for_the_write_of_changes_but_not_of_checked_at(env):
    env.register(discover=True)
    env.result["tables"] = [table("t") | {"snapshots": []}]
    env.lakes.discover("c", None, False, lambda: False)
    ((checked,),) = env.database.rows("SELECT checked_at FROM tables")
    busy = threading.Event()
    with env.lakes.refreshed(env.catalog.tables(), lambda: False):
        env.database.write(lambda _: None)
        assert env.database.rows("SELECT checked_at > ? FROM tables", checked) == [(False,)]
        writing = env.database.submit(lambda _: busy.wait(60))
    assert not writing.done()
    busy.set()
    env.database.write(lambda _: None)
    assert env.database.rows("SELECT checked_at > ? FROM tables", checked) == [(True,)]

    env.result["tables"] = [table("t", snapshots=(1, 2))]
    with env.lakes.refreshed(env.catalog.tables(), lambda: False):
        pass
    assert env.catalog.get("c.s.t").current_snapshot_id == 2


@pytest.mark.parametrize("change", [{"location": "/moved"}, {"properties": {"p": "1"}}, {"current_snapshot_id": 0}])
def test_refresh_stores_changes_that_come_without_a_new_snapshot(env, change):
    env.register(discover=True)
    found = table("t", snapshots=(0, 1)) | {"snapshots": []}
    env.result["tables"] = [found]
    env.lakes.discover("c", None, False, lambda: False)
    env.result["tables"] = [found | change]
    with env.lakes.refreshed(env.catalog.tables(), lambda: False):
        pass
    entry = env.catalog.get("c.s.t")
    ((properties,),) = env.database.rows("SELECT properties FROM tables")
    is_stored = {
        "location": entry.location,
        "current_snapshot_id": entry.current_snapshot_id,
        "properties": json.loads(properties),
    }
    assert change.items() <= is_stored.items()


def test_findings_give_way_to_those_of_an_inspection_that_began_later(env):
    v1, v2, both = (
        {"tables": tables, "errors": [], "namespaces": ["s"]}
        for tables in ([table("t")], [table("t", snapshots=(1, 2))], [table("t", snapshots=(1, 2)), table("new")])
    )
    env.register(discover=True)
    older, newer = (env.lakes.look_job("c", [["s", "t"]])[0] for _ in "ab")
    env.lakes.findings.store("c", newer, v2, whole=False)  # a commit that the older one did not see
    (told,) = env.lakes.findings.store("c", older, v1, whole=True)
    assert told["current_snapshot_id"] == env.catalog.get("c.s.t").current_snapshot_id == 2
    older, newer = (env.lakes.look_job("c", [["s", "t"]])[0] for _ in "ab")
    env.lakes.findings.store("c", older, v2, whole=True)
    env.lakes.findings.store("c", newer, v1, whole=True)  # a rollback in the lake
    assert env.catalog.get("c.s.t").current_snapshot_id == 1
    env.lakes.findings.store("c", older, both, whole=True)  # an older one of the whole lake finds no tables again
    assert env.catalog.find(("c", "s", "new")) is None


def test_a_table_that_was_found_meanwhile_is_not_dropped_by_an_older_inspection(env):
    env.register(discover=True)
    older, newer = (env.lakes.look_job("c", [["s", "t"]])[0] for _ in "ab")
    env.lakes.findings.store("c", newer, {"tables": [table("new")], "errors": []}, whole=False)
    env.lakes.findings.store("c", older, env.result, whole=True)
    assert set(env.errors()) == {"new", "t"}
    env.lakes.findings.store("c", env.lakes.look_job("c", [["s", "t"]])[0], env.result, whole=True)
    assert set(env.errors()) == {"t"}


def test_two_discoveries_that_overtake_each_other_leave_the_newer_answer(env):
    env.register(discover=True)
    first = dict(env.result)

    def overtake(lease: dict[str, Any]) -> None:
        env.on_lease = lambda lease: None
        env.lakes.findings.store(
            "c",
            env.lakes.look_job("c", [["s", "t"]])[0],
            {**first, "tables": [table("t", snapshots=(1, 2))]},
            whole=True,
        )

    env.on_lease = overtake
    (told,) = env.lakes.discover("c", None, False, lambda: False)
    assert told["current_snapshot_id"] == env.catalog.get("c.s.t").current_snapshot_id == 2
