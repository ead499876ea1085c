"""Captures of single partitions through a server and its worker, of Delta, Iceberg, Paimon and hive-partitioned
Parquet."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import STATFLIGHT, Client, LiveServer, serving

DAYS = (date(2024, 5, 1), date(2024, 5, 2), date(2024, 5, 3))
REGIONS = ("eu", "us")
FIRST_DAY = [{"day": "2024-05-01"}]


def rows() -> pa.Table:
    """Ten values for each day and region, all distinct."""
    records = [
        (day, region, 100 * at + 10 * of + n)
        for at, day in enumerate(DAYS)
        for of, region in enumerate(REGIONS)
        for n in range(10)
    ]
    return pa.table({"day": [r[0] for r in records], "region": [r[1] for r in records], "v": [r[2] for r in records]})


def delta(root: Path) -> dict[str, Any]:
    from deltalake import write_deltalake

    write_deltalake(root / "events", rows(), partition_by=["day", "region"])
    write_deltalake(root / "plain", rows())
    return {"uri": str(root)}


def parquet(root: Path) -> dict[str, Any]:
    pq.write_to_dataset(rows(), root / "events", partition_cols=["day", "region"])
    pq.write_to_dataset(rows(), root / "plain")
    return {"uri": str(root)}


def iceberg(root: Path) -> dict[str, Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    root.mkdir(parents=True)
    uri = f"sqlite:///{root / 'catalog.db'}"
    catalog = SqlCatalog("lake", uri=uri, warehouse=f"file://{root / 'warehouse'}")
    catalog.create_namespace("default")
    events = catalog.create_table("default.events", rows().schema)
    with events.update_spec() as spec:
        spec.add_identity("day")
        spec.add_identity("region")
    events.append(rows())
    catalog.create_table("default.plain", rows().schema).append(rows())
    return {"uri": uri, "options": {"warehouse": f"file://{root / 'warehouse'}", "name": "lake"}}


def paimon(root: Path) -> dict[str, Any]:
    from pypaimon import CatalogFactory, Schema

    catalog = CatalogFactory.create({"warehouse": str(root)})
    catalog.create_database("default", True)
    for name, keys in (("events", ["day", "region"]), ("plain", [])):
        catalog.create_table(f"default.{name}", Schema.from_pyarrow_schema(rows().schema, partition_keys=keys), False)
        append(catalog, f"default.{name}", rows())
    return {"uri": str(root)}


def append(catalog: Any, name: str, table: pa.Table) -> None:
    builder = catalog.get_table(name).new_batch_write_builder()
    writer = builder.new_write()
    writer.write_arrow(table)
    builder.new_commit().commit(writer.prepare_commit())
    writer.close()


LAKES = {"delta": delta, "iceberg": iceberg, "paimon": paimon, "parquet": parquet}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("server"), "--workers", 1) as server:
        yield server


@pytest.fixture
def client(server) -> Iterator[Client]:
    with server.connect() as client:
        yield client


@pytest.fixture(params=LAKES)
def lake(request, tmp_path, client) -> Iterator[str]:
    """The name of a catalog with the tables `events`, partitioned by day and region, and `plain`."""
    name = f"{request.param}_{uuid.uuid4().hex}"
    config = LAKES[request.param](tmp_path / "lake")
    client.act("register_connector", {"catalog": name, "format": request.param, **config})
    client.act("discover", {"catalog": name})
    yield name
    client.act("drop_connector", {"catalog": name})


def stored(client: Client, flight: str, lake: str) -> list[dict[str, Any]]:
    predicates = [{"column": "table_catalog", "op": "EQ", "values": [lake]}]
    return client.get({"table": flight, "predicates": predicates}).to_pylist()


def column_id(client: Client, lake: str, name: str) -> int:
    (found,) = [
        c["column_id"]
        for c in stored(client, "information_schema.columns", lake)
        if (c["table_name"], c["column_name"]) == ("events", name)
    ]
    return found


def test_capture_of_the_table_reuses_files_of_a_partition_capture(client, lake):
    table = {"table": f"{lake}.default.events"}
    column = table | {"target": {"kind": "COLUMN", "column_id": column_id(client, lake, "v")}}
    outcomes = client.act("capture", {"requests": [r | {"partitions": FIRST_DAY} for r in (table, column)]})
    assert [o["outcome"] for o in outcomes] == ["CAPTURED"] * 2, outcomes
    assert all(o["detail"].startswith("statistics of 2 of 6 files") for o in outcomes)
    assert outcomes[1]["attributes"]["files_read"] == 2 and outcomes[1]["attributes"]["rows_read"] == 20
    # a partial capture stores nothing about the whole table
    assert stored(client, "stats.tables", lake) == [] and stored(client, "stats.columns", lake) == []
    computed = [r for r in stored(client, "stats.file_columns", lake) if r["producer"] == "ENGINE_COMPUTED"]
    assert sorted((r["min"], r["max"], r["ndv"]) for r in computed) == [("0", "9", 10.0), ("10", "19", 10.0)]

    def ndv(*partitions: dict[str, Any]) -> float:
        request = {"table": table["table"], "snapshot": "current", "column": "v", "partitions": list(partitions)}
        return client.act("merge_sketches", request)[0]["ndv"]

    assert ndv(*FIRST_DAY) == 20 and ndv({"day": "2024-05-01", "region": "us"}) == 10

    whole = client.act("capture", {"requests": [table, column]})
    assert [o["outcome"] for o in whole] == ["CAPTURED"] * 2
    assert whole[1]["attributes"]["files_reused"] == 2 and whole[1]["attributes"]["files_read"] == 4
    (row,) = [r for r in stored(client, "stats.columns", lake) if r["column_name"] == "v"]
    assert (row["row_count"], row["ndv"], row["completeness"]) == (60, 60.0, "COMPLETE")
    assert [r["row_count"] for r in stored(client, "stats.tables", lake)] == [60]

    client.act("capture", {"requests": [r | {"partitions": [{"region": "us"}]} for r in (table, column)]})
    (after,) = [r for r in stored(client, "stats.columns", lake) if r["column_name"] == "v"]
    assert after == row  # a partial capture keeps the record of the table


def test_partition_of_a_new_snapshot_leaves_other_files_to_the_next_capture(client, tmp_path):
    """The cached listing of the previous snapshot does not replace the stored one of this snapshot."""
    from deltalake import write_deltalake

    name = f"delta_{uuid.uuid4().hex}"
    client.act("register_connector", {"catalog": name, "format": "delta", **delta(tmp_path / "lake")})
    client.act("discover", {"catalog": name})
    table = {"table": f"{name}.default.events"}
    assert client.act("capture", {"requests": [table]})[0]["outcome"] == "CAPTURED"
    write_deltalake(tmp_path / "lake" / "events", rows(), mode="append")
    (outcome,) = client.act("capture", {"requests": [table | {"partitions": FIRST_DAY}]})
    assert outcome["detail"].startswith("statistics of 4 of 12 files")

    def files(flight: str) -> int:
        (snapshot,) = [
            r["snapshot_id"]
            for r in stored(client, "sys.snapshots", name)
            if r["is_current"] and r["table_name"] == "events"
        ]
        return len({r["file_path"] for r in stored(client, flight, name) if r["snapshot_id"] == snapshot})

    assert (files("stats.files"), files("stats.file_columns")) == (12, 4)
    assert client.act("capture", {"requests": [table]})[0]["outcome"] == "CAPTURED"
    assert (files("stats.files"), files("stats.file_columns")) == (12, 12)
    assert sorted(r["row_count"] for r in stored(client, "stats.tables", name)) == [60, 120]


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of the library's writer
@pytest.mark.parametrize("keys", [[], ["day", "region", "v"]], ids=["append", "keys"])
def test_partitions_of_paimon_are_those_of_its_commits(client, tmp_path, keys):
    """Files, bytes and rows as the library's own partition entries have them; rows that merges hide are not counted."""
    from pypaimon import CatalogFactory, Schema

    catalog = CatalogFactory.create({"warehouse": str(tmp_path)})
    catalog.create_database("default", True)
    options = {"bucket": "1"} if keys else {}
    schema = pa.schema([field.with_nullable(not keys) for field in rows().schema])
    made = Schema.from_pyarrow_schema(schema, partition_keys=["day", "region"], primary_keys=keys, options=options)
    catalog.create_table("default.t", made, False)
    append(catalog, "default.t", rows().cast(schema))
    append(catalog, "default.t", rows().cast(schema).slice(0, 15))  # all of one partition, half of another
    name = f"paimon_{uuid.uuid4().hex}"
    client.act("register_connector", {"catalog": name, "format": "paimon", "uri": str(tmp_path)})
    client.act("discover", {"catalog": name})
    assert client.act("capture", {"requests": [{"table": f"{name}.default.t"}]})[0]["outcome"] == "CAPTURED"
    found = {
        tuple(json.loads(row["partition_data_json"]).values()): row for row in stored(client, "stats.partitions", name)
    }
    told = {tuple(entry.spec.values()): entry for entry in catalog.list_partitions_paged("default.t").elements}
    assert len(told) == 6 and found.keys() == told.keys()
    for place, entry in told.items():
        row = found[place]
        assert (row["file_count"], row["size_bytes"]) == (entry.file_count, entry.file_size_in_bytes)
        is_merged = bool(keys) and entry.file_count > 1
        assert row["row_count"] == (None if is_merged else entry.record_count), place


