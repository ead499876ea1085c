"""Iceberg tables that the tests in this directory share."""

from __future__ import annotations

import pytest

from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import ROWS, rows


@pytest.fixture
def table(tmp_path):
    return built.simple_table(tmp_path, ROWS, rows(0, 100), rows(100, 150))
