"""What GetFlightInfo of a table costs after a change of it, in processor time of its own thread.

The first call after a commit finds out the generation of the table's rows and reads them for its ticket, unless
prewarming has done both meanwhile, which begins `ANSWER_SECONDS` after the commit; the next calls find them in memory.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.core import actions
from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.config import Settings
from flight_server.core.wire import scan_request
from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import Put, PutMode
from tests.benchmarks.serving_data import columns_rows, name_of

pytestmark = pytest.mark.benchmark

TABLES, COLUMNS, ROUNDS = 200, 20, 20
FLIGHT = FLIGHTS["stats.columns"]
KEY_NAMES = ("table_catalog", "table_schema", "table_name")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A server's inside, without threads."""
    app = App(Settings(db=tmp_path / "stats.duckdb"), actions.functions)
    change(app, range(TABLES), COLUMNS)
    yield app
    app.close()


def change(app: App, tables: Iterable[int], columns: int) -> None:
    """Puts some columns of tables."""
    rows = pa.concat_tables(columns_rows(table, columns) for table in tables)
    app.store.put([Put(FLIGHT.name, validation.prepare(FLIGHT, rows), PutMode.UPSERT)])


def ask(table: int) -> bytes:
    parts = zip(KEY_NAMES, name_of(table), strict=True)
    predicates = [{"column": column, "op": "EQ", "values": [part]} for column, part in parts]
    return json.dumps({"table": FLIGHT.name, "snapshot": "current", "predicates": predicates}).encode()


def spent(call: Callable[[], object]) -> float:
    """Microseconds of this thread."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1e6


def test_info_of_a_table_that_changed(app: App) -> None:
    requests = [scan_request.of_command(ask(table)) for table in range(ROUNDS)]
    info: Callable[[int], object] = lambda table: app.scanner.pin(requests[table], ANONYMOUS)  # noqa: E731
    found: dict[str, list[float]] = {"at once": [], "again": [], "prewarmed": [], "generation": [], "rows": []}
    for table in range(ROUNDS):
        change(app, [table], COLUMNS + 1)
        found["at once"].append(spent(lambda: info(table)))  # noqa: B023
        found["again"].append(spent(lambda: info(table)))  # noqa: B023
        change(app, [table], COLUMNS + 2)
        app.prewarmer.warm(app.prewarmer.changed())
        found["prewarmed"].append(spent(lambda: info(table)))  # noqa: B023
        change(app, [table], COLUMNS + 3)
        entry = app.catalog.find(name_of(table))
        assert entry is not None and entry.current_snapshot_id is not None
        found["generation"].append(spent(lambda: app.scanner.generations.of(FLIGHT, entry, entry.current_snapshot_id)))  # noqa: B023
        found["rows"].append(spent(lambda: app.scanner.rows.of(FLIGHT, entry, entry.current_snapshot_id)))  # noqa: B023
    medians = {name: statistics.median(each) for name, each in found.items()}
    again = medians["again"]
    for name, median in medians.items():
        print(f"{name:<12} {median:8.0f} µs, {median / again:5.1f} × again")
    assert medians["prewarmed"] < 4 * again
