"""More mutants of `tests/flight_server/faces/sql/test_fuzz.py`. STATFLIGHT_BENCH_MUTANTS (20000), _SEED (1)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.flight_server.live_server import serving
from tests.integration.flight_server.faces.sql.test_fuzz import SECRET, send_mutants

pytestmark = pytest.mark.benchmark

MUTANTS = int(os.environ.get("STATFLIGHT_BENCH_MUTANTS", "20000"))
SEED = int(os.environ.get("STATFLIGHT_BENCH_SEED", "1"))


def test_mutated_statements(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text(SECRET)
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server") as server:
        with server.connect() as client:
            began = time.perf_counter()
            answered, refused = send_mutants(client, str(secret), MUTANTS, SEED)
            print(f"\n{answered} answered, {refused} refused, {time.perf_counter() - began:.0f} s")
        assert server.process.poll() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv", "server"]
    assert "Traceback" not in server.log.read_text()
