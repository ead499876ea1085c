"""A process that puts, one snapshot after another, into a store that it shares, until it is killed.

It first prints the snapshots that it finds, as `found 1 2 3`, or `part 3` for one without all of its rows; then `put N`
for each that is acknowledged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.puts import Put, PutMode
from store.postgres.join import join
from store.stats_store import DuckDBStatsStore
from tests.store.contract import columns

ROWS = 20


def found(database: Database) -> Iterator[str]:
    counts = database.rows("SELECT snapshot_id, count(*) FROM stats_columns GROUP BY 1 ORDER BY 1")
    for snapshot, count in counts:
        if count != ROWS:
            yield f"part {snapshot}"
    yield f"found {' '.join(str(snapshot) for snapshot, _ in counts)}"


def run(address: str, cache: str, first: int, step: int) -> None:
    """Puts the snapshots `first`, `first + step`, …"""
    database, member = join(address, cache)
    store = DuckDBStatsStore(database, Catalog(database), role=member)
    member.start()
    for line in found(database):
        print(line, flush=True)
    number = first
    while True:
        rows = columns(*((i, number) for i in range(1, ROWS + 1)), snapshot=number)
        store.put([Put("stats.columns", rows, PutMode.CREATE)])
        print(f"put {number}", flush=True)
        number += step


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
