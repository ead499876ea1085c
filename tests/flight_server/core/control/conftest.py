"""Fixtures of the tests of tasks and leases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flight_server.core.control.control_plane import ControlPlane


@pytest.fixture
def control() -> Iterator[ControlPlane]:
    control = ControlPlane()
    yield control
    control.queue.close()
    control.database.close()
