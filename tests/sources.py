"""The project's own source, parsed once for the tests that inspect it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("store", "capture", "flight_server")  # each may import itself and the ones before it


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a module; callers must not modify it."""
    return _trees()[file]


@cache
def _trees() -> dict[Path, ast.Module]:
    """Syntax trees of all modules, parsed with garbage collection off: the objects are many and all live."""
    gc.disable()
    try:
        return {file: ast.parse(file.read_bytes()) for file in modules()}
    finally:
        gc.enable()


@cache
def modules() -> tuple[Path, ...]:
    """All modules of the three packages, sorted."""
    return tuple(sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a tree, those inside of others too, without their expressions, which are most of a tree."""
    blocks = [tree]
    while blocks:
        block = blocks.pop()
        yield block
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks.extend(getattr(block, name, ()))
