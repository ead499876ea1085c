"""Connectors by format: `open_connector` opens the one of a configuration.

Formats are the built-in ones, which need no installation, and the entry points of group `statflight.connectors`.
"""

from __future__ import annotations

import dataclasses
import importlib
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Final

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
    module, _, name = formats[format].partition(":")
    try:
        connector: type[Connector] = getattr(importlib.import_module(module), name)
    except ImportError as missing:
        if missing.name and missing.name.partition(".")[0] in _OURS:
            if module.startswith(missing.name):
                raise InvalidArgument(f"format: {format} is not part of this build", code="UNIMPLEMENTED") from None
            raise
        raise InvalidArgument(
            f"format: {format} needs the library {missing.name or format}, which is not installed here",
            hint=f"pip install 'statflight[{format}]'",
            params={"field": "format", "actual": format},
        ) from None
    return connector


def open_connector(config: ConnectorConfig) -> Connector:
    """Opens the connector of a configuration and resolves its named secret.

    Raises:
        InvalidArgument: The format, an option or the name of the secret is invalid.
    """
    connector = connector_class(config.format)
    return connector(dataclasses.replace(config, options=resolve(config.options)))
