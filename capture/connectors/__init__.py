"""Connectors by format, which `open_connector` opens, and readers of data files by the names that scan tasks use.

Both are the built-in ones, which need no installation, and the entry points of the groups `statflight.connectors` and
`statflight.readers`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from capture.connectors.spi import Connector, ConnectorConfig
from capture.connectors.storage.secrets import resolve
from store.plugins import Plugins

FORMATS: Final = Plugins(
    group="statflight.connectors",
    field="format",
    noun="format",
    built_in={
        "delta": "capture.connectors.delta.connector:DeltaConnector",
        "hudi": "capture.connectors.hudi.connector:HudiConnector",
        "iceberg": "capture.connectors.iceberg.connector:IcebergConnector",
        "lance": "capture.connectors.lance.connector:LanceConnector",
        "paimon": "capture.connectors.paimon.connector:PaimonConnector",
        "parquet": "capture.connectors.parquet.connector:ParquetConnector",
        "mixed": "capture.connectors.directories.mixed:MixedConnector",
    },
)
READERS: Final = Plugins(
    group="statflight.readers",
    field="reader",
    noun="reader",
    built_in={
        "lance": "capture.connectors.lance.reader:LanceReader",
        "paimon": "capture.connectors.paimon.reader:PaimonReader",
        "parquet": "capture.compute.readers.parquet:ParquetReader",
    },
)


def open_connector(config: ConnectorConfig) -> Connector:
    """Opens the connector of a configuration and resolves its named secret.

    Raises:
        InvalidArgument: The format, an option or the name of the secret is invalid.
    """
    connector: type[Connector] = FORMATS.load(config.format)
    return connector(dataclasses.replace(config, options=resolve(config.options)))
