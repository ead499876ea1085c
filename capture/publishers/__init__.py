"""Publishers write captured statistics to the homes where engines look for them.

Homes are the entry points of group `statflight.publishers`; a checkout that is not installed has the same ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Final

from capture.publishers.spi import Publisher
from store.errors import InvalidArgument, nearest

GROUP: Final = "statflight.publishers"
OPTION: Final = "publish"  # of a connector: the homes that its tables are published to after each capture

BUILT_IN: Final = {
    "glue": "capture.publishers.glue:GluePublisher",
    "hive": "capture.publishers.hive:HivePublisher",
    "iceberg": "capture.publishers.iceberg:IcebergPublisher",
    "lance": "capture.publishers.lance:LancePublisher",
    "paimon": "capture.publishers.paimon:PaimonPublisher",
    "spark": "capture.publishers.spark_catalog:SparkCatalogPublisher",
    "trino": "capture.publishers.trino_delta:TrinoDeltaPublisher",
}
_OURS: Final = ("capture", "store")


@lru_cache(maxsize=1)
def known_homes() -> dict[str, str]:
    """Home → `module:class` of its publisher."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN


def check_home(home: str) -> str:
    """The name of a home that exists.

    Raises:
        InvalidArgument: There is none of that name; the message lists those there are.
    """
    homes = known_homes()
    if home not in homes:
        raise InvalidArgument(
            f'to: "{home}" is not a home; expected one of {", ".join(sorted(homes))}',
            hint=nearest(home.lower(), sorted(homes)), code="UNKNOWN_HOME",
            params={"field": "to", "expected": "|".join(sorted(homes)), "actual": home},
        )  # fmt: skip
    return home


def homes_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The homes that a connector's option names.

    Raises:
        InvalidArgument: One of them does not exist.
    """
    names = (name.strip() for name in str(options.get(OPTION) or "").split(","))
    return tuple(dict.fromkeys(check_home(name) for name in names if name))


def options_of(options: Mapping[str, Any], home: str) -> dict[str, str]:
    """Options of publications to a home, among those of a connector: `publish.HOME.OPTION`."""
    prefix = f"{OPTION}.{home}."
    return {name.removeprefix(prefix): str(value) for name, value in options.items() if name.startswith(prefix)}


def publisher_class(home: str) -> type[Publisher]:
    """The publisher of a home.

    Raises:
        InvalidArgument: The home does not exist, or the library it writes with is not installed.
    """
    module, _, name = known_homes()[check_home(home)].partition(":")
    try:
        found: type[Publisher] = getattr(importlib.import_module(module), name)
    except ImportError as missing:
        if missing.name and missing.name.partition(".")[0] in _OURS:
            raise
        raise InvalidArgument(
            f"to: {home} needs the library {missing.name or home}, which is not installed here",
            hint="pip install 'statflight[all]', or the extra of that name", params={"field": "to", "actual": home},
        ) from None  # fmt: skip
    return found
