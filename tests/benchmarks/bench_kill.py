"""Repeated kill -9 during puts and publications, and readers against writers, for longer than a test may take.

STATFLIGHT_BENCH_KILLS (200) and STATFLIGHT_BENCH_SECONDS (30).
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from tests.integration.store_server import kill_loop, read_against_writers

pytestmark = pytest.mark.benchmark

KILLS = int(os.environ.get("STATFLIGHT_BENCH_KILLS", "200"))
SECONDS = float(os.environ.get("STATFLIGHT_BENCH_SECONDS", "30"))


def test_kills(tmp_path: Path) -> None:
    starts, acknowledged = kill_loop(tmp_path, KILLS)
    first, later = starts[0], starts[1:]
    print(f"\n{KILLS} kills, {acknowledged} puts and publications acknowledged, none lost, none in part")
    print(f"first response: p50 {statistics.median(later):.2f} s, longest {max(later):.2f} s, new {first:.2f} s")


def test_readers_against_writers(tmp_path: Path) -> None:
    reads, publications = read_against_writers(tmp_path / "s.db", SECONDS)
    print(f"\n{SECONDS:.0f} s: {reads} reads by 2 threads against {publications} publications, none saw part of one")
