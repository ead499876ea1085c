"""The project's own source, read and parsed once for the tests that look at it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOREYS = ("store", "capture", "flight_server")  # each may import itself and those before it


@cache
def parsed(file: Path) -> ast.Module:
    """The syntax tree of a module; nobody changes it."""
    return ast.parse(file.read_bytes())


@cache
def modules() -> tuple[Path, ...]:
    """All modules of the three storeys, in order."""
    return tuple(sorted(file for storey in STOREYS for file in (ROOT / storey).rglob("*.py")))
