"""Template filters, most common values, and chart labels."""

from __future__ import annotations

import html
import re

import pytest

from flight_server.core.views.shapes import Bar, position
from flight_server.faces.present import charts
from flight_server.faces.web import data, render
from flight_server.faces.web.urls import LiveUrls

FILTERS = render.environment().filters


def test_breakable_filter_escapes_and_allows_breaks_after_separators():
    assert FILTERS["breakable"]("a.b_c") == "a.<wbr>b_<wbr>c"
    assert FILTERS["breakable"]("<i>.x.") == "&lt;i&gt;.<wbr>x."


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        ('{"day": "2026-03-01", "hour": 7}', "day=2026-03-01, hour=7"),
        ('{"day": null}', "day=null"),
        ("[1]", "[1]"),
        ("no json", "no json"),
        (None, ""),
    ],
)
def test_partition_filter_formats_json_as_key_value_pairs(text, formatted):
    assert FILTERS["partition"](text) == formatted


def test_attribute_filter_escapes_to_text_that_unescapes_unchanged():
    text = "a\x1b[31m\r\n\"'<&>\u202e é"
    page = FILTERS["attribute"](text)
    assert page.isascii() is False and page.isprintable() and "<" not in page and '"' not in page
    assert html.unescape(page.replace("&#27;", "\x1b").replace("&#13;", "\r")) == text


def test_timestamp_is_short_in_lists_with_the_full_value_as_title():
    row = {"min": "2026-03-01T00:00:01.50706Z", "min_is_exact": False, "logical_type": "TIMESTAMPTZ", "quantiles": {}}
    assert FILTERS["least"](row, True) == ('<span title="2026-03-01T00:00:01.50706Z">≥ 2026-03-01 00:00:01</span>')
    assert FILTERS["least"](row) == "≥ 2026-03-01T00:00:01.50706Z"
    hostile = row | {"min": '"><script>', "logical_type": "TIME"}
    assert "<script>" not in FILTERS["least"](hostile, True)
    assert FILTERS["quantile"](row, 0.5) == ""
    assert FILTERS["least"](row | {"logical_type": "STRING", "min": "1T:00.5"}, True) == "≥ 1T:00.5"


def test_most_common_values_leave_out_counts_that_are_mostly_error():
    rows = [
        {"value": value, "count": 100, "count_lower": lower, "count_upper": 100}
        for value, lower in (("exact", 100), ("half", 50), ("noise", 49), ("unknown", None))
    ]
    assert [row["value"] for row in data._most_common(rows)] == ["exact", "half", "unknown"]


@pytest.mark.parametrize(("width", "labels"), [(560, 3), (340, 2)])
def test_axis_labels_do_not_overlap(width, labels):
    start = position("2026-03-01T00:00:00", "TIMESTAMP")
    bars = [Bar(start + hour * 3600, start + (hour + 1) * 3600, 5.0) for hour in range(30)]
    drawn = charts.histogram(bars, "TIMESTAMP", "x", width, 130)
    assert len(re.findall(r"<text[^>]*>2026-", drawn)) == labels


def test_style_sheet_url_has_a_content_hash():
    page = render.page("message.html", url=LiveUrls(), title="t", message="m")
    assert re.search(r'href="/style\.css\?[0-9a-f]{12}"', page)
