"""Connectors by format: `open_connector` opens the one of a configuration.

Formats are the built-in ones, which need no installation, and the entry points of group `statflight.connectors`.
"""

from __future__ import annotations

import dataclasses
import importlib
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Final

from capture.connectors.secrets import resolve
from capture.connectors.spi import Connector, ConnectorConfig
from store.model.errors import InvalidArgument, nearest

GROUP: Final = "statflight.connectors"

BUILT_IN: Final = {
    "delta": "capture.connectors.delta.connector:DeltaConnector",
    "iceberg": "capture.connectors.iceberg.connector:IcebergConnector",
    "lance": "capture.connectors.lance.connector:LanceConnector",
    "paimon": "capture.connectors.paimon.connector:PaimonConnector",
    "parquet": "capture.connectors.parquet.connector:ParquetConnector",
}
_OURS: Final = ("capture", "store")  # own packages; a missing module there is a bug, not a missing library


@lru_cache(maxsize=1)
def known_formats() -> dict[str, str]:
    """Format → `module:class` of its connector."""
    return BUILT_IN | {point.name: point.value for point in entry_points(group=GROUP)}


def connector_class(format: str) -> type[Connector]:
    """The connector class of a format.

    Raises:
        InvalidArgument: The format does not exist, or its library is not installed.
    """
    formats = known_formats()
    if format not in formats:
        raise InvalidArgument(
            f'format: "{format}" is unknown; known are {", ".join(sorted(formats))}',
            hint=nearest(str(format).lower(), sorted(formats)),
            params={"field": "format", "expected": "|".join(sorted(formats)), "actual": str(format)},
        )
    connector: type[Connector] = plugin(formats[format], "format", format, f"pip install 'statflight[{format}]'")
    return connector


def plugin(place: str, field: str, name: str, hint: str) -> Any:
    """Loads a class that may be missing in this build or need a library.

    Args:
        place: Its `module:class`.
        field: Field of the request that names it, for errors.
        name: The name.
        hint: How to install the library.

    Raises:
        InvalidArgument: The class or its library is not installed.
    """
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as missing:
        if missing.name and missing.name.partition(".")[0] in _OURS:
            if module.startswith(missing.name):
                raise InvalidArgument(f"{field}: {name} is not part of this build", code="UNIMPLEMENTED") from None
            raise
        raise InvalidArgument(
            f"{field}: {name} needs the library {missing.name or name}, which is not installed here",
            hint=hint, params={"field": field, "actual": name},
        ) from None  # fmt: skip


def open_connector(config: ConnectorConfig) -> Connector:
    """Opens the connector of a configuration and resolves its named secret.

    Raises:
        InvalidArgument: The format, an option or the name of the secret is invalid.
    """
    connector = connector_class(config.format)
    return connector(dataclasses.replace(config, options=resolve(config.options)))