INVALID = {
    'not partitioned by "dya"; did you mean "day"': ("events", [{"dya": "2024-05-01"}]),
    'its partitions are {"day": "2024-05-0': ("events", [{"day": "1999-01-01"}]),
    "is not partitioned": ("plain", FIRST_DAY),
}


def test_invalid_partitions_fail_with_the_reason_and_no_retry(client, lake):
    requests = [
        {"table": f"{lake}.default.{table}", "partitions": partitions} for table, partitions in INVALID.values()
    ]
    outcomes = client.act("capture", {"requests": requests})
    queued = [client.act("capture", {"requests": [request | {"mode": "ASYNC"}]})[0] for request in requests]
    jobs = [client.act("wait_job", {"job_id": item["job_id"]})[0] for item in queued]
    for reason, outcome, job in zip(INVALID, outcomes, jobs, strict=True):
        assert outcome["outcome"] == "DEGRADED" and reason in outcome["detail"]
        assert (job["state"], job["attempts"]) == ("FAILED", 1) and reason in job["message"]
    assert stored(client, "stats.file_columns", lake) == []


def test_command_captures_partitions_in_a_job(client, lake, server):
    flags = ["--partition", "day=2024-05-02,region=eu", "--partition", "day=2024-05-03"]
    command = [STATFLIGHT, "capture", f"{lake}.default.events", *flags, "--columns", "v", "--async"]
    command += ["--server", server.uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (job,) = client.act("wait_job", {"job_id": done.stdout.strip()})
    assert (job["state"], job["degraded"]) == ("SUCCEEDED", False), job
    computed = [r for r in stored(client, "stats.file_columns", lake) if r["producer"] == "ENGINE_COMPUTED"]
    assert sorted(r["min"] for r in computed) == ["100", "200", "210"]


@pytest.mark.parametrize(
    ("action", "more", "field"),
    [
        ("capture", {"partitions": "day=1"}, r"requests\[0\].partitions: must be a list"),
        ("capture", {"partitions": [{"day": []}]}, r"requests\[0\].partitions\[0\].day: is not a value"),
        ("capture", {"target": {"kind": "FILE", "file_path": "x"}}, r"requests\[0\].target: has no partitions"),
        ("capture", {"sampling": "RANDOM_ROW_GROUP"}, r"requests\[0\].sampling: is not for partitions"),
        ("resolve", {}, r"requests\[0\].partitions: are for capture"),
    ],
)
def test_conflicting_partition_requests_are_rejected(client, action, more, field):
    with pytest.raises(pa.ArrowInvalid, match=field):
        client.act(action, {"requests": [{"table": "a.b.c", "partitions": FIRST_DAY} | more]})
