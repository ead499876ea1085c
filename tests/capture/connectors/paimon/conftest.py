"""Fixtures of the tests of the Paimon connector: a warehouse, an append table and one with a primary key."""

from __future__ import annotations

import shutil

import pytest

from tests.capture.connectors.paimon.warehouse import (
    Warehouse,
    rows,
)


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "wh")


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The directory of both tables, which are copied: the library takes 20 ms to write one, and no file has a path."""
    first = Warehouse(tmp_path_factory.mktemp("written") / "wh")
    first.create("events", partition_keys=["part"])
    first.write("events", rows(0, 100), rows(100, 200))
    first.create("users", primary_keys=["id"], options={"bucket": "2"})
    first.write("users", rows(0, 100), rows(50, 150, "w"))
    return first.path / "sales.db"


@pytest.fixture
def append(warehouse, written):
    """Two snapshots of 100 rows each in two partitions."""
    return shutil.copytree(written / "events", warehouse.path / "sales.db" / "events")


@pytest.fixture
def keyed(warehouse, written):
    """Two snapshots of 100 rows each, 50 of which have a key in both."""
    return shutil.copytree(written / "users", warehouse.path / "sales.db" / "users")
