"""The documentation's site: its pages exist, and the generated reference has everything."""

from __future__ import annotations

import dataclasses
import re

from flight_server.cli import app
from flight_server.core.config import Settings
from flight_server.guides import site
from flight_server.guides.error_codes import error_codes
from flight_server.process.parts import actions
from flight_server.process.settings import declared
from store.model.schemas import FLIGHTS

ACTIONS = actions()

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
    assert headings(site.commands()) == set(app.list_commands(None))
    assert headings(site.flights()) == set(FLIGHTS)
    assert first_cells(site.actions()) == set(ACTIONS)
    assert first_cells(site.settings()) == {field.name for field in dataclasses.fields(Settings)} - {"of_parts"} | set(
        declared()
    )
    assert first_cells(site.errors()) == set(error_codes())
    assert "statflight_requests_total" in site.metrics()


def test_only_links_to_pages_stay():
    text = "[a](b.md#c) [d](../e.py) ![f](g.png) [h](https://i) [j](#k)\n```text shown\n[l](m.py)\n```\n"
    assert site.for_mkdocs(text) == text.replace("[d](../e.py)", "d").replace(" shown", "")


def test_codes_are_found_in_classes_and_where_errors_are_raised():
    found = error_codes()
    assert {"NOT_FOUND", "READ_ONLY", "LAGGING", "BAD_LITERAL", "NO_WORKER", "UPSTREAM_PERMANENT"} <= set(found)
    assert (found["LISTING_CHANGED"].status, found["LISTING_CHANGED"].retry) == ("UNAVAILABLE", "yes")
    assert (found["UNKNOWN_TABLE"].status, found["UNKNOWN_TABLE"].retry) == ("NOT_FOUND", "no")
    assert found["UPSTREAM"].retry == "as the error says"


def test_troubleshooting_has_each_code_with_its_status():
    """Add a section, or change the line below the heading, where this fails."""
    page = (site.ROOT / "flight_server/guides/troubleshooting.md").read_text()
    sections = re.findall(r"^### `(\w+)`\n\n\*(.*)\*\n\n\S", page, re.MULTILINE)
    expected = {name: f"{code.status}; another try may help: {code.retry}" for name, code in error_codes().items()}
    assert dict(sections) == expected and len(sections) == len(expected)


def test_versions_of_the_page_on_compatibility_are_those_of_the_tests():
    page = (site.ROOT / "flight_server/guides/compatibility.md").read_text()
    pinned = (site.ROOT / ".ci/constraints.txt").read_text()
    project = (site.ROOT / "pyproject.toml").read_text()
    for name, tested, least in re.findall(r"^\| ([\w-]+) \| ([\d., ]+) \| ([\d.]+) \|", page, re.MULTILINE):
        assert set(re.findall(rf"^{name}==([\d.]+)", pinned, re.MULTILINE)) == set(tested.split(", ")), name
        assert re.search(rf'"{name}(?:\[[\w-]+\])?>={re.escape(least)}\b', project), name
