"""Plug-ins of other packages: one that cannot be loaded is named once, and disturbs nothing else."""

from __future__ import annotations

import logging
import sys

import pytest

from capture.engines import ENGINES, default_engines, described, supporting
from capture.spec import CaptureSpec
from flight_server.faces.present.doctor import plugins as findings
from store.model.errors import InvalidArgument
from store.model.targets import Target
from store.plugins import Broken, Plugins

OUT_OF_ORDER = {
    "not there": None,
    "raises": "raise RuntimeError('out of order')",
    "exits": "raise SystemExit(3)",
    "does not parse": "def",
    "lacks a library": "import no_such_library",
    "lacks the class": "x = 1",
}
MADE = {
    "raises when made": "class Plugin:\n    def __init__(self):\n        raise ValueError('out of order')",
    "is no engine": "class Plugin:\n    pass",
    "has no priority": "class Plugin:\n    id, priority, capabilities = 'x', None, None",
}
GOOD = """
from capture.spi import Capabilities, CaptureEngine
class Plugin(CaptureEngine):
    id, priority, capabilities = "goodengine", 50, Capabilities({})
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with one entry point of a group, for the test."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = set()

    def install(group: str, code: str | None, name: str = "outoforder") -> None:
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}:Plugin\n")
        if code is not None:
            (tmp_path / f"{name}.py").write_text(f"{code}\n")
        modules.add(name)

    yield install
    for name in modules:
        sys.modules.pop(name, None)
    ENGINES.broken.clear()


def of(code_points: dict[str, str | None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("code", code_points.values(), ids=code_points)


@of(OUT_OF_ORDER | MADE)
def test_an_engine_that_cannot_be_made_is_left_out_and_named_once(install, caplog, code):
    install("statflight.engines", code)
    install("statflight.engines", GOOD, "goodengine")
    with caplog.at_level(logging.ERROR, "statflight.plugins"):
        default_engines()
        made = default_engines()
    assert {engine.id for engine in made} == {"spark", "native", "goodengine"}
    (said,) = caplog.messages
    assert said.startswith('the engine "outoforder" of the package outoforder 1.0 cannot be loaded: ')
    rows = {row["engine_id"]: row.get("error") for row in described(made)}
    assert rows == {"spark": None, "local": None, "native": None, "goodengine": None, "outoforder": said}
    able = {row["engine_id"] for row in supporting(described(made), "parquet", CaptureSpec(Target.table()))}
    assert {"native"} <= able <= rows.keys() - {"outoforder"}


@of(OUT_OF_ORDER)
def test_another_kind_is_refused_with_its_package_and_the_reason(install, caplog, code):
    install("statflight.tests", code)
    kind = Plugins("statflight.tests", "format", "format", {"json": "json:loads"})
    with caplog.at_level(logging.ERROR, "statflight.plugins"):
        for _ in range(2):
            with pytest.raises(InvalidArgument, match=r'^format: the format "outoforder" of the package outofor'):
                kind.load("outoforder")
    assert len(caplog.messages) == 1 and set(kind.broken) == {"outoforder"}
    assert kind.load("json")("1") == 1


def test_a_plugin_that_is_mended_is_broken_no_longer(install, tmp_path):
    install("statflight.tests", "import no_such_library")
    kind = Plugins("statflight.tests", "format", "format", {})
    ((_, broken),) = kind.each()
    assert isinstance(broken, Broken) and "no_such_library" in broken.reason
    (tmp_path / "outoforder.py").write_text("Plugin = 3  # of another length\n")
    assert kind.load("outoforder") == 3 and not kind.broken


def test_a_signal_of_the_user_is_not_the_plugins_fault(install):
    install("statflight.tests", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        Plugins("statflight.tests", "format", "format", {}).load("outoforder")


def test_built_in_names_take_precedence(install):
    install("statflight.tests", "raise RuntimeError", "json")
    kind = Plugins("statflight.tests", "format", "format", {"json": "json:loads"})
    assert kind.load("json")("1") == 1 and list(kind.each()) == []


@pytest.mark.parametrize(
    "group", ["engines", "connectors", "readers", "publishers", "stores", "parts", "settings", "commands"]
)
def test_doctor_tells_of_each_plugin(install, group):
    install(f"statflight.{group}", "import no_such_library")
    install(f"statflight.{group}", GOOD, "goodengine")
    found = {finding.state: finding for finding in findings()}
    assert "outoforder 1.0" in found["broken"].detail and "no_such_library" in found["broken"].detail
    assert found["broken"].what == found["ok"].what and found["ok"].detail == "goodengine of goodengine 1.0"
