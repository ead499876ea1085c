"""Fixtures of the tests of the Paimon connector: a warehouse, an append table and one with a primary key."""

from __future__ import annotations

import pytest

from tests.capture.connectors.paimon.warehouse import (
    Warehouse,
    rows,
)


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "wh")


@pytest.fixture
def append(warehouse):
    """Two snapshots of 100 rows each in two partitions."""
    path = warehouse.create("events", partition_keys=["part"])
    warehouse.write("events", rows(0, 100), rows(100, 200))
    return path


@pytest.fixture
def keyed(warehouse):
    """Two snapshots of 100 rows each, 50 of which have a key in both."""
    path = warehouse.create("users", primary_keys=["id"], options={"bucket": "2"})
    warehouse.write("users", rows(0, 100), rows(50, 150, "w"))
    return path
