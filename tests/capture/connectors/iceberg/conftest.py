"""Iceberg tables that the tests in this directory share."""

from __future__ import annotations

import pytest

from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import ROWS, lake, rows
from tests.kept_lakes import kept_lake


@pytest.fixture
def table():
    catalog = built.make_catalog(lake(kept_lake(of_150_rows)))
    table = catalog.load_table("db.t")
    catalog.close()
    return table


def of_150_rows(root):
    return built.simple_table(root, ROWS, rows(0, 100), rows(100, 150))
