"""Scans end to end: partitions, order, batch sizes, rows as text."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, Principal
from flight_server.core.reads.stats_sources import LABELS
from flight_server.core.reads.stream import MAX_BATCH_BYTES
from flight_server.core.wire import scan_request
from flight_server.core.wire.tickets import of_ticket, to_ticket
from store.history import validation
from store.model import target_ids
from store.model.errors import ResourceExhausted
from store.model.schemas import FLIGHTS
from store.stats_store import Put
from tests.flight_server.serving import app_in, command, put, read, rows

TABLES = 9


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        for table in range(TABLES):
            put(app, rows(f"t{table}", 1, reversed(range(1, 40 + table))))
        files = [
            {
                "table_catalog": "lake",
                "table_schema": "s",
                "table_name": "t0",
                "snapshot_id": 1,
                "file_path": f"f{number:03}",
                "column_id": number % 3 + 1,
                "row_count": number,
            }
            for number in range(300)
        ]
        put(app, files, "stats.file_columns")
        yield app


def parts_of(app, data: bytes, principal=ANONYMOUS):
    request = app.scanner.pin(scan_request.of_command(data), principal)
    parts = app.scanner.parts(request, principal)
    tickets = [to_ticket(part).ticket for part in parts]
    return parts, [app.scanner.table(of_ticket(ticket), principal) for ticket in tickets]


def row_keys(table: pa.Table) -> list[tuple]:
    names = [name for name in ("table_name", "snapshot_id", "file_path", "column_id") if name in table.column_names]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("snapshot", "partitions"), [*itertools.product([None, "current", 1], [1, 3]), ("current", 2 * TABLES)]
)
@pytest.mark.parametrize("flight", ["stats.columns", "stats.file_columns"])
def test_partitions_are_disjoint_and_complete(app, flight, snapshot, partitions):
    body = {"table": flight, "snapshot": snapshot}
    whole = read(app, json.dumps(body).encode())
    _, tables = parts_of(app, json.dumps(body | {"partitions": partitions}).encode())
    together = [key for table in tables for key in row_keys(table)]
    assert len(together) == len(set(together))
    assert sorted(together) == sorted(row_keys(whole))


def test_partitions_of_many_tables_are_in_order_and_similar_in_size(app):
    parts, tables = parts_of(app, command(partitions=3))
    assert [part.part.modulus for part in parts] == [1, 1, 1]
    assert [key for table in tables for key in row_keys(table)] == row_keys(read(app, command()))
    sizes = [table.num_rows for table in tables]
    assert max(sizes) < 2 * min(sizes)


def test_partitions_apply_predicates_and_table_visibility(app):
    data = command("t3", partitions=4, columns=["column_id"])
    _, tables = parts_of(app, data)
    assert sorted(value for table in tables for value in table["column_id"].to_pylist()) == list(range(1, 43))
    some = Principal("some", ALL_SCOPES, ("lake.s.t1", "lake.s.t2"))
    _, tables = parts_of(app, command(partitions=2), some)
    assert {name for table in tables for name in table["table_name"].to_pylist()} == {"t1", "t2"}


def test_scan_with_a_limit_or_of_a_system_flight_is_one_partition(app):
    assert len(parts_of(app, command(partitions=5, limit=3))[0]) == 1
    assert len(parts_of(app, command(flight="sys.flights", partitions=5))[0]) == 1


def test_rows_of_a_table_are_in_order_under_any_projection(app):
    names = [f"c{number}" for number in range(1, 45)]
    for columns in (None, ["column_name"], ["column_name", "column_id"]):
        data = json.dumps(json.loads(command("t5", columns=columns)) | {"query_id": str(columns)}).encode()
        for _ in range(3):  # from DuckDB, then from the cache
            assert read(app, data)["column_name"].to_pylist() == names
            assert read(app, data).column_names == columns or columns is None


def test_projection_of_unknown_columns_keeps_the_row_count(app):
    for _ in range(3):
        table = read(app, command("t1", columns=["no", "such"]))
        assert (table.num_rows, table.num_columns) == (40, 0)


def test_rows_output_format_is_json_text(app):
    data = command("t1", columns=["column_id", "null_count"], output_format="ROWS", limit=3)
    found = read(app, data)["row"].to_pylist()
    assert [json.loads(row) for row in found] == [["1", "1"], ["2", "2"], ["3", None]]


def test_batches_stay_within_max_batch_bytes(app):
    long = "x" * 100_000
    put(app, rows("wide", 1, range(1, 80), min=long, max=long + "y", logical_type="STRING"))
    result = app.scanner.read(of_ticket(command("wide")), ANONYMOUS)
    sizes = [batch.nbytes for batch in result]
    assert sum(sizes) > 3 * MAX_BATCH_BYTES
    assert max(sizes) <= MAX_BATCH_BYTES
    assert app.streams.running == 0


def test_max_stream_bytes_applies_to_every_read_path():
    """Results of a query, of a cached slice, of a message and of a repeated message."""
    with app_in(max_stream_bytes=2000) as app:
        put(app, rows("small", 1, range(1, 3)))
        put(app, rows("large", 1, range(1, 60)))
        one = command("small", columns=["column_name", "ndv"])
        for _ in range(4):
            assert read(app, one).num_rows == 2
            assert app.scanner.message(of_ticket(one), ANONYMOUS).size < 2000
            for data in (command("large"), command("large", snapshot="current"), command()):
                with pytest.raises(ResourceExhausted, match="more bytes than this server sends"):
                    read(app, data)
            with pytest.raises(ResourceExhausted):
                app.scanner.message(of_ticket(command("large")), ANONYMOUS)


FLIGHTS_OF_MANY = ("stats.columns", "stats.tables", "stats.file_columns", "stats.sketches")
SNAPSHOTS = ({}, {"snapshot": "current"}, {"snapshot": 1}, {"snapshot": 2, "allow_stale": True}, {"pins": True})


def test_limited_scans_of_all_tables_or_one_return_a_subset_of_all_rows():
    with app_in(cache_bytes=0) as app:
        for table in "abc":
            for snapshot in (1, 2, 3):
                put(app, rows(table, snapshot, range(1, 9 - snapshot), schema_hash="h" if snapshot < 3 else table))
            name = {"table_catalog": "lake", "table_schema": "s", "table_name": table, "snapshot_id": 2}
            put(app, [name | {"row_count": 5, "completeness": "COMPLETE"}], "stats.tables")
            put(app, [name | {"file_path": "f", "column_id": 1, "row_count": 5}], "stats.file_columns")
            sketch = {"target_kind": "COLUMN", "column_id": 1, "role": "NDV", "sketch_type": "x", "data": b"x"}
            sketches = FLIGHTS["stats.sketches"]
            fields = pa.schema([sketches.schema.field(field) for field in name | sketch])
            prepared = validation.prepare(sketches, pa.Table.from_pylist([name | sketch], fields))
            app.store.put([Put("stats.sketches", target_ids.with_storage_ids(prepared))])
        for name, change in (("a", {"table_name": "renamed"}), ("b", {"dropped": True})):
            entry = app.catalog.get(f"lake.s.{name}")
            app.database.write(lambda c, e=entry, given=change: app.catalog.change(c, {e.table_key: given}))
        for table in (None, "c"):
            check_limited(app, table)
        assert set(read(app, command(limit=99, snapshot="current"))["table_name"].to_pylist()) == {"renamed", "c"}
        for snapshot, label in itertools.product(("current", 1, 2), LABELS):
            whole, limited = (
                read(app, command(snapshot=snapshot, columns=[label], **limit)) for limit in ({}, {"limit": 99})
            )
            assert whole.num_rows > 0
            assert Counter(limited[label].to_pylist()) == Counter(whole[label].to_pylist()), (snapshot, label)


def check_limited(app, table):
    where = {} if table else {"predicates": [{"column": "table_schema", "op": "EQ", "values": ["s"]}]}
    forms = itertools.cycle([{}, {"columns": ["table_id", "snapshot_id"]}, where])
    for (flight, snapshot), more in zip(itertools.product(FLIGHTS_OF_MANY, SNAPSHOTS), forms, strict=False):
        body = {name: value for name, value in snapshot.items() if name != "pins"} | more
        if snapshot.get("pins"):
            body["snapshot"] = "current"
        whole, *limited = (
            app.scanner.table(pinned(app, request) if snapshot.get("pins") else request, ANONYMOUS)
            for request in (
                of_ticket(command(table, flight=flight, **body, **limit))
                for limit in ({}, {"limit": 4}, {"limit": 99_999})
            )
        )
        all_rows = Counter(map(str, whole.to_pylist()))
        for few, limit in zip(limited, (4, 99_999), strict=True):
            assert few.schema == whole.schema
            assert few.num_rows == min(limit, whole.num_rows), (flight, body)
            assert Counter(map(str, few.to_pylist())) <= all_rows, (flight, body)


def pinned(app, request):
    return app.scanner.pin(request, ANONYMOUS)
