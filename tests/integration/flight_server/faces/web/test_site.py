"""The pages over HTTP: content, access, escaping, and size."""

from __future__ import annotations

import hashlib
import html
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Semaphore
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.reads.local_reader import LocalReader
from flight_server.faces.web import data, site
from flight_server.faces.web.site import HEADERS
from store.catalog.checks import CheckRow, CheckStore
from store.model.names import join_name
from store.model.sketches import kll
from store.model.target_ids import of_column
from tests.flight_server.faces.web.serving import Browser, large_catalog, pages_of
from tests.flight_server.serving import app_in, put

EVIL = "<script>alert(1)</script>"
QUOTE = '"><img src=x onerror=alert(2)>'
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}


def column(number: int, **more):
    return (
        KEY
        | {
            "column_id": number,
            "column_name": f"c{number}",
            "logical_type": "INT",
            "row_count": 100,
            "null_count": number % 3,
            "ndv": float(100 - number % 3),
            "ndv_exact": True,
            "min": "0",
            "max": "99",
        }
        | more
    )


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        for snapshot in (1, 2):
            at = {"snapshot_id": snapshot}
            put(
                app,
                [KEY | at | {"row_count": 100 * snapshot, "data_file_count": 3, "total_size_bytes": 2048}],
                "stats.tables",
            )
            put(app, [column(number, row_count=100 * snapshot, **at) for number in range(1, 61)])
            sketch = {
                "target_kind": "COLUMN",
                "storage_id": of_column(1),
                "column_id": 1,
                "role": "QUANTILES",
                "sketch_type": "apache-datasketches-kll-doubles-v1",
                "data": kll(np.arange(100.0)),
            }
            put(app, [KEY | at | sketch], "stats.sketches")
        evil = {"min": "\x1b[2J\u202e", "max": "<b>bold", "logical_type": "STRING"}
        put(app, [column(1, table_name=EVIL, column_name=QUOTE, **evil)])
        put(app, [column(1, table_schema="hr", table_name="salaries", column_name="wage")])
        yield app


@pytest.fixture(scope="module")
def browser(app):
    with pages_of(app) as base:
        yield Browser(base)


# Pages.


def test_first_page_lists_tables(browser):
    page = browser.get()
    assert page.status == 200 and "lake.s.t" in page.text and "200" in page.text
    data = json.loads(browser.get("/index.json").text)
    assert [row["name"] for row in data["tables"]] == ["lake.hr.salaries", html.unescape(f"lake.s.{EVIL}"), "lake.s.t"]
    assert data["catalogs"] == [
        {"catalog": "lake", "tables": 3, "schemas": [{"schema": "hr", "tables": 1}, {"schema": "s", "tables": 2}]}
    ]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?q=SALAR", ["lake.hr.salaries"]),
        ("?in=lake.hr", ["lake.hr.salaries"]),
        ("?in=nosuch", []),
        ("?sort=rows&desc=1", ["lake.s.t", "lake.hr.salaries", f"lake.s.{EVIL}"]),
        ("?q=wage", []),
    ],
)
def test_tables_are_searched_and_sorted(browser, query, names):
    data = json.loads(browser.get(f"/index.json{query}").text)
    assert [row["name"] for row in data["tables"]] == names
    assert [row["column"] for row in data["columns"]] == (["wage"] if "wage" in query else [])


def test_table_page_lists_its_columns_in_pages(browser, monkeypatch):
    page = browser.get("/table?name=lake.s.t")
    assert page.status == 200 and "60 columns" in page.text and "page 1 of" not in page.text
    monkeypatch.setattr(data, "COLUMNS_A_PAGE", 50)
    assert "page 1 of 2" in browser.get("/table?name=lake.s.t").text
    second = json.loads(browser.get("/table.json?name=lake.s.t&page=2").text)
    assert [row["column_name"] for row in second["columns"]] == [f"c{number}" for number in range(51, 61)]
    first = json.loads(browser.get("/table.json?name=lake.s.t").text)["columns"][0]
    assert sum(bar["rows"] for bar in first["histogram"]) == pytest.approx(199, rel=0.01)
    assert first["quantiles"]["0.5"]
    found = json.loads(browser.get("/table.json?name=lake.s.t&q=C7&sort=nulls&desc=1").text)
    assert [row["column_name"] for row in found["columns"]] == ["c7"]


