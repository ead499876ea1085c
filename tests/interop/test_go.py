"""Programs in Go with arrow-go: the block of CLIENTS.md, and the calls of Grafana's data source."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.interop.clients import HERE, block, served
from tests.interop.go_programs import built

pytestmark = pytest.mark.interop


def output(program: Path, uri: str) -> str:
    """What a program prints about the server at an address."""
    done = subprocess.run(
        [program], env=os.environ | {"STATFLIGHT_SERVER": uri}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_go_programs_print_the_expected_rows(tmp_path: Path) -> None:
    document = built(tmp_path / "document", block("go"))
    grafana = built(tmp_path / "grafana", (HERE / "grafana.go").read_text(encoding="utf-8"))
    (tmp_path / "server").mkdir()
    with served(tmp_path / "server") as server:
        printed = output(document, server.uri)
        assert '["id" "region"]' in printed and "[1000 3]" in printed
        lines = output(grafana, server.uri).splitlines()
    results = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert results["select 1"] == "1 [1]"
    assert [value.split()[0] for name, value in results.items() if "stats_all" in name] == ["1", "1"], results
    assert "[UNKNOWN_COLUMN]" in results["SELECT nothing FROM stats.columns"]
    assert int(results["tables"].split()[0]) > 40 and results["columns"].split()[0] == "2"
    assert int(results["info"].split()[0]) > 80 and results["prepared"] == "1 [1000]"
