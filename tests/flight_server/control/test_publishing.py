"""Publications: what is recorded of them, and how captures renew them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capture.publishers import homes_of
from flight_server.control.publishing import INTERVAL_SECONDS, SETTLE_SECONDS, Publishing
from store.catalog_store import Catalog, TableEntry
from store.database import Database
from store.errors import InvalidArgument, StatflightError, UpstreamError
from tests.store.empty_store import empty_store


class House:
    """A server's parts as far as publishing needs them: a worker that answers at once, a clock that is set."""

    def __init__(self, directory: Path, homes: str = "trino"):
        self.database = Database(empty_store(directory / "stats.duckdb"))
        self.catalog = Catalog(self.database)
        self.now = 1000.0
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | StatflightError = {"location": "there", "columns": ["id"], "detail": ""}
        options = {"publish": homes, "publish.hive.uri": "thrift://h:1", "publish.hive.database": "d"}
        self.lakes = SimpleNamespace(config=lambda catalog: {"catalog": catalog, "options": options})
        self.tasks = SimpleNamespace(submit=self._submit, wait=lambda task, *_: task, abandon=lambda _: None)
        self.publishing = Publishing(self.database, self.catalog, self.lakes, self.tasks, clock=lambda: self.now)

        def register(connection: Any) -> TableEntry:
            made = self.catalog.register(connection, ("lake", "s", "t"), None, "delta")
            return self.catalog.change(connection, made, current_snapshot_id=7)

        self.table = self.database.write(register)

    def _submit(self, task: Any) -> dict[str, Any]:
        self.asked.append(task.payload)
        if isinstance(self.answer, StatflightError):
            raise self.answer
        told = {"snapshot_id": task.payload["snapshot_id"], "to": task.payload["to"], "state": "CURRENT"}
        return {"result": told | self.answer}

    def rows(self) -> list[tuple[str, int, str, str | None]]:
        found = self.catalog.publications(self.table)
        return [(row["home"], row["snapshot_id"], row["state"], row["detail"]) for row in found]

    def captured(self) -> int:
        """Captures something, and lets it settle."""
        self.publishing.captured(self.catalog.by_key(self.table.table_key))
        self.now += SETTLE_SECONDS
        return self.publishing.republish()

    def moved_to(self, snapshot_id: int) -> None:
        self.database.write(lambda c: self.catalog.change(c, self.table, current_snapshot_id=snapshot_id))


@pytest.fixture
def house(tmp_path):
    found = House(tmp_path)
    yield found
    found.database.close()


def test_a_publication_is_recorded(house):
    told = house.publishing.publish(house.table, "trino", 7)
    assert told == {"table": "lake.s.t", "snapshot_id": 7, "to": "trino", "state": "CURRENT", "location": "there",
                    "columns": ["id"], "detail": ""}  # fmt: skip
    assert house.rows() == [("trino", 7, "CURRENT", None)]
    assert house.publishing.outcomes == {("trino", "CURRENT"): 1} and house.publishing.seconds["trino"][0] == 1


def test_the_connector_may_hold_options_of_a_home(house):
    house.publishing.publish(house.table, "hive", 7, options={"database": "other"})
    house.publishing.publish(house.table, "trino", 7)
    assert [payload["options"] for payload in house.asked] == [{"uri": "thrift://h:1", "database": "other"}, {}]


def test_a_dry_run_and_a_refusal_leave_no_row(house):
    house.answer = {"state": "DRY_RUN", "location": "there", "columns": [], "detail": ""}
    house.publishing.publish(house.table, "trino", 7, dry_run=True)
    house.answer = InvalidArgument("no", code="NOT_PUBLISHABLE")
    with pytest.raises(InvalidArgument):
        house.publishing.publish(house.table, "trino", 7)
    assert house.rows() == []


def test_a_withdrawal_forgets_the_publication(house):
    house.publishing.publish(house.table, "trino", 7)
    house.publishing.publish(house.table, "hive", 7)
    house.moved_to(8)
    house.answer = {"withdrawn": True}
    assert house.publishing.withdraw(house.table, "hive", options={"database": "other"})
    assert house.rows() == [("trino", 7, "CURRENT", None)]
    asked = house.asked[-1]
    assert (asked["operation"], asked["to"], asked["snapshot_id"]) == (
        "withdraw",
        "hive",
        7,
    )  # that it was published for
    assert asked["options"] == {"uri": "thrift://h:1", "database": "other"}


