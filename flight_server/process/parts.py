"""The parts of this server: the only list of them. Other packages add theirs by the entry points `statflight.parts`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final

from flight_server.core.config import Settings
from flight_server.core.part import Action, Part
from store.model.errors import InvalidArgument
from store.plugins import Broken, Plugins
from store.stores import DUCKDB

log = logging.getLogger("statflight.server")

_HERE: Final = __name__.removesuffix(".process.parts")
_OWN: Final = {module.partition(".")[0] for module in (__name__, Plugins.__module__)}  # one name in a wheel
PARTS: Final = Plugins(
    group="statflight.parts",
    field="part",
    noun="part",
    built_in={
        "store_behind": f"{_HERE}.process.store_behind:StoreBehind",
        "planning": f"{_HERE}.planning.part:Planning",
        "insight": f"{_HERE}.insight.part:Insight",
        "publishing": f"{_HERE}.publishing.part:Publishing",
        "costs": f"{_HERE}.faces.costs.part:Costs",
        "sql": f"{_HERE}.faces.sql.part:Sql",
        "iceberg_rest": f"{_HERE}.faces.iceberg_rest.part:IcebergRest",
        "mcp": f"{_HERE}.faces.mcp.part:Mcp",
        "web": f"{_HERE}.faces.web.part:Web",  # the last: it serves what the others mount
    },
)
_REQUIRED: Final[Mapping[str, Callable[[Settings], bool]]] = {
    "store_behind": lambda settings: settings.store != DUCKDB,
    "insight": lambda settings: settings.checks is not None,
}
"""When a server must not start without a part."""


@cache
def _classes(names: frozenset[str] | None = None) -> dict[str, type[Part] | InvalidArgument]:
    """Each part's class, or why it cannot be loaded.

    Args:
        names: Names of the parts; None for all.
    """
    found: dict[str, type[Part] | InvalidArgument] = {}
    for name in PARTS.built_in:
        if names is not None and name not in names:
            continue
        try:
            found[name] = PARTS.load(name)
        except InvalidArgument as missing:
            found[name] = missing
        except ImportError as missing:
            if str(missing.name).partition(".")[0] not in _OWN:
                raise
            found[name] = InvalidArgument(f"part: {name} needs {missing.name}, which is not part of this build")
        if isinstance(found[name], InvalidArgument):
            log.warning("%s; the server does without it", found[name])
    for point, loaded in PARTS.each() if names is None else ():
        if not isinstance(loaded, Broken):
            found[point.name] = loaded
    return found


def parts(settings: Settings, names: frozenset[str] | None = None) -> dict[str, Part]:
    """Makes the parts of a server, those that are missing left out.

    Args:
        names: Names of the built-in parts that are needed; None for all parts.

    Raises:
        InvalidArgument: What the settings name of a part is wrong; or a setting asks for a part that is missing.
    """
    made: dict[str, Part] = {}
    for name, kind in _classes(names).items():
        if not isinstance(kind, InvalidArgument):
            made[name] = kind(settings)
        elif name in _REQUIRED and _REQUIRED[name](settings):
            raise kind
    return made


def actions() -> dict[str, Action]:
    """All actions, those of parts included."""
    from flight_server.core.actions import ACTIONS  # loads what captures and writes

    return ACTIONS | {action.name: action for action in _of_parts()}


def _of_parts() -> Iterator[Action]:
    for kind in _classes().values():
        if not isinstance(kind, InvalidArgument):
            yield from kind.actions()
