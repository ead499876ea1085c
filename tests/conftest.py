"""Settings for all tests: Hypothesis runs the same few examples each time, without a deadline.

`pytest --hypothesis-profile=explore`, as in `make bench`, runs more examples, and different ones each time.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Generator

import pytest

# NumPy's threads spin for 70 ms at the start of each process, those of tests included; the product has none.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Each process takes 5 s to rewrite the asserts of all tests and 1 s to rewrite Hypothesis, unless that is kept.
sys.dont_write_bytecode = False
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "explore", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("project", settings.get_profile("explore"), max_examples=30, derandomize=True, database=None)
settings.load_profile("project")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests with garbage collection off, and freezes the result: nearly all modules and syntax trees live
    to the end, so that later collections need not visit them. What is frozen at the exit is never freed, and DuckDB
    would print the names of all its types that are left."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)
        gc.set_threshold(20_000)  # pytest and Hypothesis make so many objects that collections take a twentieth
        gc.enable()
