"""Pages beyond numbers: facets, descriptions, owners, keys, who changed a table; and the box for SQL."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from capture.compute import kernels
from store.model import logical_types
from store.model.target_ids import of_column
from tests.flight_server.faces.web.serving import Browser, pages_of
from tests.flight_server.planning.key_columns import put_columns
from tests.flight_server.serving import app_in, put

EVIL = "<script>alert(1)</script>"
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
COLUMN = KEY | {
    "column_id": 1,
    "column_name": "c1",
    "logical_type": "INT",
    "row_count": 100,
    "null_count": 0,
    "ndv": 100.0,
    "ndv_exact": True,
    "min": "0",
    "max": "99",
}
ROWS = "SELECT table_name, row_count FROM stats.tables ORDER BY 1"


@pytest.fixture(scope="module")
def browser():
    with app_in() as app:
        put(app, [KEY | {"row_count": 200}], "stats.tables")
        put(app, [COLUMN | {"column_id": number, "column_name": f"c{number}"} for number in range(1, 61)])
        with pages_of(app) as base:
            yield Browser(base)


def test_facets_count_and_limit_the_tables():
    with app_in() as app, pages_of(app) as base:
        browser = Browser(base)
        for number in range(3):
            put(app, [KEY | {"table_name": f"t{number}", "row_count": number}], "stats.tables")
        app.database.write(
            lambda c: c.execute(
                "UPDATE tables SET owner = 'ann', last_error = 'gone', format = 'delta' WHERE table_name = 't1'"
            )
        )
        app.catalog.reload(app.database.read())
        data = json.loads(browser.get("/index.json").text)
        assert data["facets"] == {
            "state": {"stale": 1, "failing": 1},
            "format": {"external": 2, "delta": 1},
            "owner": {"ann": 1},
        }
        for query in ("state=failing", "state=stale", "owner=ann", "format=delta", "owner=ann&format=delta&q=t1"):
            found = json.loads(browser.get(f"/index.json?{query}&sort=changed&desc=1").text)
            assert [row["table_name"] for row in found["tables"]] == ["t1"]
        assert json.loads(browser.get("/index.json?owner=bob").text)["matching"] == 0
        page = browser.get("/?owner=ann&q=t").text
        assert 'href="/?q=t"' in page  # the facet that is there is taken away
        assert 'name="owner" value="ann"' in page  # a search keeps it


def test_table_page_says_what_is_said_of_the_table_and_who_changed_it():
    with app_in() as app, pages_of(app) as base:
        put(app, [KEY | {"row_count": 3}], "stats.tables")
        put(app, [COLUMN | {"column_name": "c"}])
        app.database.write(
            lambda c: c.execute(
                "UPDATE tables SET description = ?, owner = 'ann', tags = ['gold'], partition_keys = ['day'],"
                " location = 's3://b/t'",
                [EVIL],
            )
        )
        app.database.write(lambda c: c.execute("UPDATE table_columns SET comment = 'its <number>'"))
        app.database.write(
            lambda c: c.execute(
                "UPDATE snapshots SET operation = 'WRITE', committed_at = now() - INTERVAL 3 DAY, summary = ?",
                ['{"userName": "bob", "job": {"jobId": "7", "jobName": "nightly"}}'],
            )
        )
        browser = Browser(base)
        page = browser.get("/table?name=lake.s.t").text
        said = ("3 d ago", "s3://b/t", "ann", "gold", "day", "its &lt;number&gt;", "bob", "nightly", "&lt;script")
        for words in said:
            assert words in page, words
        data = json.loads(browser.get("/table.json?name=lake.s.t").text)
        assert data["keys"] == [["c"]] and data["columns"][0]["comment"] == "its <number>"
        crumbs = re.findall(r'<a href="(/\?in=[^"]+)">([^<]+)</a>', page)
        assert crumbs[:2] == [("/?in=lake", "lake"), ("/?in=lake.s", "s")]
        assert "its &lt;number&gt;" in browser.get("/column?table=lake.s.t&name=c").text


def test_keys_are_on_the_pages_of_both_tables():
    rows = np.random.default_rng(1).choice(10**9, 500, replace=False)
    with app_in() as app, pages_of(app) as base:
        put_columns(app, "one", pa.table({"id": rows}))
        put_columns(app, "many", pa.table({"one_id": np.repeat(rows, 3)}))
        for table, other in (("one", "many"), ("many", "one")):
            page = Browser(base).get(f"/table?name=lake.s.{table}").text
            assert f'<a href="/table?name=lake.s.{other}">' in page and "by the values" in page
        assert json.loads(Browser(base).get("/table.json?name=lake.s.one").text)["keys"] == [["id"]]


def test_numbers_are_cut_with_the_whole_as_title_and_nan_and_infinity_are_told():
    values = np.array([*np.linspace(0.123456789, 98765.4321, 997), np.inf, np.nan, np.nan])
    with app_in() as app, pages_of(app) as base:
        put_columns(app, "t", pa.table({"x": values}))
        part = kernels.summarise(pa.chunked_array([values]), logical_types.parse("DOUBLE"))
        sketch = {
            "target_kind": "COLUMN",
            "storage_id": of_column(1),
            "column_id": 1,
            "role": "QUANTILES",
            "sketch_type": "apache-datasketches-kll-doubles-v1",
            "data": part.kll,
        }
        put(app, [KEY | sketch], "stats.sketches")
        counts = {"row_count": 1000, "nan_count": 2, "null_count": 0, "min": part.min, "max": part.max}
        put(app, [KEY | counts | {"column_id": 1, "column_name": "x", "logical_type": "DOUBLE"}])
        browser = Browser(base)
        page = browser.get("/table?name=lake.s.t").text
        assert '<span title="0.123456789">0.1235</span>' in page and "0.2 % NaN" in page
        (shown,) = json.loads(browser.get("/table.json?name=lake.s.t").text)["columns"]
        assert sum(bar["rows"] for bar in shown["histogram"]) == pytest.approx(997, rel=0.01)
        assert shown["infinite"] == pytest.approx(1, abs=1) and "infinite value" in page
        assert "2 (0.2 %)" in browser.get("/column?table=lake.s.t&name=x").text


def test_sql_box_answers_statements_that_read(browser):
    assert "<textarea" in browser.get("/sql").text and "SHOW TABLES" in browser.get("/sql").text
    page = browser.get(f"/sql?q={quote(ROWS)}")
    assert page.status == 200 and "<td" in page.text and html.escape(ROWS) in page.text
    data = json.loads(browser.get(f"/sql.json?q={quote(ROWS)}").text)
    assert data["columns"] == ["table_name", "row_count"] and ["t", 200] in data["rows"] and not data["truncated"]
    many = "SELECT a.column_id FROM stats_all.columns a, stats_all.columns b"
    cut = json.loads(browser.get(f"/sql.json?q={quote(many)}").text)
    assert (len(cut["rows"]), cut["truncated"]) == (1000, True)
    assert "others are left out" in browser.get(f"/sql?q={quote(many)}").text


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE tables",
        "ANALYZE lake.s.t",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT <b>",
        "x" * 10_001,
    ],
)
def test_sql_box_refuses_what_is_not_a_read(browser, statement):
    page, twin = (browser.get(f"/{path}?q={quote(statement)}") for path in ("sql", "sql.json"))
    assert page.status == 200 and 'role="alert"' in page.text and "<b>" not in page.text and "root:" not in page.text
    assert twin.status in (400, 403) and json.loads(twin.text)["error"]
