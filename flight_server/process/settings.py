"""Settings of this process, those of its parts included.

The only list of settings that parts declare. Other packages declare theirs by the entry points `statflight.settings`:
the setting's name, and a `Setting` in a module that imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flight_server.core import config
from flight_server.core.config import Setting, Settings
from store.model.errors import InvalidArgument
from store.plugins import Broken, Plugins

_HERE: Final = __name__.removesuffix(".process.settings")
SETTINGS: Final = Plugins(
    group="statflight.settings",
    field="setting",
    noun="setting",
    built_in={
        "mcp_values": f"{_HERE}.faces.mcp.settings:VALUES",
        "iceberg_manifests": f"{_HERE}.faces.iceberg_rest.settings:MANIFESTS",
    },
)


def declared() -> dict[str, Setting]:
    """The settings that the parts of this build declare, by name."""
    found: dict[str, Setting] = {}
    for name in SETTINGS.built_in:
        try:
            found[name] = SETTINGS.load(name)
        except InvalidArgument as missing:
            if missing.code != "UNIMPLEMENTED":  # its part was left out
                raise
    for point, loaded in SETTINGS.each():
        if not isinstance(loaded, Broken):
            found[point.name] = loaded
    return found


def load(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """The settings of this process.

    Args:
        file: The TOML file; None reads `./statflight.toml` if it exists.
        flags: Settings given on the command line; None means not given.

    Raises:
        InvalidArgument: An unknown key, a bad value, or a file that cannot be read.
    """
    return config.load(file, flags, declared=declared())


def effective(file: Path | None) -> list[tuple[str, Any, str]]:
    """Every setting with its value and its source; see `core.config.effective`."""
    return config.effective(file, declared=declared())
