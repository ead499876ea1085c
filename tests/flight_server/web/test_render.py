"""Filters of the templates, and what of a column is worth showing."""

from __future__ import annotations

import html
import re

import pytest

from flight_server.present import charts
from flight_server.present.shapes import Bar, position
from flight_server.web import data, render
from flight_server.web.urls import LiveUrls

FILTERS = render.environment().filters


def test_a_name_may_break_after_its_dots_and_stays_a_text():
    assert FILTERS["breakable"]("a.b_c") == "a.<wbr>b_<wbr>c"
    assert FILTERS["breakable"]("<i>.x.") == "&lt;i&gt;.<wbr>x."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"day": "2026-03-01", "hour": 7}', "day=2026-03-01, hour=7"), ('{"day": null}', "day=null"),
        ("[1]", "[1]"), ("no json", "no json"), (None, ""),
    ],
)  # fmt: skip
def test_a_partition_in_words(text, words):
    assert FILTERS["partition"](text) == words


def test_an_attribute_is_sent_back_as_it_is():
    text = "a\x1b[31m\r\n\"'<&>\u202e é"
    page = FILTERS["attribute"](text)
    assert page.isascii() is False and page.isprintable() and "<" not in page and '"' not in page
    assert html.unescape(page.replace("&#27;", "\x1b").replace("&#13;", "\r")) == text


def test_a_moment_is_short_in_a_list_and_whole_in_its_title():
    row = {"min": "2026-03-01T00:00:01.50706Z", "min_is_exact": False, "logical_type": "TIMESTAMPTZ", "quantiles": {}}
    assert FILTERS["least"](row, True) == (
        '<span title="2026-03-01T00:00:01.50706Z">≥ 2026-03-01 00:00:01</span>'
    )  # fmt: skip
    assert FILTERS["least"](row) == "≥ 2026-03-01T00:00:01.50706Z"
    hostile = row | {"min": '"><script>', "logical_type": "TIME"}
    assert "<script>" not in FILTERS["least"](hostile, True)
    assert FILTERS["quantile"](row, 0.5, True) == ""
    assert FILTERS["least"](row | {"logical_type": "STRING", "min": "1T:00.5"}, True) == "≥ 1T:00.5"


def test_counts_that_are_mostly_error_are_no_common_values():
    rows = [
        {"value": value, "count": 100, "count_lower": lower, "count_upper": 100}
        for value, lower in (("exact", 100), ("half", 50), ("noise", 49), ("unknown", None))
    ]
    assert [row["value"] for row in data._most_common(rows)] == ["exact", "half", "unknown"]


@pytest.mark.parametrize(("width", "labels"), [(560, 3), (340, 2)])
def test_labels_of_an_axis_do_not_run_into_each_other(width, labels):
    start = position("2026-03-01T00:00:00", "TIMESTAMP")
    bars = [Bar(start + hour * 3600, start + (hour + 1) * 3600, 5.0) for hour in range(30)]
    drawn = charts.histogram(bars, "TIMESTAMP", "x", width, 130)
    assert len(re.findall(r"<text[^>]*>2026-", drawn)) == labels


def test_a_changed_style_sheet_has_another_address():
    page = render.page("message.html", url=LiveUrls(), title="t", message="m")
    assert re.search(r'href="/style\.css\?[0-9a-f]{12}"', page)
