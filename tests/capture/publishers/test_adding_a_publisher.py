"""The example of `capture/ADDING_A_PUBLISHER.md`, assembled from its blocks, passes the contract."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import capture
from capture.homes import HOMES
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import PublisherContract, Table, rows

DOCUMENT = (Path(capture.__file__).parent / "ADDING_A_PUBLISHER.md").read_text()


@pytest.fixture
def note(monkeypatch):
    """The home `note`, registered as an entry point would."""
    *blocks, _ = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.M | re.S)  # the last is its tests
    module = type("Module", (), {})
    space: dict = {"__name__": "note_publisher"}
    exec(compile("\n".join(blocks), "ADDING_A_PUBLISHER.md", "exec"), space)
    module.NotePublisher = space["NotePublisher"]
    monkeypatch.setitem(__import__("sys").modules, "note_publisher", module)
    value = re.search(r'^note = "(.*)"$', DOCUMENT, re.M)[1]
    monkeypatch.setitem(vars(HOMES), "known", {"note": EntryPoint("note", value, HOMES.group)})


class TestContract(PublisherContract):
    takes_counts = False

    @pytest.fixture
    def table(self, tmp_path: Path, note) -> Table:
        return parquet_tables.built("note", tmp_path, rows(0, 150))

    def build(self, root: Path) -> Table:
        raise AssertionError("the fixture builds it")

    append = staticmethod(parquet_tables.append)
    count = staticmethod(parquet_tables.count)


def test_guide_has_five_numbered_steps():
    assert re.findall(r"^## (\d)", DOCUMENT, re.M) == list("12345")
