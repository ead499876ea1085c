"""Programs in Go with arrow-go: the block of the document, and the calls of Grafana's data source."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.clients import HERE, block, require, served

pytestmark = pytest.mark.interop


def go(directory: Path, source: str, uri: str) -> str:
    """The output of a program; modules come from the Go module proxy, at the versions of go.sum."""
    directory.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / name, directory)
    (directory / "main.go").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [require("go"), "run", "."], cwd=directory, env=os.environ | {"STATFLIGHT_SERVER": uri}, capture_output=True,
        text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_programs(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with served(tmp_path / "server") as server:
        shown = go(tmp_path / "document", block("go"), server.uri)
        assert '["id" "region"]' in shown and "[1000 3]" in shown
        said = dict(line.split(": ", 1) for line in go(
            tmp_path / "grafana", (HERE / "grafana.go").read_text(encoding="utf-8"), server.uri
        ).splitlines() if ": " in line)  # fmt: skip
    assert said["select 1"] == "1 [1]"
    assert [value.split()[0] for name, value in said.items() if "stats_all" in name] == ["1", "1"], said
    assert "[UNKNOWN_COLUMN]" in said["SELECT nothing FROM stats.columns"]
    assert int(said["tables"].split()[0]) > 40 and said["columns"].split()[0] == "2"
    assert int(said["info"].split()[0]) > 80 and said["prepared"] == "1 [1000]"
