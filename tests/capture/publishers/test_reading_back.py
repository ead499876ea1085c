"""Statistics of other engines in a catalog: read by a capture, or refused with the reason."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pymetastore.hive_metastore import ttypes

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig, NativeStats, Schema, Snapshot
from capture.engines.native.engine import NativeEngine
from capture.homes import check_home_options, with_catalogs
from capture.publishers.reading_back import doubts
from capture.publishers.spi import HomeStatistics
from capture.store_sink import LocalStore
from store.model.errors import InvalidArgument
from tests.capture.publishers.test_glue import glue, options
from tests.capture.publishers.test_hive import metastore
from tests.store.empty_store import place_for_database

__all__ = ["glue", "metastore"]

AT = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
LONG_AGO = 1_700_000_000


@pytest.fixture
def lake(tmp_path) -> Path:
    """150 rows in one old file."""
    (tmp_path / "lake/t").mkdir(parents=True)
    write(tmp_path / "lake", 0, 150)
    return tmp_path / "lake"


def write(lake: Path, start: int, stop: int, changed_s: int = LONG_AGO) -> None:
    file = lake / f"t/{start}.parquet"
    pq.write_table(pa.table({"id": range(start, stop), "label": [f"l{i % 5}" for i in range(start, stop)]}), file)
    os.utime(file, (changed_s, changed_s))


def captured(lake: Path, **options: str) -> tuple[dict[str, float | None], str, dict[str, Any]]:
    """The ndv of each column, the detail of the first result, and the record of `id`, of a capture by metadata."""
    config = ConnectorConfig("lake", "parquet", str(lake), options)
    connector = with_catalogs(open_connector(config), config)
    with LocalStore(place_for_database(), [NativeEngine()]) as store:
        detail = store.capture(connector, "lake", "default", "t")[0].detail
        rows = store.read("stats.columns", "lake.default.t").to_pylist()
    connector.close()
    return {row["column_name"]: row["ndv"] for row in rows}, detail, next(r for r in rows if r["column_name"] == "id")


def hive_options(uri: str) -> dict[str, str]:
    return {"statistics_from": "hive", "statistics_from.hive.uri": uri}


def analyzed_by_hive(store: Any, at: int = LONG_AGO + 100, rows: int = 150) -> None:
    longs = ttypes.LongColumnStatsData(lowValue=-5, highValue=1000, numNulls=3, numDVs=78)
    data = ttypes.ColumnStatisticsData(longStats=longs)
    store.stored["id"] = ttypes.ColumnStatisticsObj(colName="id", colType="bigint", statsData=data)
    store.described = ttypes.ColumnStatisticsDesc(True, "default", "t", lastAnalyzed=at)
    store.parameters["numRows"] = str(rows)


def analyzed_by_spark(lake: Path, rows: int = 150) -> dict[str, str]:
    size = sum(file.stat().st_size for file in (lake / "t").iterdir())
    prefix = "spark.sql.statistics."
    return {
        f"{prefix}numRows": str(rows),
        f"{prefix}totalSize": str(size),
        f"{prefix}colStats.label.version": "2",
        f"{prefix}colStats.label.distinctCount": "5",
        "transient_lastDdlTime": str(LONG_AGO + 100),
    }


def test_statistics_of_hive_and_spark_are_read_from_one_metastore(lake, metastore):
    store, uri = metastore
    analyzed_by_hive(store)
    store.parameters |= analyzed_by_spark(lake)
    ndv, detail, row = captured(lake, **hive_options(uri))
    assert (ndv, detail) == ({"id": 77.0, "label": 5.0}, "")
    assert (row["producer"], row["ndv_exact"]) == ("UPSTREAM_METADATA_DERIVED", False)
    assert (row["min"], row["max"], row["null_count"]) == (
        "0",
        "149",
        0,
    )  # from files: bounds of a catalog are unproven


def test_statistics_of_other_rows_are_refused_with_the_reason(lake, metastore):
    store, uri = metastore
    analyzed_by_hive(store)
    write(lake, 150, 160)
    ndv, detail, _ = captured(lake, **hive_options(uri))
    assert ndv == {"id": None, "label": None}
    assert detail == "no statistics of hive: default.t was analysed at 150 rows, the table has 160"
    store.parameters["numRows"] = "160"
    assert captured(lake, **hive_options(uri))[0]["id"] == 77.0
    write(lake, 150, 160, LONG_AGO + 200)  # the same number of rows, written after the analysis
    _, detail, _ = captured(lake, **hive_options(uri))
    assert "default.t was analysed at 2023-11-14 22:15:00 UTC, before the table's last change" in detail


def test_statistics_are_read_from_glue(lake, glue):
    handler, url = glue
    home = {f"statistics_from.glue.{name}": value for name, value in options(url).items()}
    counts = {"NumberOfNulls": 3, "NumberOfDistinctValues": 78}
    handler.stored["id"] = {
        "ColumnName": "id",
        "ColumnType": "bigint",
        "AnalyzedTime": LONG_AGO + 100,
        "StatisticsData": {"Type": "LONG", "LongColumnStatisticsData": counts},
    }
    _, detail, _ = captured(lake, statistics_from="glue", **home)
    assert detail == "no statistics of glue: default.t has no row count"
    handler.entry["Parameters"] = {"numRows": "150"} | analyzed_by_spark(lake)
    assert captured(lake, statistics_from="glue", **home)[:2] == ({"id": 77.0, "label": 5.0}, "")


def test_unavailable_catalog_does_not_stop_a_capture(lake, metastore):
    ndv, detail, row = captured(lake, **hive_options("thrift://127.0.0.1:1"))
    assert "no statistics of hive: 127.0.0.1:1 cannot be reached" in detail
    assert (ndv["id"], row["row_count"]) == (None, 150)
    options = hive_options(metastore[1]) | {"statistics_from.hive.table": "u"}
    assert "default.u does not exist" in captured(lake, **options)[1]
    assert captured(lake, **hive_options(metastore[1]))[1] == "no statistics of hive: it has none"
    assert "no Spark session" in captured(lake, statistics_from="spark")[1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("iceberg", r"are in the table and are always read: expected glue \| hive \| spark"),
        ("hove", '"hove" is not a home'),
    ],
)
def test_statistics_from_must_name_a_catalog(lake, name, expected):
    with pytest.raises(InvalidArgument, match=rf"options\.statistics_from: .*{expected}"):
        captured(lake, statistics_from=name)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("publish.hiv.uri", 'options.publish.hiv.uri: "hiv" is not a home'),
        ("statistics_from.hive.url", "options.statistics_from.hive.url: is not an option of hive; expected catalog"),
        ("publish.glue", "options.publish.glue: is not an option of glue"),
    ],
)
def test_unknown_homes_and_options_of_homes_are_refused(option, expected):
    with pytest.raises(InvalidArgument, match=expected):
        check_home_options({"publish": "trino", option: "x"})
    check_home_options({"publish": "hive", "publish.hive.uri": "x", "publish.trino.x": "y", "timeout": "3"})


ROWS_AND_SIZE = HomeStatistics(None, "t", {"a": 5}, 10, 100, {"a": AT})


@pytest.mark.parametrize(
    ("stored", "is_listing", "doubt"),
    [
        (ROWS_AND_SIZE, True, ""),
        (replace(ROWS_AND_SIZE, row_count=9), True, "9 rows, the table has 10"),
        (replace(ROWS_AND_SIZE, total_size_bytes=99), True, "99 bytes, the table has 100"),
        (replace(ROWS_AND_SIZE, analyzed_at={}), True, "has no time of analysis"),
        (replace(ROWS_AND_SIZE, analyzed_at={"a": AT - timedelta(seconds=1)}), True, ""),
        (replace(ROWS_AND_SIZE, analyzed_at={"a": AT - timedelta(seconds=2)}), True, "before the table's last"),
        (replace(ROWS_AND_SIZE, total_size_bytes=None), True, ""),
        (replace(ROWS_AND_SIZE, total_size_bytes=None, analyzed_at={"a": AT - timedelta(seconds=1)}), True, "before"),
        (replace(ROWS_AND_SIZE, row_count=None), True, "has no row count"),
        (replace(ROWS_AND_SIZE, row_count=None), False, ""),
    ],
)
def test_doubts_are_reasons_to_refuse_stored_statistics(stored, is_listing, doubt):
    native = NativeStats(10, 1, 100, pa.table({}), lambda: iter(()))
    found = doubts(stored, "a", Snapshot(1, 1, Schema(()), committed_at=AT), native, is_listing)
    assert doubt in found and bool(doubt) == bool(found)
