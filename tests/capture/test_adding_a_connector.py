"""The example of capture/ADDING_A_CONNECTOR.md, installed by its steps, passes the connector contract."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture import connectors
from capture.connectors.spi import ConnectorConfig
from tests.capture.connectors.contract import ConnectorContract, Truth

GUIDE = Path(__file__).resolve().parents[2] / "capture/ADDING_A_CONNECTOR.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
CODE = [text for language, text in BLOCKS if language == "python"]
assert len(CODE) == 4, "the connector, its statistics, its scan, its test"
(SETTINGS,) = (tomllib.loads(text) for language, text in BLOCKS if language == "toml")
NEEDED = (ConnectorConfig, ConnectorContract, Truth, pa, pq)  # names the last block uses


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The example as a distribution installs it: a module, and an entry point in its metadata."""
    ((format, target),) = SETTINGS["project"]["entry-points"][connectors.FORMATS.group].items()
    module = target.partition(":")[0]
    with TemporaryDirectory() as folder:
        Path(folder, f"{module}.py").write_text("".join(CODE[:3]), encoding="utf-8")
        metadata = Path(folder, "toy_pointed-1.0.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-pointed\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{connectors.FORMATS.group}]\n{format} = {target}\n")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        vars(connectors.FORMATS).pop("known", None)
        try:
            yield
        finally:
            sys.path.remove(folder)
            sys.modules.pop(module, None)
            vars(connectors.FORMATS).pop("known", None)


exec(compile(CODE[3], str(GUIDE), "exec"))


def test_guide_has_five_numbered_steps():
    assert re.findall(r"(?m)^## (\d) ", GUIDE.read_text(encoding="utf-8")) == ["1", "2", "3", "4", "5"]


def test_files_named_in_the_guide_exist():
    text = GUIDE.read_text(encoding="utf-8")
    root = GUIDE.parents[1]
    homes = [root, root / "capture", root / "capture/connectors", root / "tests/integration", root / "store"]
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    missing = [name for name in named if name != "paimon.py" and not any((home / name).exists() for home in homes)]
    assert not missing
