"""Files and directories that pages and docstrings name must exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, modules, parsed, statements

DIRECTORIES = ("store", "capture", "flight_server", "tests")
PAGES = [ROOT / "README.md", *sorted(page for directory in DIRECTORIES for page in (ROOT / directory).rglob("*.md"))]
# paths of this repository: lower case, and ending like a module, a page or a directory
PATHS = re.compile(r"`((?:[a-z_0-9.]+/)*(?:[a-z_0-9]+\.py|[A-Z_]+\.md)|(?:[a-z_0-9]+/)+)`")
DOTTED = re.compile(r"(?<![\w./-])((?:store|capture|flight_server)\.[a-z_]+(?:\.[a-z_]+)*)(?![\w/(-])")
ELSEWHERE = {"capture.run", "metadata/"}  # a scope of tokens, and a directory of Iceberg tables


def existing() -> set[str]:
    """Every suffix of the path of every file and directory: `b/c.py` names `a/b/c.py`."""
    found = set()
    for path in [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(p for directory in DIRECTORIES for p in (ROOT / directory).rglob("*")),
    ]:
        parts = path.relative_to(ROOT).parts
        end = "/" if path.is_dir() else ""
        found |= {"/".join(parts[start:]) + end for start in range(len(parts))}
    return found | {f"{directory}/" for directory in DIRECTORIES}


EXISTING = existing()


def docstrings(module: Path) -> Iterator[str]:
    for node in statements(parsed(module)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def missing(text: str) -> set[str]:
    paths = {name for name in PATHS.findall(text) if name not in EXISTING} - ELSEWHERE
    dotted = {name: "/".join(name.split(".")[:2]) for name in DOTTED.findall(text)}
    return paths | {name for name, path in dotted.items() if not {f"{path}/", f"{path}.py"} & EXISTING} - ELSEWHERE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_named_in_a_page_exist(page):
    assert missing(page.read_text()) == set()


def test_paths_named_in_docstrings_exist():
    named = {module.relative_to(ROOT).as_posix(): missing("\n".join(docstrings(module))) for module in modules()}
    assert {module: names for module, names in named.items() if names} == {}


def test_missing_paths_are_found():
    gone = {"store/no_such.py", "no_such_room/", "capture.no_such.connector"}
    assert missing(f"`store/duckdb/layout.py`, capture.spi, {', '.join(f'`{name}`' for name in gone)}") == gone
