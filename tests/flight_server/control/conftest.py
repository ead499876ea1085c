"""Fixtures of the tests of tasks and leases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flight_server.control.work import House


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.tasks.close()
    house.database.close()
