"""Programs in Go with arrow-go: the block of CLIENTS.md, and the calls of Grafana's data source."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.clients import HERE, block, served
from tests.interop.processes import require

pytestmark = pytest.mark.interop


def go(directory: Path, source: str, uri: str) -> str:
    """The output of a program; modules come from the Go module proxy, at the versions of go.sum."""
    directory.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / name, directory)
    (directory / "main.go").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [require("go"), "run", "."],
        cwd=directory,
        env=os.environ | {"STATFLIGHT_SERVER": uri},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_go_programs_print_the_expected_rows(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with served(tmp_path / "server") as server:
        output = go(tmp_path / "document", block("go"), server.uri)
        assert '["id" "region"]' in output and "[1000 3]" in output
        results = dict(
            line.split(": ", 1)
            for line in go(
                tmp_path / "grafana", (HERE / "grafana.go").read_text(encoding="utf-8"), server.uri
            ).splitlines()
            if ": " in line
        )
    assert results["select 1"] == "1 [1]"
    assert [value.split()[0] for name, value in results.items() if "stats_all" in name] == ["1", "1"], results
    assert "[UNKNOWN_COLUMN]" in results["SELECT nothing FROM stats.columns"]
    assert int(results["tables"].split()[0]) > 40 and results["columns"].split()[0] == "2"
    assert int(results["info"].split()[0]) > 80 and results["prepared"] == "1 [1000]"