def test_json_pages_have_the_keys_of_the_protocol_document(browser):
    protocol = (Path(site.__file__).parents[2] / "PROTOCOL.md").read_text(encoding="utf-8")
    section = protocol[protocol.index("**17.2**") : protocol.index("**17.3**")]
    documented = {
        row[0]: row[1:] for row in (re.findall(r"`([^`]+)`", line) for line in section.splitlines()) if len(row) > 1
    }
    urls = (
        "/index.json",
        "/table.json?name=lake.s.t",
        "/column.json?table=lake.s.t&name=c1",
        "/checks.json",
        "/sql.json",
    )
    assert {url.partition("?")[0]: list(json.loads(browser.get(url).text)) for url in urls} == documented


def test_table_page_shows_the_latest_check_results(browser, app):
    missed = CheckRow("c1", f"null_fraction <= 0 {EVIL}", "null_fraction", "fail", "FAILED", 0.5, QUOTE)
    passed = CheckRow(None, "row_count > 0", "row_count", "fail", "PASSED", 100.0, "")
    key = app.catalog.get("lake.s.t").table_key
    CheckStore(app.database).put(
        [(key, 1, [passed, replace(missed, state="PASSED")])], datetime(2026, 1, 1, tzinfo=UTC)
    )
    CheckStore(app.database).put([(key, 2, [passed, missed])], datetime(2026, 1, 2, tzinfo=UTC))
    data = json.loads(browser.get("/table.json?name=lake.s.t").text)
    assert [(row["rule"], row["state"]) for row in data["checks"]] == [
        (missed.rule, "FAILED"),
        ("row_count > 0", "PASSED"),
    ]
    page = browser.get("/table?name=lake.s.t").text
    assert "2026-01-02" in page and EVIL not in page and "<img" not in page
    assert "1 of 2 checks did not pass" in page


def test_uncaptured_columns_are_listed(app, browser, monkeypatch):
    names = ["table_catalog", "table_schema", "table_name", "column_id", "column_name", "data_type"]
    schema = pa.table([["lake"] * 2, ["s"] * 2, ["t"] * 2, [1, 99], ["c1", EVIL], ["INT", "MAP"]], names)
    read = LocalReader.read

    def with_schema(self, flight, columns=None, *more):
        if flight == "information_schema.columns":
            return schema.select(columns)
        return read(self, flight, columns, *more)

    monkeypatch.setattr(LocalReader, "read", with_schema)
    assert json.loads(browser.get("/table.json?name=lake.s.t").text)["uncaptured"] == [{"column": EVIL, "type": "MAP"}]
    page = browser.get("/table?name=lake.s.t").text
    assert "Not captured" in page and html.escape(EVIL) in page and EVIL not in page


def test_column_page_shows_its_history(browser):
    page = browser.get("/column?table=lake.s.t&name=c1")
    assert page.status == 200 and page.text.count("<figure>") >= 4
    data = json.loads(browser.get("/column.json?table=lake.s.t&name=c1").text)
    assert [(row["snapshot_id"], row["row_count"]) for row in data["history"]] == [("1", 100), ("2", 200)]
    assert data["then"]["snapshot_id"] == "1"


