"""Directions of imports between packages and their rooms, import cycles, the modules that the clients import, that no
file of the core names a format, and that few files list statistics."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from store.model.statistics import SCALARS
from tests.sources import PACKAGES, ROOT, parsed, statements

HEAVY = ("duckdb", "pyiceberg", "deltalake", "lance", "pyspark", "datasketches")


def imported(file: Path) -> set[str]:
    """The top-level packages that a file imports, inside functions too."""
    names: set[str] = set()
    for node in statements(parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
        elif isinstance(node, ast.ImportFrom) and node.level:
            names.add(file.relative_to(ROOT).parts[0])
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("level", range(len(PACKAGES)), ids=PACKAGES)
def test_package_imports_no_higher_package(level):
    files = list((ROOT / PACKAGES[level]).rglob("*.py"))
    assert files
    violations = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if name in PACKAGES[level + 1 :]
    }
    assert not violations


# Rooms of each package, its subpackages and modules: each may import itself and the rooms named here.
HISTORY = {"model", "duckdb", "history"}
SPEC = {"spec"}
READING = {"connectors", "flight_rows", "spi"}
ROOMS = {
    "store": {
        "model": set(),
        "places": {"model"},
        "duckdb": {"model", "places"},
        "history": {"model", "duckdb"},
        "catalog": HISTORY,
        "queue": {"model", "duckdb"},
        "role": {"model", "duckdb"},
        "replication": {"model", "duckdb", "places", "role"},
        "postgres": HISTORY | {"catalog", "role", "stats_store"},
        "plugins": {"model"},
        "stores": {"model", "plugins"},
        "invariants": HISTORY | {"queue"},
        "staged_listings": HISTORY | {"catalog"},
        "transfer": HISTORY | {"catalog"},
        "segment_listings": HISTORY | {"staged_listings"},
        "segment_making": HISTORY | {"segment_listings"},
        "segment_merging": {"duckdb", "segment_listings"},
        "merging": HISTORY | {"catalog"},
        "records": HISTORY | {"catalog", "stores"},
        "stats_store": HISTORY
        | {"catalog", "merging", "records", "role", "segment_merging", "staged_listings", "stores"},
        "write_through": HISTORY | {"catalog", "records", "stats_store", "stores"},
    },
    "capture": {
        "connectors": set(),
        "flight_rows": set(),
        "policy": set(),
        "spec": set(),
        "spec_body": SPEC,
        "spi": {"connectors"} | SPEC,
        "compute": READING | SPEC,
        "cluster": {"compute", "connectors"},
        "partitions": READING | SPEC,
        "spark": READING | {"cluster", "compute"},
        "engines": READING | SPEC | {"cluster", "compute", "partitions"},
        "homes": {"connectors"},  # publishers only once one is needed
        "publishers": {"compute", "connectors", "homes", "spark"},
        "registry": {"spi"},
        "orchestrator": {"spi"} | SPEC,
        "inspection": {"connectors"},
        "store_sink": {"connectors", "engines", "inspection", "registry", "spi"},
    },
    "flight_server": {
        "deploy": set(),
        "guides": {"cli", "core", "process"},  # makes the reference of the documentation
        "client": set(),
        "core": {"client"},
        "planning": {"client", "core"},
        "insight": {"client", "core"},
        "publishing": {"client", "core"},
        "worker": {"client", "core"},
        "process": {"client", "core", "worker"},  # it names the parts, and imports none
        "faces": {"client", "core", "insight", "planning", "process", "publishing", "worker"},
        "cli": {"client", "faces", "process"},  # process: what each process sets
    },
}


def modules() -> dict[str, Path]:
    """Module name → file, of all three packages."""
    found = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if "public" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def edges(file: Path, project_modules: Collection[str], *, for_types: bool) -> set[str]:
    """The project modules that a file imports, inside functions too; `for_types` includes type-checking imports."""
    tree = parsed(file)
    left_out = (
        set()
        if for_types
        else {
            id(node)
            for block in statements(tree)
            if isinstance(block, ast.If) and getattr(block.test, "id", None) == "TYPE_CHECKING"
            for statement in block.body
            for node in statements(statement)
        }
    )
    found, names = set[str](), set(project_modules)
    for node in statements(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & names) or {node.module}
    return found & names


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    files = modules()
    return {name: edges(file, files, for_types=False) - {name} for name, file in files.items()}


def room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


@pytest.mark.parametrize("package", ROOMS)
def test_room_imports_only_the_rooms_it_may(graph, package):
    rooms = ROOMS[package]
    violations = {
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if name.startswith(f"{package}.") and other.startswith(f"{package}.")
        if room(name) in rooms and room(other) not in rooms[room(name)] | {room(name)}
    }
    assert violations == set()


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_import_rules(graph, package):
    assert {room(name) for name in graph if name.startswith(f"{package}.")} == set(ROOMS[package])


def test_modules_have_no_import_cycle():
    """Removes modules without remaining imports until there are none: the rest are in a cycle or lead to one."""
    files = modules()
    left = {name: edges(file, files, for_types=True) - {name} for name, file in files.items()}
    while free := {name for name, others in left.items() if not others}:
        left = {name: others - free for name, others in left.items() if name not in free}
    assert left == {}


PARTS = (
    "flight_server.faces",
    "flight_server.insight",
    "flight_server.planning",
    "flight_server.publishing",
    "store.postgres",
    "store.replication",
    "store.write_through",
    "capture.engines.native",
    "capture.publishers",
    "capture.spark",
    *(f"capture.connectors.{name}" for name in ("delta", "hudi", "iceberg", "lance", "paimon")),
)
ABOVE = (  # put the parts together
    "flight_server.process",
    "flight_server.cli",
    "flight_server.guides",
)


def within(module: str, rooms: Collection[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_core_imports_no_part(graph):
    """What can be taken away is imported by what is put together with it, or by itself; types too."""
    named = {
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if not within(name, PARTS + ABOVE) and within(other, PARTS)
    }
    assert named == set()


def test_server_is_put_together_of_few_rooms(graph):
    """Bars, which only go down: rooms, and arrows between them."""
    arrows = {
        (room(name), room(other))
        for name, others in graph.items()
        for other in others
        if name.startswith("flight_server.") and other.startswith("flight_server.") and room(name) != room(other)
    }
    assert len(ROOMS["flight_server"]) <= 11 and len(arrows) <= 23


def test_no_module_knows_many_others(graph):
    """A module that imports many does several things; `app` is where the server is put together."""
    most = {"flight_server.core.app": 20}
    knows = {name: len(others) for name, others in graph.items() if len(others) > most.get(name, 18)}
    assert knows == {}


FORMATS = ("delta", "hudi", "iceberg", "lance", "paimon")
NAMES_FORMATS = (
    *(f"capture/connectors/{name}/" for name in FORMATS),
    "capture/connectors/__init__.py",  # registry of connectors and of readers of their files
    "capture/homes.py",  # registry of publishers
    "capture/publishers/",
    "flight_server/client/lake_readers/",  # registry of the libraries that read each
    "flight_server/faces/present/demo.py",  # makes a lake of each format
    "flight_server/faces/present/doctor.py",  # names the libraries of each
    "flight_server/faces/present/reader_code.py",  # writes calls of the engines' own readers
    "flight_server/faces/web/engines.py",  # writes what to paste into engines, which differs by format
)


def test_core_names_no_format():
    """It goes by facts that connectors state (`store.model.format_facts`)."""
    named = {
        f"{file.relative_to(ROOT)}:{node.lineno} {node.value}"
        for file in modules().values()
        if not str(file.relative_to(ROOT)).startswith(NAMES_FORMATS)
        if any(f'"{name}"' in file.read_text(encoding="utf-8") for name in FORMATS)  # walking all trees takes seconds
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Constant) and node.value in FORMATS
    }
    assert named == set()


LISTING: Final = 4  # statistics that a file names, from which on it lists them


def statistics_in(file: Path) -> set[str]:
    """The statistics that a file names by texts, attributes and keywords; docstrings do not count."""
    names = {statistic.name for statistic in SCALARS}
    words = names - {"min", "max"}  # which are functions, too
    found = set[str]()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & names
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & words
        elif isinstance(node, ast.keyword) and node.arg is not None:
            found |= {node.arg} & words
    return found


def test_few_files_list_statistics():
    """A bar, which only goes down: others loop over the table `store.model.statistics`."""
    listing = {name for name, file in modules().items() if len(statistics_in(file)) >= LISTING}
    assert "store.model.statistics" in listing and len(listing) <= 14, sorted(listing)


def loaded_by(module: str, *packages: str) -> set[str]:
    code = f"import sys, {module}; print(*({set(packages)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["statflight", "flight_server.client"])
def test_client_import_loads_no_server_code_and_no_extra_library(module):
    others = ("click", "rich", "pydantic", "sqlglot", "google.protobuf", "msgspec", "store", "capture", "pandas")
    assert not loaded_by(module, *HEAVY, *others)


def test_reading_conditions_and_tasks_of_spark_needs_no_schema_library():
    assert not loaded_by(
        "flight_server.client.dataset, flight_server.client.spark_reader, capture.spark.job", "msgspec"
    )


def test_command_line_import_loads_no_heavy_library():
    assert not loaded_by(
        "flight_server.cli", *HEAVY, "pyarrow", "numpy", "rich", "sqlglot", "flight_server.process.serve"
    )
