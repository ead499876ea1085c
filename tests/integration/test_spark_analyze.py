"""Spark's own `ANALYZE TABLE` compared with a capture through a server, of the same Parquet files.

`as_spark` has the intended differences: Spark counts characters and rounds widths up, has a default width for columns
without values, has no bounds of texts, and orders NaN after all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.spark.session import Spark
from flight_server.client import StatsClient
from store.model.errors import UpstreamError
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.spark

ROWS = 12_000
FLAT = """
    cast(id % 100 - 50 as tinyint) tiny, cast(id % 30000 as smallint) small, cast(id * 3 as int) whole,
    id * 1000000007 big, cast(id % 99999 / 100 as decimal(5,2)) short_money, cast(id / 7 as decimal(18,4)) money,
    cast(id as decimal(38,10)) - 5000 long_money, cast(id / 3 as float) single, if(id % 7 = 0, null, id / 3) ratio,
    if(id = 9, cast('nan' as double), cast(id as double)) broken, cast('nan' as double) nothing_but_nan,
    id % 2 = 0 flag, if(id % 3 = 0, null, concat('w', id % 5000)) word,
    cast(repeat('x', cast(id % 5 as int)) as binary) raw,
    date_add(date'1960-02-28', cast(id % 400 as int)) day, timestamp_micros(id * 1234567 - 1000000000) at,
    cast(timestamp_micros(id * 61000001) as timestamp_ntz) local_at, cast(null as int) no_number,
    cast(null as string) no_word, 'é' accent, 5 same
"""
MIXED = """
    id, array(id) tags, map('a', id) pairs, named_struct('lat', id / 2, 'zip', cast(id as string)) place,
    interval '1' day pause, id `dotted.name`, cast(timestamp_micros(id) as timestamp_ntz) local_at
"""
TEXTS = {"word", "raw", "no_word", "accent"}
CHARACTERS = {"accent": ("1", "2")}  # widths of Spark, and widths captured
HLL_ERROR, THETA_ERROR = 0.05, 1 / 64


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    holder = Spark("local[2]")
    yield holder
    holder.stop()


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    """Tables written by Spark, registered in its session catalog, and analyzed except for `mixed`."""
    path = tmp_path_factory.mktemp("lake")

    def write(session: Any) -> None:
        for name, columns, rows in (("flat", FLAT, ROWS), ("empty", FLAT, 0), ("mixed", MIXED, 50)):
            session.range(0, rows, 1, 3).createOrReplaceTempView("numbers")
            session.sql(f"SELECT {columns} FROM numbers").write.parquet(f"{path}/{name}")
            session.sql(f"CREATE TABLE {name} USING parquet LOCATION '{path}/{name}'")
            if name != "mixed":
                session.sql(f"ANALYZE TABLE {name} COMPUTE STATISTICS FOR ALL COLUMNS")

    spark.call(write)
    yield path
    spark.call(lambda session: [session.sql(f"DROP TABLE {name}") for name in ("flat", "empty", "mixed")])


@pytest.fixture(scope="module")
def client(lake, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--workers", 1) as server, StatsClient(server.uri) as client:
        client.actions.register_connector(catalog="lake", format="parquet", uri=str(lake))
        client.actions.call("discover", {"catalog": "lake"})
        yield client


def catalog_stats(spark: Spark, name: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Row count of a table, and the statistics of each column in the session catalog, as texts."""

    def read(session: Any) -> tuple[int, dict[str, dict[str, str]]]:
        identifier = session._jvm.org.apache.spark.sql.catalyst.TableIdentifier(name)
        stats = session._jsparkSession.sessionState().catalog().getTableMetadata(identifier).stats().get()
        columns = {}
        for column, stat in _pairs(stats.colStats()):
            columns[column] = {key.removeprefix(f"{column}."): text for key, text in _pairs(stat.toMap(column))}
        return int(stats.rowCount().get()), columns

    return spark.call(read)


def default_size(spark: Spark, name: str, column: str) -> int:
    """Width in bytes that Spark assumes for a column without values."""

    def read(session: Any) -> int:
        return session.table(name)._jdf.schema().apply(column).dataType().defaultSize()

    return spark.call(read)


def _pairs(scala_map: Any) -> Iterator[tuple[Any, Any]]:
    iterator = scala_map.iterator()
    while iterator.hasNext():
        pair = iterator.next()
        yield pair._1(), pair._2()


