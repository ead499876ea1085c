"""Report files of a table: complete, self-contained, and escaped."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from flight_server.client import StatsClient
from flight_server.faces.web import files
from flight_server.faces.web.urls import file_name
from tests.flight_server.fake_server import FakeServer

HOSTILE = '"><script>alert(1)</script><img src=x onerror="y">&amp;'
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 2}
COLUMN = KEY | {"row_count": 100, "null_count": 5, "ndv": 50.0, "ndv_exact": True, "freshness": "EXACT"}


@pytest.fixture
def server():
    with FakeServer() as server:
        server.rows("sys.tables", {name: KEY[name] for name in list(KEY)[:3]})
        server.rows("stats.tables", KEY | {"row_count": 100, "data_file_count": 2, "total_size_bytes": 4096})
        server.rows(
            "stats.columns",
            COLUMN | {"column_id": 1, "column_name": "id", "logical_type": "INT", "min": "0", "max": "99"},
            COLUMN | {"column_id": 2, "column_name": HOSTILE, "logical_type": "STRING", "min": HOSTILE, "max": "<b>"},
        )
        server.rows(
            "stats.histograms",
            KEY | {"column_id": 1, "bucket": 1, "lower": "50", "upper": "99", "row_count": 50.0},
            KEY | {"column_id": 1, "bucket": 0, "lower": "0", "upper": "50", "row_count": 50.0},
        )
        server.rows("stats.most_common_values", KEY | {"column_id": 2, "rank": 1, "value": HOSTILE, "count": 7})
        server.rows(
            "sys.snapshots",
            KEY | {"committed_at": datetime(2026, 1, 1, tzinfo=UTC), "operation": HOSTILE, "is_current": True},
        )
        yield server


@pytest.fixture
def text(server):
    with StatsClient(server.uri) as client:
        return files.alone(client, "lake.s.t", "current")


@pytest.fixture
def pages(server):
    """The files of a report by name."""
    with StatsClient(server.uri) as client:
        return dict([*files.pages_of(client, "lake.s.t", "current"), *files.index(client, ["lake.s.t"])])


def test_columns_with_the_same_name_have_separate_files(server):
    alike = [
        COLUMN | {"column_id": i, "column_name": name, "logical_type": "INT", "min": "0", "max": str(i)}
        for i, name in ((4, "st.x"), (5, "st.x"), (6, None))
    ]
    server.rows("stats.columns", *alike)
    with StatsClient(server.uri) as client:
        found = dict(files.pages_of(client, "lake.s.t", "current"))
    linked = set(re.findall(r'href="([^"#]+\.html)"', found[f"{file_name('lake.s.t')}.html"])) - {"index.html"}
    assert linked == {f"{file_name('lake.s.t', f'#{i}')}.html" for i in (4, 5, 6)} < found.keys()
    for i in (4, 5, 6):
        assert json.loads(found[f"{file_name('lake.s.t', f'#{i}')}.json"])["statistics"]["max"] == str(i)


def test_quantiles_of_a_sample_beside_a_complete_record_are_labelled(server):
    server.rows(
        "stats.quantiles",
        *(KEY | {"column_id": 1, "quantile": share, "value": "7", "completeness": "PARTIAL"} for share in (0.25, 0.75)),
    )
    with StatsClient(server.uri) as client:
        found = dict(files.pages_of(client, "lake.s.t", "current"))
    labelled = [name for name, text in found.items() if "EXACT, quantiles of a sample" in text]
    assert labelled == [f"{file_name('lake.s.t')}.html", f"{file_name('lake.s.t', 'id')}.html"]


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that every element is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_complete_html_with_its_charts(text):
    tags = Tags(text)
    assert not tags.open
    assert "<html" in text and "lake.s.t" in text and "id" in text
    common = text.count('<td class="share"><svg')  # a bar beside each of the most common values
    assert tags.tags.count("svg") == 4 + common  # two null bars, a small histogram and a large one


def test_page_has_no_scripts_and_no_external_resources(text):
    tags = Tags(text)
    assert not {"script", "img", "link", "iframe", "b", "form"} & set(tags.tags)
    links = [value for name, value in tags.attributes if name in ("src", "href")]
    assert links and all(link.startswith("#") for link in links)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert not re.search(r"https?://|@import|url\(", text)


def test_histograms_are_in_bucket_order(text):
    assert re.findall(r'<text[^>]*text-anchor="(?:start|middle|end)">([^<]*)</text>', text)[-3:] == ["0", "48", "99"]


def test_report_has_an_index_and_pages_each_with_a_json_file(pages):
    table = f"{file_name('lake.s.t')}.html"
    columns = [f"{file_name('lake.s.t', name)}.html" for name in ("id", HOSTILE)]
    html = {"index.html", table, *columns}
    assert set(pages) == html | {name.replace(".html", ".json") for name in html} | {"style.css"}
    for name in html:
        tags = Tags(pages[name])
        links = {value for key, value in tags.attributes if key == "href"}
        assert all(link.startswith("#") or link in pages for link in links), links
        assert not {"script", "img", "b"} & set(tags.tags) and not tags.open
    assert table in pages["index.html"] and all(column in pages[table] for column in columns)
    table_json = json.loads(pages[table.replace(".html", ".json")])
    assert [row["min"] for row in table_json["columns"]] == ["0", HOSTILE]


@pytest.mark.parametrize("name", ["a/b", "../../etc/passwd", "", "\x00", "con", "x" * 500, "ä", "A", "a"])
def test_file_names_are_safe_and_distinct(name):
    found = file_name("lake.s.t", name)
    assert re.fullmatch(r"[a-z0-9-]{1,80}", found)
    assert found != file_name("lake.s.t", name.swapcase() + "'")
