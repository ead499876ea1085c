"""Settings of all tests: Hypothesis looks at the same few examples each time, however slow the machine is.

`pytest --hypothesis-profile=explore`, as `make bench` has it, looks at more, and others each time.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "explore", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("project", settings.get_profile("explore"), max_examples=50, derandomize=True, database=None)
settings.load_profile("project")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without the garbage collector: of so many modules and syntax trees hardly any is garbage, and
    all stay to the end, so that later runs need not walk them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
