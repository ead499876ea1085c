"""The page about a table: complete, self-contained, and safe whatever the table holds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from flight_server.client import StatsClient
from flight_server.present.report import page
from tests.flight_server.fake_server import FakeServer

NASTY = '"><script>alert(1)</script><img src=x onerror="y">&amp;'
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 2}
COLUMN = KEY | {"row_count": 100, "null_count": 5, "ndv": 50.0, "ndv_exact": True, "freshness": "EXACT"}


@pytest.fixture
def text():
    with FakeServer() as server:
        server.rows("stats.tables", KEY | {"row_count": 100, "data_file_count": 2, "total_size_bytes": 4096})
        server.rows(
            "stats.columns",
            COLUMN | {"column_id": 1, "column_name": "id", "logical_type": "INT", "min": "0", "max": "99"},
            COLUMN | {"column_id": 2, "column_name": NASTY, "logical_type": "STRING", "min": NASTY, "max": "<b>"},
        )
        server.rows(
            "stats.histograms",
            KEY | {"column_id": 1, "bucket": 1, "lower": "50", "upper": "99", "row_count": 50.0},
            KEY | {"column_id": 1, "bucket": 0, "lower": "0", "upper": "50", "row_count": 50.0},
        )
        server.rows("stats.most_common_values", KEY | {"column_id": 2, "rank": 1, "value": NASTY, "count": 7})
        server.rows(
            "sys.snapshots",
            KEY | {"committed_at": datetime(2026, 1, 1, tzinfo=UTC), "operation": NASTY, "is_current": True},
        )
        with StatsClient(server.uri) as client:
            yield page(client, "lake.s.t", "current")


class Tags(HTMLParser):
    """Collects what a browser would see, and that every element is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole(text):
    tags = Tags(text)
    assert not tags.open
    assert "<html" in text and "lake.s.t" in text and "id" in text
    assert tags.seen.count("svg") == 1


def test_the_page_holds_nothing_live_and_nothing_from_outside(text):
    tags = Tags(text)
    assert not {"script", "img", "link", "iframe", "b"} & set(tags.seen)
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "href")]
    assert not re.search(r"https?://|@import|url\(", text)


def test_histograms_are_in_the_order_of_their_buckets(text):
    assert re.findall(r'<text[^>]*text-anchor="(?:start|middle|end)">([^<]*)</text>', text)[-3:] == ["0", "51", "99"]
