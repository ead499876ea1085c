"""The example of capture/ADDING_A_CONNECTOR.md, installed by its steps, passes the connector contract."""

from __future__ import annotations

import configparser
import contextlib
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

from capture import connectors
from capture.compute.readers import tasks
from capture.connectors.spi import ConnectorConfig, ScanTask
from capture.spi import Outcome
from capture.store_sink import LocalStore
from flight_server.core.actions import functions
from flight_server.core.app import App
from flight_server.core.config import Settings
from flight_server.planning.plan_request import find
from flight_server.planning.scan_plan import TABLE
from flight_server.process.parts import parts
from store.model.errors import UpstreamError

GUIDE = Path(__file__).resolve().parents[2] / "capture/ADDING_A_CONNECTOR.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
CODE = [text for language, text in BLOCKS if language == "python"]
assert len(CODE) == 5, "the connector, its statistics, its scan, the same of other files, its test"
SETTINGS = [tomllib.loads(text) for language, text in BLOCKS if language == "toml"]
GROUPS = (connectors.FORMATS, connectors.READERS)


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The example as a distribution installs it: a module, and entry points in its metadata."""
    lines = [
        line
        for settings in SETTINGS
        for group, points in settings["project"]["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (module,) = {line.split(" = ")[1].partition(":")[0] for line in lines if " = " in line}
    parts = configparser.ConfigParser(strict=False)
    parts.read_string("\n".join(lines))
    with TemporaryDirectory() as folder:
        Path(folder, f"{module}.py").write_text("".join(CODE[:4]), encoding="utf-8")
        metadata = Path(folder, "toy_pointed-1.0.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-pointed\nVersion: 1.0\n")
        with (metadata / "entry_points.txt").open("w") as points:
            parts.write(points)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        for group in GROUPS:
            vars(group).pop("known", None)
        try:
            yield
        finally:
            sys.path.remove(folder)
            sys.modules.pop(module, None)
            for group in GROUPS:
                vars(group).pop("known", None)


exec(compile(CODE[4], str(GUIDE), "exec"))


@pytest.fixture
def arrow_lake(tmp_path):
    """A table of an Arrow file, whose format and reader are those of the example."""
    rows = pa.table({"id": [*range(1000), None], "word": [f"w{i % 10}" for i in range(1001)]})
    (tmp_path / "lake/t").mkdir(parents=True)
    with pa.ipc.new_file(tmp_path / "lake/t/7.arrow", rows.schema) as file:
        file.write_table(rows)
    (tmp_path / "lake/t/LATEST").write_text("7.arrow")
    return ConnectorConfig("lake", "pointed-arrow", str(tmp_path / "lake"))


def test_files_of_the_example_that_are_not_parquet_are_captured_and_their_scans_planned(arrow_lake, tmp_path):
    path = tmp_path / "stats.duckdb"
    connector = connectors.open_connector(arrow_lake)
    assert (connector.list_namespaces(), connector.list_tables("default")) == (["default"], ["t"])
    with LocalStore(path) as store:
        results = store.capture(connector, "lake", "default", "t")
        assert [result.outcome for result in results] == [Outcome.CAPTURED] * 3
        rows = {row["column_name"]: row for row in store.read("stats.columns", "lake.default.t").to_pylist()}
        found = ("row_count", "null_count", "min", "max", "ndv")
        assert [rows["id"][name] for name in found] == [1001, 1, "0", "999", pytest.approx(1000, rel=0.05)]
        assert [rows["word"][name] for name in found] == [1001, 0, "w0", "w9", 10]
    with contextlib.closing(App(Settings(db=path), functions, parts=parts)) as app:
        for where, kept in (("id = 1000", 0), ("id > 998", 1), ("word IS NULL", 0), ("id >= 0 OR id IS NULL", 1)):
            request = find(json.dumps({"scan": "lake.default.t", "where": where}).encode())
            plan = app.parts["planning"].planner.plan(app.catalog.get("lake.default.t"), request.node, None, "current")
            assert plan.files.num_rows == kept, where
            facts = json.loads(plan.files.schema.metadata[TABLE])["facts"]
            assert not (facts["plain_parquet"] or facts["merges_rows"]), "clients read them by no reader of Parquet"


def test_a_reader_that_is_not_installed_is_named():
    task = ScanTask("nothing", "f", "f", 1, 1, (), "")
    with pytest.raises(UpstreamError, match=r'file "f": .*"nothing" is not a reader; expected one of .*pointed-arrow'):
        tasks.open_task(task)


def test_guide_has_five_numbered_steps():
    assert re.findall(r"(?m)^## (\d) ", GUIDE.read_text(encoding="utf-8")) == ["1", "2", "3", "4", "5"]


def test_files_named_in_the_guide_exist():
    text = GUIDE.read_text(encoding="utf-8")
    root = GUIDE.parents[1]
    homes = [root, root / "capture", root / "capture/connectors", root / "tests/integration", root / "store"]
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    missing = [name for name in named if name != "paimon.py" and not any((home / name).exists() for home in homes)]
    assert not missing
