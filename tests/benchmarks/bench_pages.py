"""Pages of a catalog of 50,000 tables and of a table of 500 columns: first byte, processor time and size.

Processor time is of this process, the client included, and changes little with other work on the machine.
`python -m pytest tests/benchmarks/bench_pages.py -m benchmark -s`
"""

from __future__ import annotations

import statistics
import time
import urllib.request
from urllib.parse import urljoin

import pytest

from tests.flight_server.faces.web.serving import large_catalog

pytestmark = pytest.mark.benchmark

TABLES, ROUNDS = 50_000, 15
WIDE = "/table?name=lake.s.wide"
PAGES = (
    "/",
    "/?sort=rows&desc=1",
    "/?q=0042",
    "/?in=lake.s7&page=2",
    "/index.json",
    "/table?name=lake.s7.table_00007",
    WIDE,
    "/column?table=lake.s.wide&name=c7",
)
FIRST_MS, OTHER_MS, WIDE_MS, MAX_BYTES = 100, 150, 300, 200_000


def measured(url: str) -> tuple[float, float, int]:
    """Milliseconds to the first byte and of the processor, and the bytes of a page."""
    began, cpu = time.perf_counter(), time.process_time()
    with urllib.request.urlopen(url) as answer:
        first = answer.read(1)
        took = time.perf_counter() - began
        size = len(first + answer.read())
    return took * 1000, (time.process_time() - cpu) * 1000, size


def test_pages(tmp_path):
    with large_catalog(tmp_path, TABLES) as base:
        print(f"\n{TABLES:,} tables; median of {ROUNDS}\n{'page':<40}{'first byte':>12}{'processor':>12}{'bytes':>10}")
        for page in PAGES:
            measured(urljoin(base, page))
            rounds = [measured(urljoin(base, page)) for _ in range(ROUNDS)]
            first, cpu = (statistics.median(one[place] for one in rounds) for place in (0, 1))
            size = rounds[0][2]
            print(f"{page:<40}{first:>9.1f} ms{cpu:>9.1f} ms{size:>10,}")
            assert cpu <= {PAGES[0]: FIRST_MS, WIDE: WIDE_MS}.get(page, OTHER_MS), page
            assert size <= MAX_BYTES or page == WIDE, page
