"""DuckDB's extensions beside what statflight writes and reads: DuckLake, Iceberg and Delta."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from flight_server.client.connection import Connection
from tests.flight_server.live_server import serving
from tests.interop.duckdb_peer import DuckDBPeer, installed

pytestmark = pytest.mark.interop

FILES, ROWS = 20, 100
NAN = 3  # number of the file in which `f` is NaN


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> DuckDBPeer:
    return installed(tmp_path_factory.mktemp("peer") / "venv")


def content(number: int) -> pa.Table:
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    f = np.full(ROWS, np.nan) if number == NAN else ids / 4
    days = pa.array(np.datetime64("2026-01-01T00:00:00.000001", "us") + ids * np.timedelta64(1, "h"))
    return pa.table(
        {
            "id": ids,
            "s": [None if i % 7 == 0 else f"v{i:05}" for i in ids],
            "f": f,
            "ts": days,
            "z": days.cast(pa.timestamp("us", "UTC")),
            "price": pa.array(ids, pa.int32()).cast(pa.decimal128(12, 2)),
            "region": [f"r{number % 3}"] * ROWS,
        }
    )


def write(format: str, root: Path) -> tuple[str, str, dict[str, str]]:
    """Writes the table; returns URI and full name of the lake's table, and the connector's options."""
    if format == "iceberg":
        options = {"type": "sql", "name": "lake"}
        uri = f"sqlite:///{root / 'iceberg.db'}"
        catalog = SqlCatalog("lake", uri=uri, warehouse=(root / "warehouse").as_uri())
        catalog.create_namespace("default")
        table = catalog.create_table("default.t", content(0).schema)
        for number in range(FILES):
            table.append(content(number))
        catalog.close()
        return uri, "lake.default.t", options
    for number in range(FILES):
        if format == "delta":
            write_deltalake(root / "d/t", content(number), mode="append", partition_by=["region"])
        else:
            (root / "d/t").mkdir(parents=True, exist_ok=True)
            pq.write_table(content(number), root / f"d/t/{number}.parquet")
    return str(root / "d"), "lake.default.t", {}


@contextmanager
def captured(format: str, root: Path) -> Iterator[Connection]:
    """A server with a captured table of a format."""
    uri, name, options = write(format, root)
    with serving(root, "--workers", 1) as server, server.connect() as client:
        client.timeout = 300.0
        client.act("register_connector", {"catalog": "lake", "format": format, "uri": uri, "options": options})
        client.act("discover", {"catalog": "lake"})
        columns = client.get({"table": "information_schema.columns"}).to_pylist()
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": each["column_id"]} for each in columns)]
        outcomes = client.act("capture", {"requests": [{"table": name, "target": target} for target in targets]})
        assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}, outcomes
        yield client


CONDITIONS = (
    "id = 1234",
    "id BETWEEN 250 AND 420",
    "f > 1e6",
    "f >= 480",
    "s = 'v00777'",
    "s IS NULL",
    "price < 5.5",
    "ts > '2026-03-20 00:00:00'",
    "z > '2026-03-20 00:00:00+00'",
    "region = 'r1'",
    "id = 1234 OR f > 1e9",
)


@pytest.mark.parametrize("suffix", ["ducklake", "sqlite"])
@pytest.mark.parametrize("format", ["delta", "iceberg", "parquet"])
def test_ducklake_reads_published_files_and_skips_by_our_bounds(peer, tmp_path, format, suffix):
    catalog = tmp_path / f"catalog.{suffix}"
    address = f"ducklake:{'sqlite:' if suffix == 'sqlite' else ''}{catalog}"
    attach = f"ATTACH '{address}' AS lake (DATA_PATH '{tmp_path / 'own'}')"
    extensions = ["sqlite_scanner", "ducklake"]
    peer.run(extensions, attach)
    body: dict[str, Any] = {"table": "lake.default.t", "to": "ducklake", "options": {"catalog": str(catalog)}}
    with captured(format, tmp_path) as client:
        (published,) = client.act("publish", body)
        assert (published["state"], len(published["columns"])) == ("CURRENT", 7)
        assert "already published" in client.act("publish", body)[0]["detail"]
        (row,) = client.get({"table": "sys.publications"}).to_pylist()
        assert (row["home"], row["state"]) == ("ducklake", "CURRENT")
        expected = pa.concat_tables(map(content, range(FILES)))
        asked = [f"SELECT count(*), sum(id) FROM lake.t WHERE {condition}" for condition in CONDITIONS]
        plain = [sql.replace("lake.t", "given") for sql in asked]
        plans = [f"EXPLAIN ANALYZE {sql}" for sql in asked]
        pq.write_table(expected, tmp_path / "all.parquet")
        # a table: the reader of Parquet takes no account of NaN, and skips the file that has them
        given = f"CREATE TABLE given AS FROM '{tmp_path / 'all.parquet'}'"
        _, _, (counted,), *rest = peer.run(
            extensions,
            attach,
            given,
            "SELECT count(*), min(id), max(id), min(ts), max(s) FROM lake.t",
            *asked,
            *plain,
            *plans,
        )
        number = len(CONDITIONS)
        assert counted == [FILES * ROWS, 0, FILES * ROWS - 1, "2026-01-01 00:00:00.000001", "v01999"]
        assert rest[:number] == rest[number : 2 * number]
        read = dict(zip(CONDITIONS, map(files_read, rest[2 * number :]), strict=True))
        one = {"id = 1234", "price < 5.5", "s = 'v00777'"}
        assert all(read[condition] == 1 for condition in one) and read["id BETWEEN 250 AND 420"] == 3, read
        assert read["f > 1e6"] >= 1 and read["region = 'r1'"] == (7 if format != "iceberg" else read["region = 'r1'"])
        before = sorted(os.walk(tmp_path / ("warehouse" if format == "iceberg" else "d")))
        expire = (
            "CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP + INTERVAL 1 DAY)",
            "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        )
        *_, ((kept,),) = peer.run(extensions, attach, "CHECKPOINT lake", *expire, "SELECT count(*) FROM lake.t")
        assert kept == FILES * ROWS and before == sorted(os.walk(before[0][0]))  # nothing of the source was deleted
        assert client.act("withdraw", body)[0]["withdrawn"] is True
        *_, tables = peer.run(
            extensions, attach, *expire, "SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'"
        )
        assert tables == [] and before == sorted(os.walk(before[0][0]))


def files_read(plan: list[list[str]]) -> int:
    return int(re.findall(r"Total Files Read: *(\d+)", plan[0][1])[-1])


def test_rows_inserted_by_ducklake_are_kept(peer, tmp_path):
    catalog = tmp_path / "catalog.sqlite"
    attach = f"ATTACH 'ducklake:sqlite:{catalog}' AS lake (DATA_PATH '{tmp_path / 'own'}')"
    extensions = ["sqlite_scanner", "ducklake"]
    peer.run(extensions, attach)
    body: dict[str, Any] = {"table": "lake.default.t", "to": "ducklake", "options": {"catalog": str(catalog)}}
    with captured("parquet", tmp_path) as client:
        client.act("publish", body)
        *_, ((count,),) = peer.run(
            extensions, attach, "INSERT INTO lake.t (id) VALUES (-1)", "SELECT count(*) FROM lake.t"
        )
        assert count == FILES * ROWS + 1
        with pytest.raises(pa.ArrowInvalid, match="were changed by DuckLake"):
            client.act("withdraw", body)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_counts_equal_those_of_the_extension(peer, tmp_path, format):
    with captured(format, tmp_path) as client:
        found = client.get({"table": "stats.columns"}).to_pylist()
        if format == "delta":
            scan = f"delta_scan('{tmp_path / 'd/t'}')"
        else:
            newest = max((tmp_path / "warehouse/default/t/metadata").glob("*.metadata.json"))
            scan = f"iceberg_scan('{newest}')"
        names = [row["column_name"] for row in found]
        counts = ", ".join(f'count(*) - count("{name}")' for name in names)
        rows = peer.run(["avro", format], f"SELECT {counts} FROM {scan}")[0][0]
        assert rows == [row["null_count"] for row in found]
