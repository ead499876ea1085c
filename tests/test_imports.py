"""The house's one direction, store ← capture ← flight_server, and how little the client needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STOREYS = ("store", "capture", "flight_server")  # each may import itself and those before it
HEAVY = ("duckdb", "pyiceberg", "deltalake", "lance", "pyspark", "datasketches")


def imported(file: Path) -> set[str]:
    """The top packages a file imports anywhere, inside of functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
        elif isinstance(node, ast.ImportFrom) and node.level:
            names.add(file.relative_to(ROOT).parts[0])
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("place", range(len(STOREYS)), ids=STOREYS)
def test_a_storey_never_imports_a_higher_one(place):
    files = list((ROOT / STOREYS[place]).rglob("*.py"))
    assert files
    climbs = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if name in STOREYS[place + 1 :]
    }
    assert not climbs


def loaded_by(module: str, *packages: str) -> set[str]:
    code = f"import sys, {module}; print(*({set(packages)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["statflight", "flight_server.client"])
def test_the_client_needs_pyarrow_only(module):
    beside = ("typer", "rich", "pydantic", "sqlglot", "google.protobuf", "store", "capture", "pandas")
    assert not loaded_by(module, *HEAVY, *beside)


def test_the_command_line_starts_light():
    assert not loaded_by(
        "flight_server.cli", *HEAVY, "pyarrow", "numpy", "rich", "sqlglot", "flight_server.process.serve"
    )