def test_columns_with_the_same_name_have_separate_pages():
    rows = [
        column(i, table_name="alike", column_name="st.x", max=str(i), snapshot_id=s) for i in (1, 3) for s in (1, 2)
    ]
    with app_in() as app, pages_of(app) as base:
        put(app, rows)
        browser = Browser(base)
        page = browser.get("/table?name=lake.s.alike").text
        found = dict(re.findall(r'<a href="(/column[^"]+)">([^<]+)</a>', page))
        assert {html.unescape(label).replace("\u200b", "") for label in found.values()} == {"st.x #1", "st.x #3"}
        columns = json.loads(browser.get("/index.json?q=st.x").text)["columns"]
        assert [row["reference"] for row in columns] == ["#1", "#3"]
        for url, label in found.items():
            column_page = browser.get(html.unescape(url))
            assert column_page.status == 200
            data = json.loads(browser.get(html.unescape(url).replace("/column?", "/column.json?")).text)
            assert data["statistics"]["max"] == label[-1] and data["column"] == "st.x"
            for then in re.findall(r'<a href="(/column[^"]+then[^"]+)">', column_page.text):
                assert browser.get(html.unescape(then)).status == 200


@pytest.mark.parametrize("most", [25, pytest.param(400, marks=pytest.mark.benchmark)])
def test_every_link_leads_to_a_page_with_a_json_version(browser, most):
    seen, pending = set(), ["/"]
    while pending and len(seen) < most:
        url = pending.pop(len(pending) // 2)  # reaches all kinds of pages, not only those linked first
        if url in seen:
            continue
        seen.add(url)
        page = browser.get(url)
        assert page.status == 200, url
        for name, value in HEADERS.items():
            expected = value
            if name == "Content-Security-Policy" and url.partition("?")[0] == "/sql":
                expected = f"{value}; script-src 'self'"
            assert page.headers[name] == expected or name == "Cache-Control", (url, name)
        if "html" not in page.headers["Content-Type"]:
            continue
        json_url = html.unescape(re.search(r'<a href="([^"]+)">This page as JSON', page.text)[1])
        assert json.loads(browser.get(json_url).text)
        links = map(html.unescape, re.findall(r'(?:href|src)="([^"]+)"', page.text))
        pending += [link for link in links if link.startswith("/")]
        scripts = re.findall(r"<script[^>]*>", page.text)
        allowed = url.partition("?")[0] == "/sql"
        assert "style=" not in page.text and all(allowed and 'src="/keys.js?' in script for script in scripts)
    assert len(seen) == most or not pending
    assert {url.partition("?")[0] for url in seen} >= {"/", "/table", "/column"}


def test_names_and_values_are_escaped(browser):
    for url in (
        "/",
        f"/table?name={quote(f'lake.s.{EVIL}')}",
        f"/column?table={quote(f'lake.s.{EVIL}')}&name={quote(QUOTE)}",
        f"/?q={quote(QUOTE)}",
    ):
        text = browser.get(url).text
        assert not [raw for raw in (EVIL, "<img", "<b>", "\x1b", "\u202e") if raw in text], url
    assert "&lt;b&gt;bold" in browser.get(f"/table?name={quote(f'lake.s.{EVIL}')}").text


def test_forms_round_trip_a_hostile_name():
    name = 'esc\x1b[31m\r"<'
    with app_in() as app, pages_of(app) as base:
        put(app, [column(1, table_name=name)])
        for url in (f"/table?name={quote(full_name(name))}", f"/?in={quote(full_name(name))}"):
            page = Browser(base).get(url)
            assert page.status == 200 and "\x1b" not in page.text and "\r" not in page.text
            sent = re.search(r'type="hidden" name="\w+" value="([^"]*)"', page.text)[1]
            assert html.unescape(sent.replace("&#27;", "\x1b").replace("&#13;", "\r")) == full_name(name)


def full_name(name: str) -> str:
    return join_name("lake", "s", name)


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("/no/such/page", 404),
        ("/%3Cscript%3Ealert(3)", 404),
        ("/table", 400),
        ("/table?name=nonsense", 400),
        ("/table?name=lake.s.nosuch", 404),
        ("/column?table=lake.s.t&name=nosuch", 404),
        ("/static/../../x", 404),
        ("/table.json?name=lake.s.nosuch", 404),
        ("/table?name=" + "x" * 20_000, 400),
        ("/?page=99999999999", 200),
        ("/?page=-1&sort=%00", 200),
        ("/table?name=lake.s.t%00", 404),
        ("/column?table=lake.s.t&name=c1&then=x", 200),
    ],
)
def test_wrong_urls_have_their_status_and_no_traceback(browser, url, status):
    response = browser.get(url)
    assert response.status == status and "Traceback" not in response.text and "<script>" not in response.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_pages_are_read_only(browser, method):
    assert browser.get("/", {"x": "1"}, method).status == 405


