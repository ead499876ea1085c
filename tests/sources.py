"""The project's own source, read and parsed once for the tests that look at it."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOREYS = ("store", "capture", "flight_server")  # each may import itself and those before it


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a module; nobody changes it."""
    return _trees()[file]


@cache
def _trees() -> dict[Path, ast.Module]:
    """Syntax trees of all modules, parsed without the garbage collector: they are many objects, and none is garbage."""
    gc.disable()
    try:
        return {file: ast.parse(file.read_bytes()) for file in modules()}
    finally:
        gc.enable()


@cache
def modules() -> tuple[Path, ...]:
    """All modules of the three storeys, in order."""
    return tuple(sorted(file for storey in STOREYS for file in (ROOT / storey).rglob("*.py")))
