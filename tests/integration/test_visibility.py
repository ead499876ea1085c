"""Visibility: a caller limited to some tables sees nothing of the others, in any flight and by any action.

Each part of the hidden table's name contains one word, which no response may contain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_server.core.wire.flight_sql import write_any
from flight_server.process.parts import actions
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection, Database
from store.model import sketches
from store.model.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore
from tests.flight_server.live_server import Client, LiveServer, serving

ACTIONS = actions()

WORD = "hidden"
SEEN, HIDDEN = ("lake", "sales", "orders"), (f"{WORD}lake", WORD, f"{WORD}_t")
HIDDEN_NAME = ".".join(HIDDEN)
SCOPES = ["stats.read", "stats.write", "capture.run", "admin"]
TOKENS = {
    "all": (SCOPES, ["*"]),
    "dotted": (SCOPES, ["*.*.*"]),
    "some": (SCOPES, ["lake.*"]),
    "some dotted": (SCOPES, ["lake.*.*"]),
    "other": (SCOPES, ["other.*"]),
    "none": ([], ["*"]),
}
RULES = {  # of both tables, and their measures
    "null_fraction <= 0.1": "null_fraction",
    "id in orders.id": "containment",
    f"id in {HIDDEN_NAME}.id": "containment",
    f"(SELECT 1 WHERE '{WORD}' > '') = 1": "select",
}
VERSION = 1  # the current snapshot of each table; there is one before it
TABLELESS = ("sys.engines", "sys.functions", "sys.flights", "sys.replication")  # flights that are not about tables
# always empty: no lake of this test declares constraints
EMPTY = ("information_schema.referential_constraints", "information_schema.key_column_usage", "sys.relationships")


def connect_as(server: LiveServer, name: str) -> Client:
    return server.connect(authorization=f"Bearer {name}")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[LiveServer]:
    directory = tmp_path_factory.mktemp("visible")
    entries = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
        f"scopes = {scopes}\ntables = {tables}\n"
        for name, (scopes, tables) in TOKENS.items()
    ]
    (directory / "tokens.toml").write_text("\n".join(entries))
    flags = ("--auth", directory / "tokens.toml")
    with serving(directory, *flags) as server, connect_as(server, "all") as client:
        for table in (SEEN, HIDDEN):
            fill(client, directory, table)
    record(directory / "stats.duckdb")
    with serving(directory, *flags) as server:
        yield server


def record(path: Path) -> None:
    """Adds a publication and a check of each table, as a worker and rules of the server would."""
    database = Database(path)
    catalog = DuckDBStatsStore(database, Catalog(database)).catalog
    entries = [catalog.find(name) for name in (SEEN, HIDDEN)]

    def run(connection: Connection) -> None:
        for entry in entries:
            catalog.publications.put(connection, entry, "trino", snapshot_id=VERSION, state="CURRENT")
            for rule, measure in RULES.items():
                row = [entry.table_key, VERSION, "id", rule, measure, "fail", "PASSED", 0.0, f"of {rule}"]
                connection.execute("INSERT INTO checks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, now(), now())", row)

    database.write(run)
    database.close()


def fill(client: Client, directory: Path, table: tuple[str, str, str]) -> None:
    """Puts at least one row of the table into every flight that is about tables."""
    import deltalake

    catalog, schema, name = table
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field(f"{name}_column", pa.string())]
    rows = pa.table([[1, 2], ["a", "b"]], schema=pa.schema(fields))
    lake = directory / catalog
    for _ in range(VERSION + 1):
        deltalake.write_deltalake(str(lake / schema / name), rows, mode="append")
    client.act("register_connector", {"catalog": catalog, "format": "delta", "uri": str(lake), "options": {}})
    client.act("discover", {"catalog": catalog})
    key = {"table_catalog": catalog, "table_schema": schema, "table_name": name, "snapshot_id": VERSION}
    column = {"column_id": 1, "column_name": "id"}
    path = {"file_path": f"{name}.parquet"}
    sketch = {"target_kind": "COLUMN", "column_id": 1, "sketch_type": "apache-datasketches-kll-v1"}
    for flight_name, row in {
        "stats.tables": {"row_count": 2},
        "stats.columns": column | {"logical_type": "LONG", "row_count": 2, "null_count": 0},
        "stats.files": path | {"row_count": 2},
        "stats.file_columns": path | column,
        "stats.expressions": {"engine_kind": "e", "engine_expression_key": b"k", "engine_version": "1"},
        "stats.column_groups": {"column_ids": [1, 2]},
    }.items():
        client.put({"table": flight_name, "mode": "upsert"}, pa.Table.from_pylist([key | row]))
    content = {"QUANTILES": sketches.kll(np.array([1.0, 2.0])), "MCV": sketches.frequent([name.encode()], [2], 2, 0)}
    sketch_rows = [key | sketch | {"role": role, "data": data} for role, data in content.items()]
    client.put({"table": "stats.sketches", "mode": "upsert"}, pa.Table.from_pylist(sketch_rows))
    client.act("capture", {"requests": [{"table": ".".join(table), "mode": "ASYNC"}]})
    finish_waiting_job(client)
    client.get({"table": "stats.columns", "predicates": [{"column": "table_name", "op": "EQ", "values": [name]}]})


def finish_waiting_job(client: Client) -> None:
    """Finishes the waiting job like a worker, so that there is a decision."""
    (lease,) = client.act("lease_job", {"worker_id": "w", "kinds": ["job", "light"], "wait_seconds": 10})
    target = {"snapshot_id": lease["payload"]["requests"][0]["snapshot_id"], "storage_id": "table", "engine_id": "e"}
    outcome = target | {"outcome": "UNCAPTURABLE", "detail": "", "attributes": {}}
    decision = target | {"outcome": "UNCAPTURABLE", "detail": "", "target_kind": "TABLE", "elapsed_ms": 1.0}
    key = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
    client.act("finish_job", key | {"outcomes": [outcome], "decisions": [decision], "final": True})


def shows_hidden_table(table: pa.Table) -> bool:
    return WORD in repr(table.to_pylist())


READS: list[dict[str, Any]] = [
    {},
    {"snapshot": "current"},
    {"snapshot": "current", "allow_stale": True},
    {"snapshot": VERSION},
    {"output_format": "ROWS"},
    {"partitions": 3},
]


def command_of(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"table": name} | (options if takes(name, options) else {})


def takes(name: str, options: dict[str, Any]) -> bool:
    return name.startswith("stats.") or "snapshot" not in options


@pytest.mark.parametrize("name", FLIGHTS)
def test_no_flight_shows_a_hidden_table(served, name):
    with connect_as(served, "all") as everything, connect_as(served, "some") as limited:
        for options in (each for each in READS if takes(name, each)):
            command = command_of(name, options)
            tickets = [endpoint.ticket for endpoint in everything.info(command).endpoints]
            own = [endpoint.ticket for endpoint in limited.info(command).endpoints]
            # an unlimited caller sees it
            if name not in (*TABLELESS, *EMPTY, "sys.column_usage"):
                assert any(shows_hidden_table(everything.get(ticket)) for ticket in tickets), options
            raw = json.dumps(command | {"partitions": 1}).encode()
            for ticket in (*tickets, *own, flight.Ticket(raw)):
                assert not shows_hidden_table(limited.get(ticket)), options
            if options.keys() <= {"output_format"}:  # it takes no others
                query = {"query_id": "q", "table": name, "output_format": "ARROW_IPC"} | options
                assert not any(WORD.encode() in result for result in limited.act_raw("scan_system_table", query))
            if "partitions" not in options:
                assert WORD.encode() not in limited.act_raw("read", command)[0]


def test_results_of_rules_about_other_tables_need_all_of_these(served):
    with connect_as(served, "all") as everything, connect_as(served, "some") as limited:
        assert everything.get({"table": "sys.checks"}).num_rows == 2 * len(RULES)
        assert set(limited.get({"table": "sys.checks"})["rule"].to_pylist()) == {*RULES} - {*list(RULES)[2:]}


def test_no_ticket_tells_that_a_hidden_table_has_changed(served):
    row = dict(zip(("table_catalog", "table_schema", "table_name"), HIDDEN, strict=True)) | {"snapshot_id": VERSION}
    one = [{"column": c, "op": "EQ", "values": [row[c]]} for c in ("table_catalog", "table_schema", "table_name")]
    with connect_as(served, "all") as everything, connect_as(served, "some") as limited:
        info = everything.info({"table": "stats.files", "snapshot": VERSION, "predicates": one})
        changed = row | {"file_path": "added.parquet", "row_count": 1}
        everything.put({"table": "stats.files", "mode": "upsert"}, pa.Table.from_pylist([changed]))
        with pytest.raises(pa.ArrowKeyError, match="GONE"):
            everything.get(info.endpoints[0].ticket)
        assert limited.get(info.endpoints[0].ticket).num_rows == 0


def null_slot_bytes(table: pa.Table) -> bytes:
    """The bytes in the slots of NULLs of the columns with a fixed width."""
    found = b""
    for column in (chunk for chunks in table.columns for chunk in chunks.chunks):
        if pa.types.is_primitive(column.type) and column.null_count and column.type.bit_width >= 8:
            width = column.type.bit_width // 8
            slots = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
            found += slots.reshape(-1, width)[column.is_null().to_numpy(zero_copy_only=False)].tobytes()
    return found


def test_slots_of_nulls_contain_only_zeros(served):
    """DuckDB leaves old memory in the slots of NULLs, such as parts of the hidden names."""
    checked_bytes = 0
    with connect_as(served, "all") as everything, connect_as(served, "some") as limited:
        for name in FLIGHTS:
            found = []
            for command in ({"table": name}, command_of(name, {"snapshot": "current"})):
                everything.get(command)
                found += [limited.get(command), pa.ipc.open_stream(limited.act_raw("read", command)[0]).read_all()]
            scan = b"".join(limited.act_raw("scan_system_table", {"query_id": "q", "table": name}))
            found.append(pa.ipc.open_stream(scan).read_all())
            for sql in (f"SELECT * FROM {name} ORDER BY 1 DESC", f"SELECT * FROM {name}"):
                if name != "adbc.statistics":
                    found.append(limited.read(write_any("CommandStatementQuery", (1, sql.encode()))))
            for number, table in enumerate(found):
                residue = null_slot_bytes(table)
                checked_bytes += len(residue)
                assert not residue.strip(b"\0"), (name, number, residue)
    assert checked_bytes > 1000  # there were NULLs


@pytest.mark.parametrize("name", [name for name in FLIGHTS if "table_name" in FLIGHTS[name].schema.names])
def test_no_predicate_shows_a_hidden_table(served, name):
    predicates = [
        [{"column": "table_name", "op": "EQ", "values": [HIDDEN[2]]}],
        [
            {"column": c, "op": "EQ", "values": [v]}
            for c, v in zip(("table_catalog", "table_schema", "table_name"), HIDDEN, strict=True)
        ],
        [{"column": "table_name", "op": "NEQ", "values": [SEEN[2]]}],
    ]
    with connect_as(served, "all") as everything, connect_as(served, "some") as limited:
        for condition in predicates:
            command = {"table": name, "predicates": condition}
            before = everything.get(command).num_rows
            assert before > 0 or name in (*EMPTY, "sys.column_usage"), condition
            for _ in range(3):  # the second and third may be served from a cache
                assert limited.get(command).num_rows == 0, condition


@pytest.mark.parametrize("name", [name for name in FLIGHTS if name.startswith("stats.")])
@pytest.mark.parametrize("snapshot", ["current", VERSION])
def test_no_ticket_shows_tables_to_a_caller_who_sees_none_of_them(served, name, snapshot):
    """The ticket names the tables and their snapshots; a caller may make one, too."""
    of_hidden = [{"column": "table_catalog", "op": "EQ", "values": [HIDDEN[0]]}]
    with connect_as(served, "all") as everything:
        for predicates, caller in ((of_hidden, "some"), ([], "other")):
            info = everything.info({"table": name, "snapshot": snapshot, "predicates": predicates, "partitions": 3})
            tickets = [endpoint.ticket for endpoint in info.endpoints]
            assert any(everything.get(ticket).num_rows for ticket in tickets)
            with connect_as(served, caller) as limited:
                assert not any(limited.get(ticket).num_rows for ticket in tickets)


def test_no_estimate_counts_hidden_rows(served):
    with connect_as(served, "some") as limited, connect_as(served, "all") as everything:
        stored = {"table": "sys.flights", "predicates": [{"column": "name", "op": "EQ", "values": ["stats.columns"]}]}
        assert everything.get(stored)["row_estimate"].to_pylist() == [2]
        assert limited.get(stored)["row_estimate"].to_pylist() == [None]


def bodies(server: LiveServer) -> dict[str, list[dict[str, Any]]]:
    """Bodies of each action that name the hidden table; an empty list for actions without a table."""
    with connect_as(server, "all") as client:
        jobs = client.get({"table": "sys.capture_jobs"}).to_pylist()
    job = {"job_id": next(job["job_id"] for job in jobs if job["table_catalog"] == HIDDEN[0])}
    request = {"requests": [{"table": HIDDEN_NAME, "snapshot": VERSION}]}
    mixed = {"requests": [{"table": ".".join(SEEN), "snapshot": VERSION}, *request["requests"]]}
    sketch = {"table": HIDDEN_NAME, "snapshot": VERSION, "column": "id"}
    catalog = {"catalog": HIDDEN[0]}
    key = {"job_id": "x", "lease_token": "t"}
    return {
        "register_connector": [catalog | {"format": "delta", "uri": "/tmp"}],
        "validate_connector": [catalog],
        "drop_connector": [catalog],
        "discover": [catalog, catalog | {"table": f"{HIDDEN[1]}.{HIDDEN[2]}"}],
        "capture": [request, mixed],
        "resolve": [request, mixed],
        "get_job": [job],
        "cancel_job": [job],
        "wait_job": [job],
        "lease_job": [{"worker_id": "w", "kinds": ["job"]}],
        "renew_lease": [key],
        "declare_listing": [key | {"snapshot_id": 1, "mark": "m"}],
        "segment_place": [key],
        "add_segment": [
            key
            | {
                "table": "stats.files",
                "snapshot_id": 1,
                "file": f"{0:032}.parquet",
                "digest": "0",
                "size_bytes": 1,
                "rows": 1,
            }
        ],
        "finish_job": [key],
        "finish_jobs": [{"finishes": [key]}],
        "return_leases": [{"lease_tokens": ["t"]}],
        "changed": [{"tables": [HIDDEN_NAME]}, {"tables": [".".join(SEEN), HIDDEN_NAME]}],
        "note_costs": [
            {"costs": [catalog | {"operation": "GET", "reason": "watch", "requests": 1, "bytes": 1}]},
        ],
        "delete_stats": [{"table": HIDDEN_NAME}],
        "expire": [{"table": HIDDEN_NAME, "dry_run": True}],
        "stats_meta": [{"table": HIDDEN_NAME, "snapshot": VERSION, "target": {"kind": "TABLE"}}],
        "merge_sketches": [sketch],
        "publish": [{"table": HIDDEN_NAME, "to": "iceberg"}],
        "withdraw": [{"table": HIDDEN_NAME, "to": "iceberg"}],
        "describe": [{"table": HIDDEN_NAME}, {"table": HIDDEN_NAME, "owner": "me"}],
        "expect": [{"table": HIDDEN_NAME, "measure": "rows", "snapshot": "current"}],
        "unique": [{"table": HIDDEN_NAME, "column_id": 1}],
        "answer": [{"sql": f"SELECT count(*) FROM {HIDDEN_NAME}"}],
        "estimate": [{"table": HIDDEN_NAME}],
        "backup": [{"path": "/tmp/nobody-may-have-this"}],
        "read": [],
        "scan_system_table": [],
        "health": [],
    }


def test_no_action_reaches_a_hidden_table(served):
    bodies_of = bodies(served)
    assert set(ACTIONS) <= set(bodies_of), "a new action needs a body here"
    with connect_as(served, "some") as limited:
        for name, action_bodies in bodies_of.items():
            for body in action_bodies:
                # A job has no name that a token's patterns could decide by: it does not exist for this caller.
                error, code = (
                    (pa.ArrowKeyError, "UNKNOWN_JOB")
                    if set(body) == {"job_id"}
                    else (flight.FlightUnauthorizedError, "PERMISSION_DENIED")
                )
                with pytest.raises(error, match=code):
                    limited.act(name, body)
        assert WORD not in json.dumps(limited.act("expire", {"dry_run": True}))
        assert limited.act("discover", {"catalog": "lake"})[0]["table"] == ".".join(SEEN)
    with connect_as(served, "all") as everything:  # nothing was deleted
        assert everything.get({"table": "stats.tables"}).num_rows == 2


def test_no_hint_names_a_hidden_table(served):
    with connect_as(served, "some") as limited, connect_as(served, "all") as everything:
        for name, body in {
            "delete_stats": {"table": HIDDEN_NAME[:-1]},
            "discover": {"catalog": HIDDEN[0][:-1]},
            "drop_connector": {"catalog": HIDDEN[0][:-1]},
            "validate_connector": {"catalog": HIDDEN[0][:-1]},
        }.items():
            with pytest.raises(pa.ArrowKeyError, match="did you mean"):
                everything.act(name, body)
            with pytest.raises((pa.ArrowKeyError, flight.FlightUnauthorizedError)) as refusal:
                limited.act(name, body)
            assert "did you mean" not in str(refusal.value)


def test_no_put_reaches_a_hidden_table(served):
    row = {"table_catalog": HIDDEN[0], "table_schema": HIDDEN[1], "table_name": HIDDEN[2], "snapshot_id": VERSION}
    own = dict(zip(("table_catalog", "table_schema", "table_name"), SEEN, strict=True)) | {"snapshot_id": VERSION}
    with connect_as(served, "some") as limited:
        for mode in ("create", "upsert", "replace_snapshot"):
            for records in ([row], [own, row]):
                rows = pa.Table.from_pylist([each | {"row_count": 7} for each in records])
                with pytest.raises(flight.FlightUnauthorizedError):
                    limited.put({"table": "stats.tables", "mode": mode}, rows)
    with connect_as(served, "all") as everything:
        assert set(everything.get({"table": "stats.tables"})["row_count"].to_pylist()) == {2}


def test_pattern_with_a_star_for_each_part_means_all_tables(served):
    estimate = {"table": "sys.flights", "predicates": [{"column": "name", "op": "EQ", "values": ["stats.columns"]}]}
    with connect_as(served, "dotted") as dotted, connect_as(served, "some dotted") as some:
        assert dotted.get(estimate)["row_estimate"].to_pylist() == [2]
        assert dotted.act("lease_job", {"worker_id": "w", "kinds": ["job"]}) == []
        with pytest.raises(flight.FlightUnauthorizedError, match="backup needs a token for all tables"):
            some.act("backup", {"path": "/tmp/nobody-may-have-this"})
        assert some.act("discover", {"catalog": "lake"})[0]["table"] == ".".join(SEEN)


def test_idempotency_keys_belong_to_their_callers(served):
    own = dict(zip(("table_catalog", "table_schema", "table_name"), SEEN, strict=True)) | {"snapshot_id": VERSION}
    one, other = (pa.Table.from_pylist([own | {"file_path": path, "row_count": 1}]) for path in ("k1", "k2"))
    command = {"table": "stats.files", "mode": "upsert", "idempotency_key": "load-1"}
    with connect_as(served, "all") as everything, connect_as(served, "some") as limited:
        first = limited.put(command, one)
        assert first["created"] == 1
        assert everything.put(command, other)["created"] == 1
        assert limited.put(command, one) == first
        with pytest.raises(pa.ArrowInvalid, match=r"\[CONFLICT\] this idempotency_key was used before"):
            limited.put(command, other)


def test_token_without_scopes_may_only_call_health(served):
    bodies_of = bodies(served) | {
        "read": [{"table": "sys.flights"}],
        "scan_system_table": [{"query_id": "q", "table": "sys.flights"}],
    }
    with connect_as(served, "none") as unscoped:
        for name in set(ACTIONS) - {"health"}:
            with pytest.raises(flight.FlightUnauthorizedError, match="PERMISSION_DENIED"):
                unscoped.act(name, bodies_of[name][0])
        for name in FLIGHTS:
            with pytest.raises(flight.FlightUnauthorizedError, match="PERMISSION_DENIED"):
                unscoped.get({"table": name})
        with pytest.raises(flight.FlightUnauthorizedError, match="PERMISSION_DENIED"):
            list(unscoped.flight.list_flights(b"", unscoped.options()))
