"""Requests to an object store, as it counts them itself: those of file systems, and of looks at tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import Connector, ConnectorConfig
from capture.connectors.storage.places import Place, open_place
from capture.connectors.storage.requests import Meter, counting
from flight_server.worker.lake_inspection import inspect
from tests.integration.metered_store import (
    BUCKET,
    MeteredStore,
    iceberg_catalog,
    metered_store,
    parquet_bytes,
    put_paimon_table,
)

pytest.importorskip("moto")
ROWS = pa.table({"id": pa.array(range(100), pa.int64())})


@pytest.fixture(scope="module")
def store() -> Iterator[MeteredStore]:
    with metered_store() as found:
        yield found


def told(meter: Meter) -> Counter[str]:
    return Counter({operation: requests for operation, (requests, _) in meter.take().items()})


# File systems.


def _written(place: Place) -> None:
    with place.below("new").file_system.open_output_stream(place.below("new").path) as stream:
        stream.write(b"x" * 1000)


def _read_parquet(place: Place) -> None:
    with place.below("a/0.parquet").open() as file:
        pq.ParquetFile(file, pre_buffer=True).read()


CALLS: dict[str, Callable[[Place], object]] = {
    "list": lambda place: place.file_system.get_file_info(pafs.FileSelector(f"{place.path}/a")),
    "list many": lambda place: place.file_system.get_file_info(pafs.FileSelector(f"{place.path}/many")),
    "list all below": lambda place: place.file_system.get_file_info(pafs.FileSelector(place.path, recursive=True)),
    "list nothing": lambda place: place.file_system.get_file_info(
        pafs.FileSelector(f"{place.path}/none", allow_not_found=True)
    ),
    "file": lambda place: place.file_system.get_file_info(f"{place.path}/a/0.parquet"),
    "directory": lambda place: place.file_system.get_file_info(f"{place.path}/a"),
    "nothing": lambda place: place.file_system.get_file_info(f"{place.path}/none"),
    "several": lambda place: place.file_system.get_file_info([f"{place.path}/{name}" for name in ("a", "b/0", "x")]),
    "read": lambda place: place.below("a/0.parquet").read(),
    "read parquet": _read_parquet,
    "write": _written,
    "delete": lambda place: place.file_system.delete_file(f"{place.path}/b/0"),
}


@pytest.fixture(scope="module")
def place(store: MeteredStore) -> Place:
    store.put("files/a/0.parquet", parquet_bytes(ROWS))
    store.put("files/b/0", b"x")
    for number in range(1001):
        store.put(f"files/many/{number:04}", b"x")
    return open_place(f"s3://{BUCKET}/files", store.options)


@pytest.mark.parametrize("call", CALLS)
def test_requests_are_counted_as_the_store_counts_them(store, place, call):
    meter = Meter()
    with store.counting() as counted, counting(meter):
        CALLS[call](place)
    assert told(meter) == counted


def test_what_is_missing_is_counted_too(store, place):
    meter = Meter()
    with store.counting() as counted, counting(meter), pytest.raises(FileNotFoundError):
        place.below("none").read()
    assert told(meter) == counted == {"HEAD": 1}


def test_without_a_meter_a_file_is_that_of_the_library(place):
    with place.below("a/0.parquet").open() as file:
        assert not isinstance(file, pa.PythonFile)


# Looks.


def _delta(store: MeteredStore, lake: str) -> Callable[[], None]:
    from deltalake import write_deltalake

    def grow() -> None:
        write_deltalake(f"s3://{BUCKET}/{lake}/t", ROWS, mode="append", storage_options=store.options)

    return grow


def _parquet(store: MeteredStore, lake: str) -> Callable[[], None]:
    written = iter(range(100))

    def grow() -> None:
        store.put(f"{lake}/t/part=a/{next(written)}.parquet", parquet_bytes(ROWS))
        store.put(f"{lake}/t/part=b/{next(written)}.parquet", parquet_bytes(ROWS))

    return grow


def _lance(store: MeteredStore, lake: str) -> Callable[[], None]:
    import lance

    modes = iter(["create", "append", "append"])

    def grow() -> None:
        uri = f"s3://{BUCKET}/{lake}/t.lance"
        lance.write_dataset(ROWS, uri, mode=next(modes), storage_options=store.options)

    return grow


def _iceberg(store: MeteredStore, lake: str) -> Callable[[], None]:
    table = iceberg_catalog(store).create_table("default.t", ROWS.schema, location=f"s3://{BUCKET}/{lake}/t")
    return lambda: table.append(ROWS)


def _paimon(store: MeteredStore, lake: str) -> Callable[[], None]:
    commits = iter(range(1, 100))
    return lambda: put_paimon_table(store, f"{lake}/default.db/t", ROWS, next(commits))


KINDS = {"delta": _delta, "parquet": _parquet, "lance": _lance, "iceberg": _iceberg, "paimon": _paimon}
LISTS = {"paimon": 2}  # a change of the schema alone has no snapshot: the directories of both are listed


def look(connector: Connector, mark: str | None) -> dict:
    marks = {} if mark is None else {"default\0t": mark}
    payload = {"operation": "discover", "only": [["default", "t"]], "known": {}, "full_rescan": False, "marks": marks}
    return inspect(connector, payload, lambda *_: None)


@pytest.mark.parametrize("format", KINDS)
def test_an_unchanged_table_costs_one_request_and_a_changed_one_is_described(store, format):
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg", "paimon": "pypaimon"}.get(format, "pyarrow"))
    grow = KINDS[format](store, f"looks-{format}")
    grow()
    config = ConnectorConfig("c", format, f"s3://{BUCKET}/looks-{format}", store.options)
    (first,) = look(open_connector(config), None)["tables"]
    meter = Meter()
    connector = open_connector(config)  # of another worker, which has seen nothing
    with store.counting() as counted, counting(meter):
        assert look(connector, first["mark"])["unchanged"] == [("default", "t")]
    assert counted == told(meter) == {"LIST": LISTS.get(format, 1)}
    grow()
    meter = Meter()
    with store.counting() as counted, counting(meter):
        (then,) = look(connector, first["mark"])["tables"]
    by_library = format == "lance"  # which does not tell HEAD from GET
    counts = told(meter)
    assert counts.total() == counted.total() if by_library else counts == counted
    assert then["current_snapshot_id"] != first["current_snapshot_id"] and then["mark"] != first["mark"]


def test_new_tables_cost_one_request_to_find(store):
    lake, grow = "names", _delta(store, "names")
    grow()
    connector = open_connector(ConnectorConfig("c", "delta", f"s3://{BUCKET}/{lake}", store.options))
    asked = {"operation": "names", "connector": {"options": {}}}
    first = inspect(connector, asked, lambda *_: None)
    with store.counting() as counted:
        assert inspect(connector, asked | {"lake_mark": first["lake_mark"]}, lambda *_: None) == {}
    assert counted == {"LIST": 1}
    from deltalake import write_deltalake

    write_deltalake(f"s3://{BUCKET}/{lake}/u", ROWS, storage_options=store.options)
    found = inspect(connector, asked | {"lake_mark": first["lake_mark"]}, lambda *_: None)
    assert found["names"] == [("default", "t"), ("default", "u")]
