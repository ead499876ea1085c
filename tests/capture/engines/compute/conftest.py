"""Fixtures of the tests of the computing engine: a lake of two files, its table, and an engine without Spark."""

from __future__ import annotations

import pytest

from capture.connectors.spi import Schema
from capture.engines.compute.engine import ComputeEngine
from capture.spi import TableHandle
from tests.capture.engines.compute.lake import COLUMNS, IDS, Lake


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path)
    lake.add("a.parquet", range(500))
    lake.add("b.parquet", range(500, 1500))
    return lake


@pytest.fixture
def table(lake):
    return TableHandle("c", "s", "t", "id-1", 7, Schema(COLUMNS), IDS, lake)


@pytest.fixture
def engine():
    return ComputeEngine(inline_max_cells=10**9)
