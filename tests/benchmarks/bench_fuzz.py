"""More mutants of `test_fuzz` against one server: none may crash it, raise INTERNAL, or show a traceback.

STATFLIGHT_BENCH_MUTANTS (50000), STATFLIGHT_BENCH_SEED (1).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.flight_server.live_server import serving
from tests.integration.test_fuzz import KINDS, check_readable, prepare, try_attempts, workers

pytestmark = pytest.mark.benchmark

MUTANTS = int(os.environ.get("STATFLIGHT_BENCH_MUTANTS", "50000"))
SEED = int(os.environ.get("STATFLIGHT_BENCH_SEED", "1"))


def test_mutants(tmp_path: Path) -> None:
    kinds = KINDS | {"workers": lambda client, rng: workers(client, rng, tmp_path)}
    share, total = -(-MUTANTS // len(KINDS)), 0
    print()
    with serving(tmp_path, env={"STATFLIGHT_LEASE_SECONDS": "30"}) as server:
        for kind, attempts in kinds.items():
            with server.connect() as client:
                prepare(client)
                # a fuzzed capture waits for a worker that does not come
                client.timeout = 0.5 if kind == "action_bodies" else 20.0
                began = time.perf_counter()
                rng = random.Random(f"{kind} {SEED}")
                # each mutant of a worker needs a lease, and a queued job for it
                most = share if kind != "workers" else min(share, 1000)
                tried, refused = try_attempts(client, attempts(client, rng), most, float("inf"))
                seconds = time.perf_counter() - began
                client.timeout = 30.0
                check_readable(client)
            print(f"{kind:<34} {tried:>6} mutants, {refused:>6} refused, {seconds:>5.0f} s")
            total += tried
            assert server.process.poll() is None
        log = server.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]
    print(f"{total} mutants: no crash, no INTERNAL, no trace on the wire")
