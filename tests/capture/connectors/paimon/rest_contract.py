"""The contract of a connector for a table of 200 rows in a REST catalog, whichever server it has."""

from __future__ import annotations

import pytest

from capture.connectors.spi import ConnectorConfig
from store.model.format_facts import FormatFacts
from tests.capture.connectors.contract import METADATA, ConnectorContract, Truth
from tests.capture.connectors.paimon.warehouse import rows

TOKEN = "correct-horse-battery-staple"


class RestContract(ConnectorContract):
    """The fixture `catalog` is the address of a server whose warehouse `wh` has the table sales.events."""

    metadata = METADATA
    facts = FormatFacts(merges_rows=False)
    is_directory = False

    @pytest.fixture
    def config(self, catalog):
        return ConnectorConfig("c", "paimon", catalog, {"warehouse": "wh", "token": TOKEN})

    @pytest.fixture
    def truth(self, config):
        return Truth("sales", "events", 200, rows(0, 200).to_pydict(), snapshots=2)
