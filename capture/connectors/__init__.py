"""Connectors by format: `open_connector` opens the one of a configuration.

Formats are the built-in ones, which need no installation, and the entry points of group `statflight.connectors`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from capture.connectors.secrets import resolve
from capture.connectors.spi import Connector, ConnectorConfig
from store.plugins import Plugins

FORMATS: Final = Plugins(
    group="statflight.connectors",
    field="format",
    noun="format",
    built_in={
        "delta": "capture.connectors.delta.connector:DeltaConnector",
        "iceberg": "capture.connectors.iceberg.connector:IcebergConnector",
        "lance": "capture.connectors.lance.connector:LanceConnector",
        "paimon": "capture.connectors.paimon.connector:PaimonConnector",
        "parquet": "capture.connectors.parquet.connector:ParquetConnector",
    },
)


def open_connector(config: ConnectorConfig) -> Connector:
    """Opens the connector of a configuration and resolves its named secret.

    Raises:
        InvalidArgument: The format, an option or the name of the secret is invalid.
    """
    connector: type[Connector] = FORMATS.load(config.format)
    return connector(dataclasses.replace(config, options=resolve(config.options)))