def as_spark(row: dict[str, Any]) -> dict[str, str]:
    """A row of `stats.columns` in the form of Spark's catalog, without the distinct count."""
    name, width, widest = row["column_name"], row["avg_width_bytes"], row["max_width_bytes"]
    low, high = row["min"], row["max"]
    if row["nan_count"]:
        low, high = "NaN" if low is None else low, "NaN"
    if name in TEXTS:
        low = high = None
    if row["logical_type"].startswith("TIMESTAMP"):
        low, high = (None if text is None else _timestamp(text) for text in (low, high))
    stats = {
        "nullCount": str(row["null_count"]),
        "min": low,
        "max": high,
        "avgLen": None if width is None else str(math.ceil(width)),
        "maxLen": None if widest is None else str(widest),
    }
    return {key: text for key, text in stats.items() if text is not None}


def _timestamp(text: str) -> str:
    date, _, time = text.removesuffix("Z").partition("T")
    whole, _, fraction = time.partition(".")
    return f"{date} {whole}.{fraction:0<6}"


def same(one: str | None, other: str | None) -> bool:
    """True if two texts are the same value: 0 equals 0.00."""
    try:
        return one == other or Decimal(one or "x") == Decimal(other or "x")
    except InvalidOperation:
        return False


def columns(client: StatsClient, name: str) -> dict[str, dict[str, Any]]:
    return {row["column_name"]: row for row in client.columns(f"lake.default.{name}").to_pylist()}


def captured(client: StatsClient, name: str) -> dict[str, dict[str, Any]]:
    outcomes = client.capture(f"lake.default.{name}")
    assert {(outcome["outcome"], outcome["detail"]) for outcome in outcomes} == {("CAPTURED", "")}
    return columns(client, name)


@pytest.mark.parametrize(("name", "rows"), [("flat", ROWS), ("empty", 0)])
def test_captured_statistics_equal_those_of_analyze_table(spark, client, name, rows):
    ours, (row_count, theirs) = captured(client, name), catalog_stats(spark, name)
    assert row_count == rows
    assert {row["row_count"] for row in ours.values()} == {rows}
    assert ours.keys() == theirs.keys() and len(ours) == 21
    for column, row in ours.items():
        stats = theirs[column]
        default = str(default_size(spark, name, column))
        expected = {"avgLen": default, "maxLen": default} | as_spark(row)
        for key in ("nullCount", "min", "max", "avgLen", "maxLen"):
            if key in ("avgLen", "maxLen") and column in CHARACTERS and rows:
                assert (stats[key], expected[key]) == CHARACTERS[column], (column, key)
            else:
                assert same(stats.get(key), expected.get(key)), (column, key, stats, expected)


def test_distinct_counts_are_within_the_errors_of_both_sketches(spark, client, lake):
    ours, (_, theirs) = captured(client, "flat"), catalog_stats(spark, "flat")
    rows = pq.read_table(lake / "flat")
    for column, row in ours.items():
        values = rows[column].drop_null().dictionary_encode().unify_dictionaries()  # NaN counts once
        truth = len(values.chunk(0).dictionary) if len(values) else 0
        assert abs(int(theirs[column]["distinctCount"]) - truth) <= 3 * HLL_ERROR * truth
        assert abs(row["ndv"] - truth) <= 3 * THETA_ERROR * truth
        assert row["ndv_exact"] == (truth <= 4096)
        assert row["ndv"] == truth or not row["ndv_exact"]


def test_capture_of_all_columns_skips_unsupported_types(spark, client):
    """Unlike FOR ALL COLUMNS of Spark, which rejects such a table."""
    with pytest.raises(UpstreamError, match="does not support the type"):
        spark.call(lambda session: session.sql("ANALYZE TABLE mixed COMPUTE STATISTICS FOR ALL COLUMNS"))
    found = captured(client, "mixed")
    containers = {"tags", "place", "pairs"}
    assert found.keys() - containers == {"id", "place.lat", "place.zip", "pause", "dotted.name", "local_at"}
    assert {(found[name]["row_count"], found[name]["null_count"], found[name]["ndv"]) for name in containers} == {
        (found["id"]["row_count"], None, None)
    }
    assert (found["dotted.name"]["max"], found["place.lat"]["max"]) == ("49", "24.5")


def test_capture_of_named_containers_counts_their_rows_and_nulls(client):
    outcomes = client.capture("lake.default.mixed", columns=["tags", "ID", "place", "pairs"])
    assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}, outcomes
    found = columns(client, "mixed")
    for name in ("tags", "place", "pairs"):
        row = found[name]
        assert (row["row_count"], row["null_count"] is None) == (found["id"]["row_count"], False), row
        assert [row[column] for column in ("min", "max", "ndv")] == [None] * 3
    with pytest.raises(pa.ArrowKeyError, match='no column "nothing"; it has id, tags'):
        client.capture("lake.default.mixed", columns=["id", "nothing"])


def test_capture_of_one_column_keeps_statistics_of_the_others(client):
    before = captured(client, "flat")
    client.capture("lake.default.flat", columns=["word"])
    after = columns(client, "flat")
    assert after.keys() == before.keys()
    assert after["whole"] == before["whole"]