def test_metrics_and_health_are_served(browser):
    assert "# TYPE statflight_tables gauge" in browser.get("/metrics").text
    assert json.loads(browser.get("/health").text) == {"status": "ok"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 400),
        ("evil.example:8816", 400),
        ("localhost:8816", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
    ],
)
def test_open_server_accepts_only_loopback_host_headers(browser, host, status):
    response = browser.get("/", Host=host)
    assert response.status == status and ("lake.s.t" in response.text) == (status == 200)
    assert response.headers["X-Content-Type-Options"] == "nosniff"


# Authentication.


@pytest.fixture(scope="module")
def guarded(app, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    entries = {
        "all": (["stats.read"], ["*"]),
        "some": (["stats.read"], ["lake.s.*"]),
        "writer": (["stats.write"], ["*"]),
    }
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
            f"scopes = {json.dumps(scopes)}\ntables = {json.dumps(tables)}\n"
            for name, (scopes, tables) in entries.items()
        )
    )
    with pages_of(app, tokens) as base:
        yield base


def log_in(base: str, token: str, next_url: str = "/"):
    browser = Browser(base)
    return browser, browser.get("/login", {"token": token, "next": next_url})


def test_pages_without_a_token_show_only_the_login_form(guarded):
    for url in ("/", "/table?name=lake.s.t", "/column?table=lake.s.t&name=c1"):
        page = Browser(guarded).get(url)
        assert page.status == 401 and 'type="password"' in page.text and "c2" not in page.text
        assert page.headers["WWW-Authenticate"] == 'Bearer realm="statflight"'
    assert Browser(guarded).get("/index.json").status == 401
    assert Browser(guarded).get("/health").status == 200 and Browser(guarded).get("/metrics").status == 401


@pytest.mark.parametrize("url", ["/index.json", "/metrics", "/iceberg/v1/config"])
def test_a_refusal_asks_for_a_token_in_the_words_of_the_standard(guarded, url):
    none, wrong = Browser(guarded).get(url), Browser(guarded).get(url, Authorization="Bearer wrong")
    assert (none.status, wrong.status) == (401, 401)
    assert none.headers["WWW-Authenticate"] == 'Bearer realm="statflight"'
    assert wrong.headers["WWW-Authenticate"] == 'Bearer realm="statflight", error="invalid_token"'


def test_clients_of_iceberg_that_ask_for_a_token_are_told_that_none_is_issued(guarded):
    credentials = {"grant_type": "client_credentials", "client_id": "a", "client_secret": "b"}
    answer = Browser(guarded).get("/iceberg/v1/oauth/tokens", credentials)
    told = json.loads(answer.text)
    assert answer.status == 400 and answer.headers["Cache-Control"] == "no-store"
    assert told["error"] == "unsupported_grant_type" and "property token" in told["error_description"]


def test_login_shows_the_tables_of_its_token(guarded):
    full, page = log_in(guarded, "all", "/table?name=lake.hr.salaries")
    assert page.status == 200 and "wage" in page.text and page.url.endswith("name=lake.hr.salaries")
    some, _ = log_in(guarded, "some")
    assert "lake.s.t" in some.get().text and "salaries" not in some.get().text
    assert some.get("/table?name=lake.hr.salaries").status == 404
    assert some.get("/metrics").status == 401  # metrics accept no cookie
    assert json.loads(some.get("/index.json?q=wage").text)["columns"] == []
    (cookie,) = full.cookies
    assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "lax"
    assert "all" not in cookie.value
    assert full.get("/logout", {}).status == 200 and full.get().status == 401


