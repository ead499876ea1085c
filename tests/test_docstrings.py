"""Docstrings of public modules, classes, functions and methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.sources import ROOT, modules, parsed, statements


def _bases(class_: ast.ClassDef) -> Iterator[str]:
    for base in class_.bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        yield named.id if isinstance(named, ast.Name) else named.attr if isinstance(named, ast.Attribute) else ""


def _is_inherited(class_: ast.ClassDef, method: str, classes: dict[str, list[ast.ClassDef]]) -> bool:
    """True if a base class of the project has the method, or a base class of a library may have it."""
    for base in _bases(class_):
        parents = classes.get(base)
        if parents is None and base not in ("Protocol", "Generic", "NamedTuple", "StrEnum", "Exception"):
            return True
        for parent in parents or ():
            names = {node.name for node in parent.body if isinstance(node, ast.FunctionDef)}
            if method in names or _is_inherited(parent, method, classes):
                return True
    return False


def _is_described(function: ast.FunctionDef) -> bool:
    """True for actions, described by their decorator, for overloads, and for setters."""
    names = {node.id for d in function.decorator_list for node in ast.walk(d) if isinstance(node, ast.Name)}
    return (
        {"action", "offered"} & names
        or "overload" in names
        or any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in function.decorator_list)
    )


def _missing(
    body: list[ast.stmt], within: ast.ClassDef | None, classes: dict[str, list[ast.ClassDef]]
) -> Iterator[str]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        name = f"{within.name}.{node.name}" if within is not None else node.name
        if isinstance(node, ast.ClassDef):
            if not ast.get_docstring(node):
                yield name
            yield from _missing(node.body, node, classes)
        elif ast.get_docstring(node) or _is_described(node):
            continue
        elif within is None or not _is_inherited(within, node.name, classes):
            yield name


def test_everything_public_has_a_docstring() -> None:
    trees = {str(file.relative_to(ROOT)): parsed(file) for file in modules()}
    classes: dict[str, list[ast.ClassDef]] = {}
    for tree in trees.values():
        for node in statements(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    missing = [f"{path}: {name}" for path, tree in trees.items() for name in _missing(tree.body, None, classes)]
    missing += [f"{path}: the module" for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert missing == []
