"""Build hook: in a wheel `store`, `capture` and `flight_server` lie within `statflight`.

So an installed statflight takes one name, and a module `store` or `capture` of a user's own stays what it was. Imports,
and strings that name one of our modules, are written anew; an editable installation has the packages as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES: Final = ("store", "capture", "flight_server")
PUBLIC: Final = "flight_server/public/statflight"  # what `import statflight` is
_NAMES: Final = "|".join(PACKAGES)
_IMPORT: Final = re.compile(rf"^(\s*(?:from|import) )({_NAMES})\b", re.MULTILINE)
_STRING: Final = re.compile(rf"""(["'])({_NAMES})\.(\w+)""")


class WithinStatflight(BuildHookInterface[Any]):
    """Adds the packages to the wheel; see the module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is built; `version` is `editable` or `standard`."""
        if version == "editable":
            return
        root = Path(self.root)
        self._folder = TemporaryDirectory()
        written = Path(self._folder.name)
        for file in (file for package in PACKAGES for file in sorted((root / package).rglob("*.*"))):
            if file.suffix == ".pyc" or file == Path(__file__):
                continue
            within = root / PUBLIC if file.is_relative_to(root / PUBLIC) else root
            place = file.relative_to(within)
            if file.suffix == ".py":
                changed = written / place
                changed.parent.mkdir(parents=True, exist_ok=True)
                changed.write_text(within_statflight(file.read_text("utf-8"), root), "utf-8")
                file = changed
            build_data["force_include"][str(file)] = str("statflight" / place)

    def finalize(self, version: str, *_: Any) -> None:
        """Called after the wheel was built."""
        if version != "editable":
            self._folder.cleanup()


def within_statflight(source: str, root: Path) -> str:
    """A module's source with our packages' names as they are in a wheel.

    Args:
        root: Directory of the packages: a string is the name of a module only if there is one (`"capture.run"` is a
            permission).
    """

    def named(match: re.Match[str]) -> str:
        quote, package, module = match.groups()
        folder = root / package / module
        is_module = folder.is_dir() or folder.with_suffix(".py").is_file()
        return f"{quote}statflight.{package}.{module}" if is_module else match[0]

    return _STRING.sub(named, _IMPORT.sub(r"\1statflight.\2", source))
