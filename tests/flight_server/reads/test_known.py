"""One table's rows read the short way are those of the long way, and stay so while tables change."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.reads import known
from store.schemas import FLIGHTS
from tests.flight_server.serving import command, put, read, rows, service_in


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """`lone` has rows at one snapshot, `many` at several, `files` of files."""
    with service_in(tmp_path_factory.mktemp("known"), cache_bytes=0, hot_bytes=0) as made:
        given = rows("lone", 7, range(1, 30), completeness="COMPLETE")
        given += [row | {"row_groups_sampled": row["column_id"] % 2} for row in rows("lone", 7, range(30, 40))]
        put(made, [{"completeness": None, "row_groups_sampled": None} | row for row in given])
        for snapshot in (1, 2, 3):
            put(made, rows("many", snapshot, range(snapshot, 12), completeness="COMPLETE"))
        files = [
            {"table_catalog": "lake", "table_schema": "s", "table_name": "files", "snapshot_id": number % 2 + 1,
             "file_path": f"f{number:03}", "column_id": number % 3 + 1, "row_count": number}
            for number in range(60)
        ]  # fmt: skip
        put(made, files, "stats.file_columns")
        yield made


COLUMNS = FLIGHTS["stats.columns"].schema.names


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=st.sampled_from(["lone", "many", "files", "none"]),
    flight=st.sampled_from(["stats.columns", "stats.file_columns", "stats.tables"]),
    snapshot=st.sampled_from([None, "current", 1, 2, 7]),
    columns=st.none() | st.lists(st.sampled_from([*COLUMNS, "file_path"]), min_size=1, max_size=6),
    more=st.lists(
        st.sampled_from([
            {"column": "column_id", "op": "LTE", "values": [20]},
            {"column": "column_id", "op": "IN", "values": [3, 5, "no number"]},
            {"column": "null_count", "op": "IS_NULL", "values": []},
            {"column": "Freshness", "op": "EQ", "values": ["EXACT"]},
            {"column": "usable_for", "op": "NEQ", "values": ["PRUNING"]},
            {"column": "table_name", "op": "IN", "values": ["lone", "many"]},
            {"column": "table_id", "op": "IS_NOT_NULL", "values": []},
        ]), max_size=3,
    ),
    limit=st.sampled_from([None, 0, 3]),
)  # fmt: skip
def test_the_short_way_is_the_long_way(service, table, flight, snapshot, columns, more, limit):
    body = json.loads(command(table, flight, snapshot=snapshot, columns=columns))
    body["predicates"] += more
    data = json.dumps(body).encode()
    short = read(service, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "stored_part", lambda *_: None)
        patch.setattr(service.scanner.queries, "_lone", lambda *_: None)
        long = read(service, data)
    assert short.schema == long.schema
    if limit is None:
        assert short.equals(long)
    limited = read(service, json.dumps(body | {"limit": limit}).encode())
    assert limited.num_rows == long.num_rows if limit is None else limited.num_rows == min(limit, long.num_rows)


def test_a_second_snapshot_ends_the_short_way(service):
    data = command("grows", snapshot=5, columns=["column_id", "freshness"])
    put(service, rows("grows", 5, [1, 2]))
    assert read(service, data).to_pydict() == {"column_id": [1, 2], "freshness": ["EXACT", "EXACT"]}
    put(service, rows("grows", 4, [3]))
    key = service.catalog.find(("lake", "s", "grows")).table_key
    assert service.scanner.queries.lone.of("stats.columns", key, -1) is None
    put(service, rows("grows", 6, [1, 2, 9]))
    later = command("grows", snapshot=6, columns=["column_id", "freshness"])
    assert read(service, later)["column_id"].to_pylist()[:2] == [1, 2]


def test_a_commit_under_way_is_waited_for_by_nobody(service):
    """While a table's commit is under way its generation is not settled: readers go the long way."""
    put(service, rows("busy", 5, [1, 2]))
    table = service.catalog.find(("lake", "s", "busy"))
    generation = service.changes.settled(table.table_key)
    assert generation is not None
    service.changes.begin({table.table_key})
    assert service.changes.settled(table.table_key) is None
    answer = read(service, command("busy", snapshot=5))
    service.changes.note({table.table_key})
    assert answer["column_id"].to_pylist() == [1, 2]
    assert service.changes.settled(table.table_key) == generation + 1


def test_readers_never_see_half_of_what_is_put(service):
    """Every put replaces the rows of a snapshot and adds one of another: a reader sees both or none."""
    stop, wrong = threading.Event(), []

    def look():
        while not stop.is_set():
            found = read(service, command("moving", snapshot=9, columns=["column_id", "row_count"]))
            if len(set(found["row_count"].to_pylist())) > 1:
                wrong.append(found.to_pydict())

    def state(count):
        return [row | {"row_count": 100 + count} for row in rows("moving", 9, range(1, 8))]

    put(service, state(0))
    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for count in range(1, 25):
        put(service, state(count))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
