"""The example of capture/ADDING_AN_ENGINE.md, installed by its steps, passes the engine contract."""

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

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.engines import default_engines
from capture.spi import TableHandle
from store.model.targets import Target
from tests.capture.engine_contract import EngineContract, MemorySink

GUIDE = Path(__file__).resolve().parents[2] / "capture/ADDING_AN_ENGINE.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
CODE = [text for language, text in BLOCKS if language == "python"]
assert len(CODE) == 5, "the engine in four steps, its test"
(SETTINGS,) = (tomllib.loads(text) for language, text in BLOCKS if language == "toml")
NEEDED = (EngineContract, MemorySink, Target, default_engines)  # names the last block uses


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


@pytest.fixture
def lake(tmp_path):
    """A table of 30 rows in three Parquet files."""
    (tmp_path / "t").mkdir()
    for number in range(3):
        pq.write_table(pa.table({"a": range(10)}), tmp_path / f"t/{number}.parquet")
    connector = open_connector(ConnectorConfig("c", "parquet", str(tmp_path)))
    snapshot = connector.enumerate_snapshots("default", "t").current_snapshot_id
    schema = connector.describe("default", "t").schema
    yield TableHandle("c", "default", "t", "id", snapshot, schema, {"a": 1}, connector)
    connector.close()


exec(compile(CODE[4], str(GUIDE), "exec"))


def test_guide_has_five_numbered_steps():
    assert re.findall(r"(?m)^## (\d) ", GUIDE.read_text(encoding="utf-8")) == ["1", "2", "3", "4", "5"]