def test_sql_box_shows_what_its_token_may_see(guarded):
    def rows(token: str) -> list[str]:
        url = "/sql.json?q=SELECT+table_name+FROM+stats.tables+ORDER+BY+1"
        return [name for (name,) in json.loads(Browser(guarded).get(url, Authorization=f"Bearer {token}").text)["rows"]]

    assert "salaries" not in rows("some") and rows("some") == [name for name in rows("all") if name == "t"]
    assert Browser(guarded).get("/sql?q=SHOW+TABLES").status == 401
    assert Browser(guarded).get("/sql?q=SHOW+TABLES", Authorization="Bearer writer").status == 403


def test_bearer_token_needs_no_cookie(guarded):
    assert Browser(guarded).get(Authorization="Bearer all", Host="stats.example").status == 200
    assert Browser(guarded).get("/table.json?name=lake.s.t", Authorization="Bearer all").status == 200
    assert Browser(guarded).get(Authorization="Bearer wrong").status == 401
    assert Browser(guarded).get(Authorization="Bearer writer").status == 403


@pytest.mark.parametrize("cookie", ["", "x", "a.b.c", "\xff"])
def test_forged_cookie_is_unauthorized(guarded, cookie):
    assert Browser(guarded).get(Cookie=f"statflight_session={cookie}").status == 401


def test_login_with_a_wrong_token_is_unauthorized(guarded):
    _, page = log_in(guarded, "wrong")
    assert page.status == 401 and "not known here" in page.text


@pytest.mark.parametrize(
    "next_url", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_login_never_redirects_to_another_site(guarded, next_url):
    _, page = log_in(guarded, "all", next_url)
    assert page.status == 200 and page.url.rstrip("/") == guarded.rstrip("/")


def test_oversized_login_is_rejected(guarded):
    assert Browser(guarded).get("/login", {"token": "x" * 100_000}).status == 413


# Size and load.


def test_idle_connections_do_not_block_the_pages(browser):
    address = (re.search(r"//([^:/]+)", browser.base)[1], int(re.search(r":(\d+)/", browser.base)[1]))
    idle = []
    try:
        for _ in range(400):
            idle.append(socket.create_connection(address, timeout=5))
        assert browser.get().status == 200
    finally:
        for connection in idle:
            connection.close()


def test_pages_beyond_the_limit_are_unavailable_and_health_is_served(app, monkeypatch):
    monkeypatch.setattr(site, "PAGES_WAITING", 2)
    started, finish = Semaphore(0), Event()

    def slow(*_):
        started.release()
        assert finish.wait(30)
        return {
            "figures": {"tables": 0, "checks": 0, "stale": 0, "changed": 0, "attention": []},
            "catalogs": [],
            "tables": [],
            "matching": 0,
            "total": 0,
            "page": 1,
            "pages": 1,
            "columns": [],
            "facets": {},
        }

    monkeypatch.setattr(site.data, "catalog", slow)
    with pages_of(app) as base, ThreadPoolExecutor(2) as pool:
        try:
            waiting = [pool.submit(Browser(base).get) for _ in range(2)]
            assert all(started.acquire(timeout=30) for _ in waiting)
            rejected = [Browser(base).get(url) for url in ("/", "/table.json?name=lake.s.t")]
            assert Browser(base).get("/health").status == 200
        finally:
            finish.set()
        assert [response.result(30).status for response in waiting] == [200, 200]
        assert Browser(base).get("/table?name=lake.s.t").status == 200  # the places are free again
    assert [(response.status, response.headers["Retry-After"]) for response in rejected] == [(503, "5")] * 2
    assert "2 pages are under way" in rejected[0].text
    assert json.loads(rejected[1].text)["error"] == "UNAVAILABLE"


TABLES = 1000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    with large_catalog(tmp_path_factory.mktemp("large"), TABLES) as base:
        yield Browser(base)


@pytest.mark.parametrize(
    "url", ["/", "/?sort=rows&desc=1", "/?q=0042", "/table?name=lake.s.wide", "/?in=lake.s7&page=2"]
)
def test_pages_of_a_large_catalog_and_a_wide_table_stay_small(large, url):
    page = large.get(url)
    assert page.status == 200
    assert len(page.text.encode()) < (400_000 if "wide" in url else 200_000)
