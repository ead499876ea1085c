"""The first page's figures, and the lists of checks and changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.faces.web import column_page, data, overview, render
from flight_server.faces.web.data import Asked
from flight_server.faces.web.urls import LiveUrls
from store.catalog.checks import CheckRow, CheckStore
from store.model.columns import FREQUENT_ITEMS
from store.model.sketches import frequent
from store.model.target_ids import of_column
from tests.flight_server.faces.web.serving import Browser, pages_of
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
AT = datetime(2026, 1, 5, tzinfo=UTC)


def checked(app, snapshot, state, at):
    row = CheckRow("x", "mean < 5", "mean", "fail", state, None, "waits for snapshot 2" if state == "WAITING" else "")
    CheckStore(app.database).put([(app.catalog.get("lake.s.t").table_key, snapshot, [row])], at)


def test_first_page_begins_with_what_needs_attention():
    with app_in() as app:
        reader = LocalReader(app.scanner, ANONYMOUS)
        put(app, [KEY | {"snapshot_id": 1, "row_count": 5}], "stats.tables")
        for minute, (state, count) in enumerate((("FAILED", 1), ("PASSED", 0), ("WAITING", 1))):
            checked(app, 1, state, AT + timedelta(minutes=minute))
            found = data.catalog(reader, Asked())["figures"]
            assert (found["tables"], found["checks"], len(found["attention"])) == (1, count, count)
        assert found["attention"] == [{"table": "lake.s.t", "state": "WAITING", "detail": "x: mean < 5"}]
        page = render.page("catalog.html", url=LiveUrls(), **data.catalog(reader, Asked()))
        assert "Needs attention" in page and '<span class="amber">waiting</span>' in page
        table = render.page("table.html", url=LiveUrls("/table"), **data.table(reader, "lake.s.t", Asked()))
        assert "1 check waits for snapshot 1" in table and "did not pass" not in table


def test_checks_that_failed_are_counted_however_many_tables_have_some(monkeypatch):
    monkeypatch.setattr(overview, "MOST_NAMED", 1)
    with app_in() as app:
        for name in ("t", "u", "v"):
            put(app, [KEY | {"table_name": name, "snapshot_id": 1, "row_count": 5}], "stats.tables")
        row = CheckRow("x", "mean < 5", "mean", "fail", "FAILED", None, "")
        keys = [app.catalog.get(f"lake.s.{name}").table_key for name in ("t", "u")]
        CheckStore(app.database).put([(key, 1, [row]) for key in keys], AT)
        assert len(overview.missed(LocalReader(app.scanner, ANONYMOUS))) == 2


def test_lists_are_searched_and_say_how_many():
    rows = [{"table": f"lake.s.t{number}", "rule": "mean < 5"} for number in range(450)]
    assert [overview.listing("Checks", rows, page, "")["pages"] for page in (1, 9)] == [3, 3]
    last = overview.listing("Checks", rows, 3, "")
    assert (last["matching"], last["page"], len(last["rows"])) == (450, 3, 50)
    assert overview.listing("Checks", rows, 1, "T44")["matching"] == 11


def test_columns_whose_interval_reaches_the_rows_may_be_unique():
    row = {"nan_count": None, "row_count": 100_000, "null_count": 0, "ndv": 99_000.0, "ndv_exact": False}
    near = row | {"ndv_lower": 97_000.0, "ndv_upper": 100_000.0, "snapshot_id": 2, "distribution_snapshot_id": 2}
    assert data.notes(near) == ["unique?"]
    assert data.notes(near | {"ndv_upper": 99_500.0}) == []
    assert data.notes(near | {"distribution_snapshot_id": 1}) == []  # of fewer rows
    assert data.notes(near | {"ndv_lower": None}) == []


def test_points_of_a_chart_lead_to_their_snapshots():
    rows = [{"snapshot_id": i, "committed_at": AT, "row_count": i} for i in (1, 2)]
    links = [LiveUrls().table("lake.s.t", i) for i in (1, 2)]
    drawn = str(render.environment().filters["commit_line"](rows, "row_count", "Rows", links))
    assert 'href="/table?name=lake.s.t&amp;snapshot=2"' in drawn and 'role="group"' in drawn and "2026-01-05" in drawn


def test_labels_are_explained_where_they_stand_and_shares_are_drawn():
    with app_in() as app:
        column = {"column_id": 1, "column_name": "c", "logical_type": "STRING", "row_count": 10, "null_count": 0}
        put(app, [KEY | {"snapshot_id": 1} | column])
        put(app, [KEY | {"snapshot_id": 1, "row_count": 10}], "stats.tables")
        sketch = {"target_kind": "COLUMN", "storage_id": of_column(1), "column_id": 1, "role": "MCV"}
        counted = frequent([b"a", b"b"], [7, 3], 10, 0)
        put(
            app,
            [KEY | {"snapshot_id": 1} | sketch | {"sketch_type": FREQUENT_ITEMS, "data": counted}],
            "stats.sketches",
        )
        reader = LocalReader(app.scanner, ANONYMOUS)
        table = render.page("table.html", url=LiveUrls("/table"), **data.table(reader, "lake.s.t", Asked()))
        of_column_page = render.page("column.html", url=LiveUrls(), **column_page.column(reader, "lake.s.t", "c"))
    for page in (table, of_column_page):
        assert "<dt>EXACT</dt><dd>of the current snapshot" in page and "70.0 %" in page and "30.0 %" in page
    assert "<dt>PLANNING</dt>" in of_column_page


def test_the_page_of_sql_has_a_script_for_ctrl_enter_and_other_pages_none():
    with app_in() as app, pages_of(app) as base:
        browser = Browser(base)
        page = browser.get("/sql")
        assert '<script src="/keys.js' in page.text and page.headers["Content-Security-Policy"].endswith(
            "script-src 'self'"
        )
        other = browser.get("/")
        assert "<script" not in other.text and "script-src" not in other.headers["Content-Security-Policy"]
        script = browser.get("/keys.js")
        assert script.headers["Content-Type"].startswith("text/javascript") and "requestSubmit" in script.text
