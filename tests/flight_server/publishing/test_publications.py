"""Publications: their records, and their renewal after captures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from capture.homes import homes_of
from flight_server.publishing.publications import INTERVAL_SECONDS, SETTLE_SECONDS, Publishing
from store.catalog.catalog import Catalog
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, StatflightError, UpstreamError
from store.queue.jobs import Job
from store.stats_store import DuckDBStatsStore
from tests.store.empty_store import empty_database


class PublishingEnv:
    """Publishing with an immediate worker and a clock set by hand."""

    def __init__(self, homes: str = "trino"):
        self.database = empty_database()
        self.catalog = Catalog(self.database)
        DuckDBStatsStore(self.database, self.catalog)
        self.now = 1000.0
        self.payloads: list[dict[str, Any]] = []
        self.result: dict[str, Any] | StatflightError = {"location": "there", "columns": ["id"], "detail": ""}
        options = {"publish": homes, "publish.hive.uri": "thrift://h:1", "publish.hive.database": "d"}
        self.lakes = SimpleNamespace(config=lambda catalog: {"catalog": catalog, "options": options})
        queue = SimpleNamespace(
            closing=False, submit=self._submit, wait=lambda job, *_: job.result, abandon=lambda _: None
        )
        self.publishing = Publishing(self.database, self.catalog, self.lakes, queue, clock=lambda: self.now)

        def register(connection: Any) -> TableEntry:
            made = self.catalog.register(connection, ("lake", "s", "t"), None, "delta")
            return self.catalog.change(connection, {made.table_key: {"current_snapshot_id": 7}})[0]

        self.table = self.database.write(register)

    def _submit(self, jobs: list[Job]) -> None:
        (job,) = jobs
        self.payloads.append(job.payload)
        if isinstance(self.result, StatflightError):
            raise self.result
        defaults = {"snapshot_id": job.payload["snapshot_id"], "to": job.payload["to"], "state": "CURRENT"}
        job.result = {"result": defaults | self.result}

    def rows(self) -> list[tuple[str, int, str, str | None]]:
        found = self.catalog.publications.of(self.table)
        return [(row["home"], row["snapshot_id"], row["state"], row["detail"]) for row in found]

    def capture_and_settle(self) -> int:
        """Notes a capture, passes the settle time and republishes; returns the number of published tables."""
        self.publishing.captured(self.catalog.by_key(self.table.table_key))
        self.now += SETTLE_SECONDS
        return self.publishing.republish()

    def set_snapshot(self, snapshot_id: int) -> None:
        changes = {self.table.table_key: {"current_snapshot_id": snapshot_id}}
        self.database.write(lambda c: self.catalog.change(c, changes))


@pytest.fixture
def env():
    found = PublishingEnv()
    yield found
    found.database.close()


def test_publish_records_the_publication_and_its_metrics(env):
    result = env.publishing.publish(env.table, "trino", 7)
    assert result == {
        "table": "lake.s.t",
        "snapshot_id": 7,
        "to": "trino",
        "state": "CURRENT",
        "location": "there",
        "columns": ["id"],
        "detail": "",
        "removed_orphans": [],
    }
    assert env.rows() == [("trino", 7, "CURRENT", None)]
    assert env.publishing.outcomes == {("trino", "CURRENT"): 1} and env.publishing.seconds["trino"][0] == 1


def test_publish_options_extend_those_of_the_connector(env):
    env.publishing.publish(env.table, "hive", 7, options={"database": "other"})
    env.publishing.publish(env.table, "trino", 7)
    assert [payload["options"] for payload in env.payloads] == [{"uri": "thrift://h:1", "database": "other"}, {}]


def test_dry_run_and_rejected_publish_record_nothing(env):
    env.result = {"state": "DRY_RUN", "location": "there", "columns": [], "detail": ""}
    env.publishing.publish(env.table, "trino", 7, dry_run=True)
    env.result = InvalidArgument("no", code="NOT_PUBLISHABLE")
    with pytest.raises(InvalidArgument):
        env.publishing.publish(env.table, "trino", 7)
    assert env.rows() == []


def test_withdraw_removes_the_publication(env):
    env.publishing.publish(env.table, "trino", 7)
    env.publishing.publish(env.table, "hive", 7)
    env.set_snapshot(8)
    env.result = {"withdrawn": True}
    assert env.publishing.withdraw(env.table, "hive", options={"database": "other"})
    assert env.rows() == [("trino", 7, "CURRENT", None)]
    payload = env.payloads[-1]
    assert (payload["operation"], payload["to"]) == ("withdraw", "hive")
    assert payload["snapshot_id"] == 7  # the published one
    assert payload["options"] == {"uri": "thrift://h:1", "database": "other"}


def test_withdraw_without_a_record_uses_the_current_snapshot(env):
    env.result = {"withdrawn": False}
    assert not env.publishing.withdraw(env.catalog.by_key(env.table.table_key), "trino")
    assert env.payloads[-1]["snapshot_id"] == 7


def test_failed_withdraw_keeps_the_publication(env):
    env.publishing.publish(env.table, "trino", 7)
    env.result = UpstreamError("the catalog is away")
    with pytest.raises(UpstreamError):
        env.publishing.withdraw(env.table, "trino")
    assert env.rows() == [("trino", 7, "CURRENT", None)]


def test_failed_publish_is_recorded_with_its_reason(env):
    env.result = UpstreamError("the catalog is away")
    with pytest.raises(UpstreamError):
        env.publishing.publish(env.table, "trino", 7)
    assert env.rows() == [("trino", 7, "FAILED", "the catalog is away")]


def test_republish_waits_for_captures_to_settle_and_runs_once(env):
    env.publishing.captured(env.table)
    assert env.publishing.republish() == 0  # not settled yet
    env.now += SETTLE_SECONDS
    assert env.publishing.republish() == 1 and env.publishing.republish() == 0
    assert env.rows() == [("trino", 7, "CURRENT", None)]
    assert [(p["to"], p["snapshot_id"], p["dry_run"], p["allow_inherited"]) for p in env.payloads] == [
        ("trino", 7, False, False)
    ]


def test_table_is_republished_at_most_once_per_interval(env):
    assert env.capture_and_settle() == 1
    env.set_snapshot(8)
    assert env.capture_and_settle() == 0
    env.now += INTERVAL_SECONDS
    assert env.publishing.republish() == 1 and env.rows() == [("trino", 8, "CURRENT", None)]


def test_snapshot_made_by_a_publication_is_not_republished(env):
    env.result = {"location": "there", "columns": ["id"], "detail": "", "made_snapshot_id": 8}
    assert env.capture_and_settle() == 1
    env.set_snapshot(8)
    env.now += INTERVAL_SECONDS
    assert env.capture_and_settle() == 0
    assert env.publishing.snapshot_of(env.table, 8) == 7 and env.publishing.snapshot_of(env.table, 9) == 9


def test_failed_republish_is_recorded_with_its_reason(env):
    env.result = InvalidArgument("the home may not be written", code="READ_ONLY")
    assert env.capture_and_settle() == 1
    assert env.rows() == [("trino", 7, "FAILED", "the home may not be written")]


def test_failed_home_is_retried_with_growing_delays(env):
    env.result = UpstreamError("the catalog is away")
    assert env.capture_and_settle() == 1
    delays = []
    for _ in range(8):
        start = env.now
        while not env.publishing.republish():
            env.now += 5
        delays.append(env.now - start)
    assert delays[:3] == [25, 45, 85] and max(delays) <= 605 and delays == sorted(delays)  # plus the settle time
    env.result = {"location": "there", "columns": ["id"], "detail": ""}
    env.now += 1000
    assert env.publishing.republish() == 1 and env.rows() == [("trino", 7, "CURRENT", None)]
    env.now += 1000
    assert env.publishing.republish() == 0


@pytest.mark.parametrize("code", ["NOT_PUBLISHABLE", "STALE"])
def test_unpublishable_statistics_record_no_failure(env, code):
    env.result = InvalidArgument("not now", code=code)
    env.capture_and_settle()
    assert env.rows() == []


def test_capture_without_the_publish_option_republishes_nothing():
    env = PublishingEnv(homes="")
    assert env.capture_and_settle() == 0 and env.payloads == []
    env.database.close()


def test_publish_option_is_parsed_into_known_homes():
    assert homes_of({"publish": "trino, iceberg,trino"}) == ("trino", "iceberg") and homes_of({}) == ()
    with pytest.raises(InvalidArgument, match="tirno"):
        homes_of({"publish": "tirno"})
