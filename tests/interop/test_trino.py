"""Trino plans by what is published to Delta and Iceberg tables, and to a Hive metastore."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from tests.flight_server.live_server import serving
from tests.interop import metastore_server, trino_server
from tests.interop.trino_server import Trino

pytestmark = pytest.mark.interop

ROWS = 5000
HOMES = {"delta": "trino", "iceberg": "iceberg", "hive": "hive"}
COLUMNS = "id bigint, kind varchar, price decimal(9, 2), day date"
DISTINCT = {"id": ROWS, "kind": 7, "price": 300, "day": 40}
JOIN = "EXPLAIN SELECT * FROM {0} a JOIN {0} b ON a.kind = b.kind WHERE a.day = DATE '2026-01-06'"


class Statistics(NamedTuple):
    """A column's row of SHOW STATS."""

    distinct: float | None
    nulls: float | None
    low: str | None
    high: str | None


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metastore_server.running(tmp_path_factory.mktemp("metastore")) as uri:
        yield uri


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory, metastore: str) -> Iterator[Trino]:
    with trino_server.running(tmp_path_factory.mktemp("trino"), 2, tuple(HOMES), metastore) as server:
        for format in HOMES:
            server.query(f"CREATE SCHEMA {format}.lake")
        yield server


def write(format: str, root: Path) -> None:
    """Writes the table `t` as the library of its format does."""
    ids = range(ROWS)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": [f"k{i % 7}" if i % 4 else None for i in ids],
            "price": pa.array([Decimal(i % 300) / 4 for i in ids], pa.decimal128(9, 2)),
            "day": [date(2026, 1, 1) + timedelta(i // 125) for i in ids],
        }
    )
    if format == "delta":
        write_deltalake(root / "t", rows)
    elif format == "iceberg":
        catalog = SqlCatalog("c", uri=f"sqlite:///{root}/own.db", warehouse=str(root))
        catalog.create_namespace("n")
        catalog.create_table("n.t", rows.schema, location=(root / "t").as_uri()).append(rows)
        catalog.close()
    else:
        (root / "t").mkdir()
        pq.write_table(rows, root / "t/part.parquet")


def registered(trino: Trino, format: str, root: Path, name: str) -> str:
    """Lets Trino know the table under a name."""
    location, full_name = (root / "t").as_uri(), f"{format}.lake.{name}"
    if format == "hive":
        where = f"external_location = '{location}', format = 'PARQUET'"
        trino.query(f"CREATE TABLE {full_name} ({COLUMNS}) WITH ({where})")
    else:
        trino.query(f"CALL {format}.system.register_table('lake', '{name}', '{location}')")
    return full_name


def shown(trino: Trino, table: str) -> dict[str, Statistics]:
    rows = trino.query(f"SHOW STATS FOR {table}").rows
    return {name: Statistics(distinct, nulls, low, high) for name, _, distinct, nulls, _, low, high in rows if name}


def estimated(trino: Trino, table: str) -> float | None:
    """The rows that Trino expects of the join."""
    lines = iter(trino.text(JOIN.format(table)).splitlines())
    next(line for line in lines if "Join[" in line)
    found = re.search(r"Estimates: \{rows: ([\d?]+)", next(line for line in lines if "Estimates" in line))
    return None if found is None or found[1] == "?" else float(found[1])


@pytest.mark.parametrize("format", HOMES)
def test_published_statistics_are_those_of_analyze(trino, metastore, tmp_path, format):
    root = tmp_path / "lake"
    root.mkdir()
    write(format, root)
    before = registered(trino, format, root, "before")
    # Iceberg's tables are what they were when they were registered; Hive's statistics are kept for five minutes
    after = registered(trino, format, root, "after") if format == "hive" else ""
    assert estimated(trino, before) is None
    assert all(column.distinct is None for column in shown(trino, before).values())
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.timeout = 300.0
        source = {"delta": "delta", "iceberg": "iceberg", "hive": "parquet"}[format]
        client.act("register_connector", {"catalog": "c", "format": source, "uri": str(root)})
        client.act("discover", {"catalog": "c"})
        columns = client.get({"table": "information_schema.columns"}).to_pylist()
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": each["column_id"]} for each in columns)]
        requests = [{"table": "c.default.t", "target": target} for target in targets]
        assert {outcome["outcome"] for outcome in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        body = {"table": "c.default.t", "to": HOMES[format]}
        if format == "hive":
            body["options"] = {"uri": metastore, "database": "lake", "table": "after"}
        client.act("publish", body)
    after = after or registered(trino, format, root, "after")
    published = shown(trino, after)
    assert {name: column.distinct for name, column in published.items()} == pytest.approx(DISTINCT, rel=0.03)
    expected = estimated(trino, after)
    true = sum(1 for i in range(625, 750) if i % 4) * ROWS * 0.75 / 7
    assert expected is not None and 0.8 < expected / true < 1.25
    trino.query(f"ANALYZE {after}")
    analyzed = shown(trino, after)
    for name, ours in published.items():
        theirs = analyzed[name]
        assert (ours.low, ours.high, ours.nulls) == (theirs.low, theirs.high, theirs.nulls), name
        assert ours.distinct == pytest.approx(theirs.distinct, rel=0.05), name
