"""Build hook: in a wheel `store`, `capture` and `flight_server` lie within `statflight`.

So an installed statflight takes one name, and a module `store` or `capture` of a user's own stays what it was. Imports,
and strings that name one of our modules, are written anew; an editable installation has the packages as they are, and
the same names by `statflight._checkout`. The contract suites come along as `statflight.testing`.
"""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PUBLIC: Final = "flight_server/public/statflight"  # what `import statflight` is
CHECKOUT: Final = f"{PUBLIC}/_checkout.py"  # names the packages and the suites
_OF_CHECKOUT: Final = run_path(str(Path(__file__).parents[2] / CHECKOUT), run_name="statflight._checkout")
PACKAGES: Final[tuple[str, ...]] = _OF_CHECKOUT["PACKAGES"]
SUITES: Final[dict[str, str]] = _OF_CHECKOUT["SUITES"]
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
        left_out = (Path(__file__), root / CHECKOUT)
        files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.*"))]
        suites = {root / file: Path("testing", f"{name}.py") for name, file in SUITES.items()}
        for file in (*files, *suites):
            if file.suffix == ".pyc" or file in left_out:
                continue
            within = root / PUBLIC if file.is_relative_to(root / PUBLIC) else root
            place = suites.get(file) or file.relative_to(within)
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
