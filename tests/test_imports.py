"""Directions of imports between storeys and rooms, no circles, and how little the client needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.sources import ROOT, STOREYS, parsed

HEAVY = ("duckdb", "pyiceberg", "deltalake", "lance", "pyspark", "datasketches")


def imported(file: Path) -> set[str]:
    """The top packages a file imports anywhere, inside of functions too."""
    names: set[str] = set()
    for node in ast.walk(parsed(file)):
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


# Rooms of flight_server. A room may import itself and those named here; files that lie flat are rooms by their name.
BASE = {"config"}
REQUESTS = BASE | {"wire", "conditions", "auth"}
DATA = REQUESTS | {"reads", "writes"}
APP = DATA | {"checks", "control", "app"}
ROOMS = {
    "config": set(),
    "conditions": BASE,
    "wire": BASE | {"conditions"},
    "auth": BASE | {"wire"},  # the handshake answers with a status
    "reads": REQUESTS,
    "writes": REQUESTS,
    "control": DATA | {"checks"},
    "client": {"conditions"},
    "worker": REQUESTS | {"client"},
    "app": APP,
    "actions": APP,
    "sql": APP,
    "flight_service": APP | {"actions", "sql", "process"},  # process: the audit log
    "process": APP | {"actions", "sql", "web", "worker", "flight_service"},
}


def modules() -> dict[str, Path]:
    """Module name → file, of all three storeys."""
    found = {}
    for storey in STOREYS:
        for file in (ROOT / storey).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if "public" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def edges(file: Path, known: Collection[str], *, for_types: bool) -> set[str]:
    """The modules of the project that a file imports, inside of functions too, and for types alone where told."""
    tree = parsed(file)
    left_out = (
        set()
        if for_types
        else {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
            for statement in block.body
            for node in ast.walk(statement)
        }
    )
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & set(known)) or {node.module}
    return found & set(known)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    files = modules()
    return {name: edges(file, files, for_types=False) - {name} for name, file in files.items()}


def room(module: str) -> str:
    return module.split(".")[1]


def test_a_room_imports_only_those_below_it(graph):
    climbs = {
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if name.startswith("flight_server.") and other.startswith("flight_server.")
        if room(name) in ROOMS and room(other) not in ROOMS[room(name)] | {room(name)}
    }
    assert climbs == set()


def test_the_rooms_that_are_held_exist(graph):
    assert set(ROOMS) <= {room(name) for name in graph if name.startswith("flight_server.")}


def test_no_modules_import_each_other_in_a_circle():
    """Strikes off, again and again, what imports nothing that is left: what stays is in a circle, or leads to one."""
    files = modules()
    left = {name: edges(file, files, for_types=True) - {name} for name, file in files.items()}
    while free := {name for name, others in left.items() if not others}:
        left = {name: others - free for name, others in left.items() if name not in free}
    assert left == {}


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
