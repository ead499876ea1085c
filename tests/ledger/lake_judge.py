"""Random lakes of every format judged by the checks of the tests, which compare with brute force over all rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.integration import test_differential as captures
from tests.integration import test_differential_scans as scans
from tests.integration.random_lakes import FORMATS
from tests.ledger.ledger import Ledger, Page, Source

Check = Callable[[str, int, Page, Path], object]
WRITERS: Final = {
    "parquet": "parquet-cpp-arrow",
    "delta": "delta-rs",
    "iceberg": "pyiceberg",
    "lance": "lance",
    "paimon": "pypaimon",
}
CHECKS: Final[list[tuple[str, Check]]] = [
    (format, check)
    for check in (
        lambda format, seed, page, _: captures.check_native(format, seed, page),
        lambda format, seed, page, root: scans.check_scans(format, seed, root, CONDITIONS, page),
        lambda format, seed, page, _: captures.check_computed(format, seed, page),
    )
    for format in FORMATS
]
CONDITIONS = 50  # of each lake and way of capture
AT_ONCE: Final = 9
"""Checks after each wide table."""


def judge(ledger: Ledger, of: tuple[str, Check], seed: int, root: Path) -> None:
    """Runs a check; the first claim that is wrong ends it, and is noted."""
    format, check = of
    name = format.partition(" ")[0]
    page = ledger.page(f"random {format}, seed {seed}", Source(name, WRITERS[name]))
    place = root / "scans"
    place.mkdir()
    try:
        check(format, seed, page, place)
    except AssertionError as wrong:
        page.wrong("claim", str(wrong))
    finally:
        shutil.rmtree(place)
