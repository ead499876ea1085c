"""The documentation's site: its pages exist, and the generated reference has everything."""

from __future__ import annotations

import dataclasses
import re

from flight_server.cli import COMMANDS
from flight_server.core.actions import ACTIONS
from flight_server.core.config import Settings
from flight_server.guides import site
from store.model.schemas import FLIGHTS

NAV = re.findall(r"^ +- [^:]+: (\S+\.md)$", (site.ROOT / "flight_server/guides/mkdocs.yml").read_text(), re.MULTILINE)


def headings(page: str) -> set[str]:
    return {name.removeprefix("statflight ") for name in re.findall(r"^## `(.+)`$", page, re.MULTILINE)}


def first_cells(page: str) -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))


def test_navigation_names_pages_that_exist():
    assert set(NAV) <= {*site.sources(), *site.REFERENCE}
    assert set(site.REFERENCE) <= set(NAV)
    assert {path for path in site.sources() if path.startswith("flight_server/guides/")} - set(NAV) == {
        "flight_server/guides/README.md"
    }


def test_reference_is_complete():
    assert headings(site.commands()) == set(COMMANDS)
    assert headings(site.flights()) == set(FLIGHTS)
    assert first_cells(site.actions()) == set(ACTIONS)
    assert first_cells(site.settings()) == {field.name for field in dataclasses.fields(Settings)}
    assert {"NOT_FOUND", "READ_ONLY", "LAGGING", "RESOURCE_EXHAUSTED"} <= first_cells(site.errors())
    assert "statflight_requests_total" in site.metrics()


def test_only_links_to_pages_stay():
    text = "[a](b.md#c) [d](../e.py) ![f](g.png) [h](https://i) [j](#k)\n```text shown\n[l](m.py)\n```\n"
    assert site.for_mkdocs(text) == text.replace("[d](../e.py)", "d").replace(" shown", "")
