"""The example of capture/ADDING_AN_ENGINE.md, installed by its steps, passes the engine contract."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "capture/ADDING_AN_ENGINE.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
CODE = [text for language, text in BLOCKS if language == "python"]
assert len(CODE) == 5, "the engine in four steps, its test"
(SETTINGS,) = (tomllib.loads(text) for language, text in BLOCKS if language == "toml")


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The example as a distribution installs it: a module, and an entry point in its metadata."""
    ((group, points),) = SETTINGS["project"]["entry-points"].items()
    ((name, target),) = points.items()
    module = target.partition(":")[0]
    with TemporaryDirectory() as folder:
        Path(folder, f"{module}.py").write_text("".join(CODE[:4]), encoding="utf-8")
        metadata = Path(folder, "toy_engine-1.0.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(folder)
            sys.modules.pop(module, None)


exec(compile(CODE[4], str(GUIDE), "exec"))


def test_guide_has_five_numbered_steps():
    assert re.findall(r"(?m)^## (\d) ", GUIDE.read_text(encoding="utf-8")) == ["1", "2", "3", "4", "5"]
