"""Requests of the looks at many tables in an object store, as moto counts them: described, and by marks.

First what each look took until version 1.3: a walk of the lake, and each table described. Then looks by marks: at
tables that have not changed, and after a hundredth of them has. The months of 30 days are
arithmetic, as is the lake of 50,000 tables: requests of a look, times looks, times the price of a request.

`python -m pytest tests/benchmarks/bench_looks.py -m benchmark -s`; STATFLIGHT_BENCH_LOOKS makes it smaller.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from flight_server.worker.lake_inspection import inspect
from tests.integration.metered_store import (
    BUCKET,
    MeteredStore,
    iceberg_catalog,
    metered_store,
    parquet_bytes,
    put_paimon_table,
)

pytestmark = pytest.mark.benchmark
pytest.importorskip("moto")

TABLES: Final = int(os.environ.get("STATFLIGHT_BENCH_LOOKS", "1000"))
MANY: Final = 50_000
LOOKS_A_MONTH: Final = 30 * 24 * 60  # one a minute
PRICES: Final = {"LIST": 5e-6, "PUT": 5e-6}  # dollars of S3 in us-east-1, 2026; of all others 4e-7
ROWS: Final = pa.table({"id": pa.array(range(10), pa.int64())})
SCHEMA: Final = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


def _commit(version: int) -> bytes:
    """A commit of a Delta table; writing it by hand is a hundred times as fast as by the library."""
    actions: list[dict[str, Any]] = []
    if not version:
        actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
        described = {"id": "made-up", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
        actions += [{"metaData": described | {"schemaString": json.dumps(SCHEMA), "partitionColumns": []}}]
    add = {"path": f"{version}.parquet", "partitionValues": {}, "size": 400, "modificationTime": 0, "dataChange": True}
    actions += [{"add": add | {"stats": json.dumps({"numRecords": 10})}}]
    return "\n".join(map(json.dumps, actions)).encode()


def delta(store: MeteredStore, number: int, version: int) -> None:
    store.put(f"delta/t{number}/_delta_log/{version:020}.json", _commit(version))


def parquet(store: MeteredStore, number: int, version: int) -> None:
    for part in "ab":
        store.put(f"parquet/t{number}/part={part}/{version}.parquet", parquet_bytes(ROWS))


def lance(store: MeteredStore, number: int, version: int) -> None:
    import lance as library

    mode = "append" if version else "create"
    library.write_dataset(ROWS, f"s3://{BUCKET}/lance/t{number}.lance", mode=mode, storage_options=store.options)


def iceberg(store: MeteredStore, number: int, version: int) -> None:
    catalog, name = _catalog(store), f"default.t{number}"
    if not version:
        catalog.create_table(name, ROWS.schema, location=f"s3://{BUCKET}/iceberg/t{number}")
    catalog.load_table(name).append(ROWS)


_catalogs: dict[str, Any] = {}  # by the store's address


def _catalog(store: MeteredStore) -> Any:
    if store.endpoint not in _catalogs:
        _catalogs[store.endpoint] = iceberg_catalog(store)
    return _catalogs[store.endpoint]


def paimon(store: MeteredStore, number: int, version: int) -> None:
    put_paimon_table(store, f"paimon/default.db/t{number}", ROWS, version + 1)


KINDS: dict[str, Callable[[MeteredStore, int, int], None]] = {
    "delta": delta,
    "parquet": parquet,
    "lance": lance,
    "iceberg": iceberg,
    "paimon": paimon,
}
LISTS: Final = {"paimon": 2}  # of an unchanged table: a change of the schema alone has no snapshot


@pytest.fixture(scope="module")
def store() -> Iterator[MeteredStore]:
    with metered_store() as found:
        yield found


def dollars(counts: Counter[str], times: float = 1.0) -> float:
    return sum(requests * PRICES.get(operation, 4e-7) for operation, requests in counts.items()) * times


@pytest.mark.parametrize("format", KINDS)
def test_looks_by_marks_take_one_request_a_table(store, format):
    grow = KINDS[format]
    for number in range(TABLES):
        grow(store, number, 0)
        grow(store, number, 1)
    config = ConnectorConfig("c", format, f"s3://{BUCKET}/{format}", store.options)
    connector, found = open_connector(config), dict[str, Any]()

    def look(what: str, **payload: Any) -> Counter[str]:
        body = {"operation": "discover", "known": known, "full_rescan": False, "connector": {"options": {}}, **payload}
        started = time.perf_counter()
        with store.counting() as counts:
            found.clear()
            found.update(inspect(connector, body, lambda *_: None))
            if "only" in payload and payload["only"] is not None:
                inspect(connector, body | {"operation": "names", "lake_mark": lake_mark}, lambda *_: None)
        seconds = time.perf_counter() - started
        shown = ", ".join(f"{operation} {requests}" for operation, requests in sorted(counts.items()))
        month, many = dollars(counts, LOOKS_A_MONTH), dollars(counts, LOOKS_A_MONTH * MANY / TABLES)
        print(
            f"{format:8} {what:22} {counts.total() / TABLES:6.2f} requests a table ({shown}), {seconds:.1f} s;"
            f" by arithmetic ${month:,.0f} a month, ${many:,.0f} of {MANY:,} tables"
        )
        return counts

    known: dict[str, list[int]] = {}
    lake_mark = None
    look("first look", only=None)
    marks = {f"{table['schema']}\0{table['name']}": table["mark"] for table in found["tables"]}
    known = {f"{table['schema']}\0{table['name']}": table["live_snapshot_ids"] for table in found["tables"]}
    lake_mark, names = found["lake_mark"], [[t["schema"], t["name"]] for t in found["tables"]]
    assert len(names) == TABLES and not found["errors"]
    described = look("described again", only=None)
    unchanged = look("unchanged, by marks", only=names, marks=marks, batch=True)
    assert len(found["unchanged"]) == TABLES
    pages = -(-TABLES // 1000)
    around = 1 if format == "paimon" else 0  # the directory of the database
    assert unchanged.total() <= LISTS.get(format, 1) * TABLES + pages + around
    assert described.total() > unchanged.total()
    for number in range(max(1, TABLES // 100)):
        grow(store, number, 2)
    look("a hundredth changed", only=names, marks=marks, batch=True)
    assert len(found["tables"]) == max(1, TABLES // 100)