def test_a_withdrawal_of_what_nobody_recorded(house):
    house.answer = {"withdrawn": False}
    assert not house.publishing.withdraw(house.catalog.by_key(house.table.table_key), "trino")
    assert house.asked[-1]["snapshot_id"] == 7


def test_a_withdrawal_that_fails_keeps_the_publication(house):
    house.publishing.publish(house.table, "trino", 7)
    house.answer = UpstreamError("the catalog is away")
    with pytest.raises(UpstreamError):
        house.publishing.withdraw(house.table, "trino")
    assert house.rows() == [("trino", 7, "CURRENT", None)]


def test_a_failure_is_recorded_with_its_reason(house):
    house.answer = UpstreamError("the catalog is away")
    with pytest.raises(UpstreamError):
        house.publishing.publish(house.table, "trino", 7)
    assert house.rows() == [("trino", 7, "FAILED", "the catalog is away")]


def test_captures_are_waited_for_and_published_once(house):
    house.publishing.captured(house.table)
    assert house.publishing.republish() == 0  # more may come
    house.now += SETTLE_SECONDS
    assert house.publishing.republish() == 1 and house.publishing.republish() == 0
    assert house.rows() == [("trino", 7, "CURRENT", None)]
    assert [(p["to"], p["snapshot_id"], p["dry_run"], p["allow_inherited"]) for p in house.asked] == [
        ("trino", 7, False, False)
    ]


def test_a_table_is_published_at_most_once_in_a_while(house):
    assert house.captured() == 1
    house.moved_to(8)
    assert house.captured() == 0
    house.now += INTERVAL_SECONDS
    assert house.publishing.republish() == 1 and house.rows() == [("trino", 8, "CURRENT", None)]


def test_a_snapshot_that_the_publication_made_is_not_published_again(house):
    house.answer = {"location": "there", "columns": ["id"], "detail": "", "made_snapshot_id": 8}
    assert house.captured() == 1
    house.moved_to(8)
    house.now += INTERVAL_SECONDS
    assert house.captured() == 0
    assert house.publishing.snapshot_of(house.table, 8) == 7 and house.publishing.snapshot_of(house.table, 9) == 9


def test_what_could_not_be_published_in_the_background_says_why(house):
    house.answer = InvalidArgument("the home may not be written", code="READ_ONLY")
    assert house.captured() == 1
    assert house.rows() == [("trino", 7, "FAILED", "the home may not be written")]


def test_a_home_that_failed_is_tried_again_later_and_later(house):
    house.answer = UpstreamError("the catalog is away")
    assert house.captured() == 1
    waited = []
    for _ in range(8):
        begun = house.now
        while not house.publishing.republish():
            house.now += 5
        waited.append(house.now - begun)
    assert waited[:3] == [25, 45, 85] and max(waited) <= 605 and waited == sorted(waited)  # and a moment to settle
    house.answer = {"location": "there", "columns": ["id"], "detail": ""}
    house.now += 1000
    assert house.publishing.republish() == 1 and house.rows() == [("trino", 7, "CURRENT", None)]
    house.now += 1000
    assert house.publishing.republish() == 0


@pytest.mark.parametrize("code", ["NOT_PUBLISHABLE", "STALE"])
def test_nothing_to_publish_yet_is_not_a_failure(house, code):
    house.answer = InvalidArgument("not now", code=code)
    house.captured()
    assert house.rows() == []


def test_without_the_option_nothing_happens(tmp_path):
    house = House(tmp_path, homes="")
    assert house.captured() == 0 and house.asked == []
    house.database.close()


def test_homes_of_the_option():
    assert homes_of({"publish": "trino, iceberg,trino"}) == ("trino", "iceberg") and homes_of({}) == ()
    with pytest.raises(InvalidArgument, match="tirno"):
        homes_of({"publish": "tirno"})
