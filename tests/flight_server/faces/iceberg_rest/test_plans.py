"""Plans in pages: of each file that a condition needs there is one task, whatever is captured between two pages."""

from __future__ import annotations

from typing import Any

import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.faces.iceberg_rest import plans as module
from flight_server.faces.iceberg_rest.plans import Plans
from flight_server.faces.iceberg_rest.tables import Served
from flight_server.planning import slices
from store.model.errors import NotFound
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
FILES = 40


def listed(numbers: range) -> list[dict[str, Any]]:
    each = KEY | {"completeness": "COMPLETE", "file_content": "DATA", "row_count": 10, "size_bytes": 100}
    return [each | {"file_path": f"f{i:02}", "delete_files": []} for i in numbers]


def bounds(numbers: range) -> list[dict[str, Any]]:
    """File i has ids from 10 i to 10 i + 9."""
    each = KEY | {"column_id": 1, "column_name": "id", "logical_type": "INT", "completeness": "COMPLETE"}
    counts = {"row_count": 10, "null_count": 0}
    return [each | counts | {"file_path": f"f{i:02}", "min": str(10 * i), "max": str(10 * i + 9)} for i in numbers]


class _Tables:
    """Tables whose metadata is that of a made-up one without partitions."""

    def load(self, table):
        return Served("", "", {0: []}, is_made_up=True)

    def captured(self, table, snapshot):
        return table


@pytest.fixture(params=[1000, 7])
def app(request, monkeypatch):
    monkeypatch.setattr(slices, "SLICE", request.param)
    monkeypatch.setattr(module, "SLICE", request.param)
    monkeypatch.setattr(module, "PAGE", 3)
    with app_in() as app:
        put(app, listed(range(FILES)), "stats.files")
        put(app, bounds(range(FILES)), "stats.file_columns")
        yield app


class Scan:
    def __init__(self, app, filter: Any = None, internal: bool = False):
        self.plans, self.table = Plans(app, _Tables()), app.catalog.get("lake.s.t")
        self.first = self.plans.plan(ANONYMOUS, self.table, {"filter": filter}, internal=internal)

    def page(self, token: Any) -> dict[str, Any]:
        return self.plans.page(ANONYMOUS, self.table, token)

    def paths(self, *answers: dict[str, Any]) -> list[str]:
        return [task["data-file"]["file-path"] for answer in answers for task in answer.get("file-scan-tasks", ())]


def at_least(id: int) -> dict[str, Any]:
    return {"type": "gt-eq", "term": "id", "value": id}


@pytest.mark.parametrize("internal", [True, False])
@pytest.mark.parametrize("least", [0, 1, 37, 38, 39, 40])
def test_each_file_has_one_task(app, least, internal):
    scan = Scan(app, at_least(10 * least), internal)
    pages = [scan.first, *map(scan.page, scan.first["plan-tasks"])]
    assert sorted(scan.paths(*pages)) == [f"f{i:02}" for i in range(least, FILES)]
    assert all(len(scan.paths(page)) <= 3 for page in pages)
    assert all(scan.paths(page) for page in pages) or least == FILES


def test_bounds_that_come_between_two_pages_hide_no_file(app):
    """At first the bounds of all files but the last ten are unknown."""
    with app_in() as other:
        put(other, listed(range(FILES)), "stats.files")
        put(other, bounds(range(30, FILES)), "stats.file_columns")
        scan = Scan(other, at_least(155))
        put(other, bounds(range(FILES)), "stats.file_columns")
        scan.plans._rows.clear()
        found = set(scan.paths(scan.first, *map(scan.page, scan.first["plan-tasks"])))
    assert {f"f{i:02}" for i in range(15, FILES)} <= found


def test_a_page_is_refused_when_other_files_are_listed(app):
    scan = Scan(app)
    tokens = scan.first["plan-tasks"]
    put(app, [listed(range(FILES + 1))[-1]], "stats.files")
    scan.plans._rows.clear()
    with pytest.raises(NotFound, match="no plan has this page"):
        scan.page(tokens[-1])


def test_pages_are_planned_again_if_they_are_not_kept(app):
    scan = Scan(app)
    found = scan.paths(scan.first)
    for token in scan.first["plan-tasks"]:
        scan.plans._rows.clear()
        found += scan.paths(scan.page(token))
    assert sorted(found) == [f"f{i:02}" for i in range(FILES)]


def test_tokens_of_no_page(app):
    scan = Scan(app)
    token = scan.first["plan-tasks"][-1]
    for other in (None, "", "a", f"{token}.0", f"{token}.x", f"{token}9999", token.replace(".", "-"), f"x{token}"):
        with pytest.raises(NotFound):
            scan.page(other)
