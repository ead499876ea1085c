"""`make ledger`: claims of a server compared with independent readers, for a time.

`make ledger SECONDS=600 SEED=0 FILES=1500` starts a server with a worker. In turn a wide table by each writer is built,
connected, captured by its metadata or its data, and judged by what DuckDB reads from its files (`wide_judge`); and
random lakes of all formats are judged by brute force, as in the tests (`lake_judge`). Each table has a seed of its own,
the first one and those after it, and the same seed makes the same table and the same conditions.

Prints each wrong claim at once, with the seed of its table, and the figures at the end. The exit is 1 if a claim was
wrong, or if something could not be compared.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from flight_server.client import StatsClient
from tests.flight_server.live_server import serving
from tests.ledger import lake_judge
from tests.ledger.ledger import Ledger
from tests.ledger.wide_judge import SERVED, judge_answers, judge_plans, judge_rows, judge_table
from tests.ledger.wide_tables import BUILDERS, Read

BY_METADATA: Final = ("ROW_COUNT", "NULL_COUNT", "MIN_MAX")
SCANNED_SHARE: Final = 0.1
"""Files of a table whose data is read, of those of one of which the metadata is."""
PLANNING_SHARE: Final = 0.04
"""Of the run, for the plans of one table."""


@dataclass
class Run:
    """A run of the ledger."""

    ledger: Ledger
    client: StatsClient
    root: Path
    files: int
    plan_seconds: float
    shown: int = 0

    def judge_wide(self, seed: int, builder: str, *, scanned: bool) -> None:
        """Builds, captures and judges one wide table."""
        build, share = BUILDERS[builder]
        root = self.root / f"wide{seed}"
        files = max(int(self.files * share * (SCANNED_SHARE if scanned else 1)), 2)
        wide = build(seed, root, files)
        catalog = f"w{seed}"
        actions, table = self.client.actions, f"{catalog}.{wide.name}"
        page = self.ledger.page(f"{builder}, seed {seed}", wide.source)
        actions.register_connector(catalog=catalog, format=wide.source.format, uri=wide.uri, options=wide.options or {})
        actions.discover(catalog=catalog)
        results = self.client.capture(table, engine="local", **({} if scanned else {"kinds": BY_METADATA}))
        assert {result["outcome"] for result in results} == {"CAPTURED"}, results
        read = Read(wide)
        served = self.client.read_table("stats.file_columns", table, list(SERVED))
        judge_rows(page, served, read)
        judge_table(
            page, self.client.read_table("stats.tables", table), self.client.read_table("stats.columns", table), read
        )
        judge_answers(page, self.client, table, read, seed)
        judge_plans(page, self.client, table, read, seed, time.monotonic() + self.plan_seconds)
        read.close()
        actions.drop_connector(catalog=catalog)
        shutil.rmtree(root)

    def attempt(self, what: str, judge: Callable[[], None]) -> None:
        """Judges, and prints what was wrong, or why nothing could be judged."""
        try:
            judge()
        except Exception as trouble:
            self.ledger.unjudged.append(f"NOT JUDGED {what}: {trouble!r}")
            print(self.ledger.unjudged[-1][:2000], flush=True)
        self.show(what)

    def show(self, what: str) -> None:
        """Prints what was wrong since the last call, and the figures so far."""
        for line in self.ledger.wrong[self.shown :]:
            print(line[:2000], flush=True)
        self.shown = len(self.ledger.wrong)
        print(f"{what}: {self.ledger.total():,} claims, {self.shown:,} wrong", flush=True)


def run(seconds: float, seed: int, files: int) -> Ledger:
    """Judges tables until a time is over, at least one of each kind.

    Args:
        seconds: When no further table is begun.
        seed: The first seed.
        files: Of a wide table.
    """
    began = time.monotonic()
    ledger = Ledger()
    root = Path(tempfile.mkdtemp(prefix="ledger-"))
    (root / "server").mkdir()
    lakes = cycle(lake_judge.CHECKS)
    try:
        with serving(root / "server", "--workers", 1) as server, StatsClient(server.uri) as client:
            each = Run(ledger, client, root, files, plan_seconds=seconds * PLANNING_SHARE)
            for at, builder in enumerate(cycle(BUILDERS)):
                if time.monotonic() - began > seconds:
                    break
                scanned = at // len(BUILDERS) % 2 == 1
                what = f"{builder}, {'data' if scanned else 'metadata'}, seed {seed + at}"
                each.attempt(what, partial(each.judge_wide, seed + at, builder, scanned=scanned))
                for check in islice(lakes, lake_judge.AT_ONCE):
                    what = f"random {check[0]}, seed {seed + at}"
                    each.attempt(what, partial(lake_judge.judge, ledger, check, seed + at, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(ledger.report(time.monotonic() - began, f"{seed} to {seed + at - 1}"))
    return ledger


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.ledger", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=1500)
    options = parser.parse_args()
    for category in (FutureWarning, UserWarning, DeprecationWarning):
        warnings.simplefilter("ignore", category)
    return 0 if run(options.seconds, options.seed, options.files).holds else 1


if __name__ == "__main__":
    sys.exit(main())
