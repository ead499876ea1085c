"""Homes of statistics: the table formats and catalogs in which engines look for them, and connector options for them.

They are the built-in ones, which need no installation, and the entry points of group `statflight.publishers`. Their
publishers are loaded when one is needed, so that a build may be without `capture.publishers`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from capture.connectors.options import takes_source_statistics
from capture.connectors.spi import Connector, ConnectorConfig
from store.model.errors import InvalidArgument, InvalidField, nearest
from store.plugins import Plugins

OPTION: Final = "publish"  # connector option: homes to which its tables are published after each capture
READ_OPTION: Final = "statistics_from"  # connector option: catalogs from which captures take over statistics

HOMES: Final = Plugins(
    group="statflight.publishers",
    field="to",
    noun="home",
    code="UNKNOWN_HOME",
    built_in={
        "ducklake": "capture.publishers.ducklake:DuckLakePublisher",
        "glue": "capture.publishers.glue:GluePublisher",
        "hive": "capture.publishers.hive:HivePublisher",
        "iceberg": "capture.publishers.iceberg:IcebergPublisher",
        "lance": "capture.publishers.lance:LancePublisher",
        "paimon": "capture.publishers.paimon:PaimonPublisher",
        "spark": "capture.publishers.spark_catalog:SparkCatalogPublisher",
        "trino": "capture.publishers.trino_delta:TrinoDeltaPublisher",
    },
)
CATALOGS: Final = ("glue", "hive", "spark")  # homes outside the tables, which connectors do not read
_READING_BACK: Final = "capture.publishers.reading_back"


def homes_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The homes in a connector's option `publish`.

    Raises:
        InvalidArgument: A home does not exist.
    """
    return tuple(HOMES.check(name, f"options.{OPTION}") for name in _names(options, OPTION))


def catalogs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The catalogs in a connector's option `statistics_from`.

    Raises:
        InvalidArgument: A home does not exist, or is not a catalog.
    """
    names = _names(options, READ_OPTION)
    field = f"options.{READ_OPTION}"
    for name in names:
        HOMES.check(name, field)
        if name in HOMES.built_in and name not in CATALOGS:
            reason = f"statistics of {name} are in the table and are always read"
            raise InvalidField(field, reason, expected=" | ".join(CATALOGS), actual=name)
    return names


def check_home_options(options: Mapping[str, Any]) -> None:
    """Rejects connector options for homes, or options of homes, that do not exist.

    Raises:
        InvalidArgument: Names the option.
    """
    homes_of(options)
    catalogs_of(options)
    for name in options:
        word, _, rest = name.partition(".")
        home, _, own = rest.partition(".")
        if word not in (OPTION, READ_OPTION) or not rest:
            continue
        HOMES.check(home, f"options.{name}")
        known = HOMES.load(home).options if home in CATALOGS else frozenset({own})
        if own not in known:
            raise InvalidArgument(
                f"options.{name}: is not an option of {home}; expected {', '.join(sorted(known))}",
                hint=nearest(own, sorted(known)),
                params={"field": f"options.{name}"},
            )


def options_of(options: Mapping[str, Any], home: str, *prefixes: str) -> dict[str, str]:
    """The options of a home among those of a connector, `publish.HOME.OPTION`, without their prefix.

    Args:
        prefixes: Prefixes instead of `publish`; the last one takes precedence.
    """
    of_home: dict[str, str] = {}
    for prefix in (f"{word}.{home}." for word in prefixes or (OPTION,)):
        of_home |= {name.removeprefix(prefix): str(value) for name, value in options.items() if name.startswith(prefix)}
    return of_home


def _names(options: Mapping[str, Any], option: str) -> tuple[str, ...]:
    names = (name.strip() for name in str(options.get(option) or "").split(","))
    return tuple(dict.fromkeys(filter(None, names)))


def with_catalogs(connector: Connector, config: ConnectorConfig, spark: Callable[[], Any] | None = None) -> Connector:
    """The connector, which reads statistics from catalogs too if its options say so (`publishers.reading_back`)."""
    if takes_source_statistics(config.options) and not catalogs_of(config.options):
        return connector
    with_them: Connector = importlib.import_module(_READING_BACK).WithCatalogs(connector, config, spark)
    return with_them
