"""The names of a wheel in a checkout; a wheel does not have this module.

In a wheel `store`, `capture` and `flight_server` lie within `statflight`, and so do the contract suites. In a checkout
`statflight.store` is the package `store` itself, not a copy, and a module of `statflight.testing` is one of `tests`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

NAME: Final = __name__.partition(".")[0]
PACKAGES: Final = ("store", "capture", "flight_server")
SUITES: Final = {
    "connectors": "tests/capture/connectors/contract.py",
    "engines": "tests/capture/engine_contract.py",
    "publishers": "tests/capture/publishers/contract.py",
    "reference_store": "tests/store/reference_store.py",
    "stores": "tests/store/contract.py",
}
"""Modules of `statflight.testing`, and their files, which import packages of `PACKAGES` only."""


class _Names(MetaPathFinder, Loader):
    """Stands before other finders, which would find copies of submodules by the paths of their packages."""

    def __init__(self, root: Path):
        self._root = root
        self._own: dict[str, ModuleSpec] = {}  # name within `statflight` → the module's own spec

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  of the interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        top, _, name = fullname.partition(".")
        if top != NAME:
            return None
        if name.startswith("testing."):
            suite = SUITES.get(name.removeprefix("testing."))
            return None if suite is None else spec_from_file_location(fullname, self._root / suite)
        own = find_spec(name) if name.partition(".")[0] in PACKAGES else None
        if own is None:
            return None
        self._own[fullname] = own
        return ModuleSpec(fullname, self, is_package=own.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        own = self._own[spec.name]
        __import__(own.name)
        return sys.modules[own.name]

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module, which has run, its own spec again."""
        assert module.__spec__ is not None
        module.__spec__ = self._own[module.__spec__.name]


def install() -> None:
    """Makes the names known."""
    sys.meta_path.insert(0, _Names(Path(__file__).resolve().parents[3]))
