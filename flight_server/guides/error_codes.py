"""The error codes of the project with their statuses, read from the source: no list of them can fall behind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = "StatflightError"
_CODE: Final = re.compile(r"[A-Z][A-Z_]+")


@dataclass
class Code:
    """Facts that all errors of a code share."""

    statuses: set[str] = field(default_factory=set)
    retries: set[bool] = field(default_factory=set)

    @property
    def status(self) -> str:
        """The statuses, joined by `or`."""
        return " or ".join(sorted(self.statuses))

    @property
    def retry(self) -> str:
        """Whether another try may succeed: `yes`, `no`, or `as the error says`."""
        return "as the error says" if len(self.retries) > 1 else "yes" if True in self.retries else "no"


def error_codes() -> dict[str, Code]:
    """All codes by name, in the order of the alphabet."""
    trees = [
        ast.parse(file.read_text("utf-8"))
        for room in ("store", "capture", "flight_server")
        for file in sorted((ROOT / room).rglob("*.py"))
    ]
    constants = {name: value for tree in trees for name, value in _constants(tree)}
    kinds = _kinds([node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)])
    # What has no class of its own: trouble upstream that another try would meet again.
    found = {constants["PERMANENT"]: Code({"INVALID_ARGUMENT"}, {False})}

    def add(code: str, kind: str) -> None:
        attributes = kinds.get(kind, kinds["InvalidArgument"])
        each = found.setdefault(code, Code())
        each.statuses.add(attributes["status"])
        each.retries.add(attributes["retryable"])

    for name, attributes in kinds.items():
        add(attributes["code"], name)
    for tree in trees:
        for kind, code in _made(tree, "", constants):
            add(code, kind)
    return dict(sorted(found.items()))


def _kinds(classes: list[ast.ClassDef]) -> dict[str, dict[str, Any]]:
    """The attributes of each class of errors, inherited ones included."""
    kinds: dict[str, dict[str, Any]] = {BASE: {}}
    while True:
        before = len(kinds)
        for node in classes:
            for base in map(_name, node.bases):
                if node.name == BASE or (base in kinds and node.name not in kinds):
                    kinds[node.name] = kinds.get(base, {}) | dict(_attributes(node))
        if len(kinds) == before:
            return kinds


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """The class attributes that are set to a constant."""
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant):
            yield from ((target.id, value.value) for target in targets if isinstance(target, ast.Name))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The constants of a module that look like codes."""
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.Constant(str(value))) if _CODE.fullmatch(value):
                yield name, value


def _made(node: ast.AST, within: str, constants: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Calls with a code: the last part of the name that is called, and the code.

    Args:
        within: Class of the node, which calls of `super().__init__` are of.
    """
    if isinstance(node, ast.ClassDef):
        within = node.name
    if isinstance(node, ast.Call):
        called = _name(node.func)
        for keyword in node.keywords:
            if keyword.arg == "code" and (code := _constant(keyword.value, constants)):
                yield within if called == "__init__" else called, code
    for child in ast.iter_child_nodes(node):
        yield from _made(child, within, constants)


def _constant(value: ast.expr, constants: dict[str, str]) -> str:
    match value:
        case ast.Constant(str(code)):
            return code
        case ast.Name(name):
            return constants.get(name, "")
    return ""


def _name(expression: ast.expr) -> str:
    """The last part of a name."""
    return expression.id if isinstance(expression, ast.Name) else getattr(expression, "attr", "")
