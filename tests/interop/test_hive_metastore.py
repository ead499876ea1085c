"""The `hive` home against a real Hive metastore."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymetastore.hive_metastore import ttypes

from capture.publishers.publishing import publish
from store.model.errors import InvalidArgument, NotFound
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import PublisherContract, Table, known_columns, rows
from tests.interop import metastore_server
from tests.interop.metastore_server import opened

pytestmark = pytest.mark.interop

TYPES = {"id": "bigint", "label": "string", "price": "decimal(10,2)", "day": "date", "raw": "binary", "ratio": "double"}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metastore_server.running(tmp_path_factory.mktemp("metastore")) as uri:
        yield uri


def registered(root: Path, uri: str, *keys: str) -> Table:
    """A Parquet table with 150 rows that the metastore knows under a new name, partitioned by `keys`."""
    name = f"t{next(NUMBERS)}"
    storage = ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema(column, type, "") for column, type in TYPES.items() if column not in keys],
        location=(root / name).as_uri(),
        inputFormat="x",
        outputFormat="y",
        serdeInfo=ttypes.SerDeInfo("n", "l", {}),
        bucketCols=[],
        sortCols=[],
        parameters={},
        compressed=False,
        numBuckets=-1,
    )
    with opened(uri) as client:
        client.create_table(
            ttypes.Table(
                name,
                "default",
                "somebody",
                0,
                0,
                0,
                storage,
                [ttypes.FieldSchema(key, TYPES[key], "") for key in keys],
                {"EXTERNAL": "TRUE"},
                tableType="EXTERNAL_TABLE",
            )
        )
    return parquet_tables.built("hive", root, rows(0, 150), uri=uri, table=name)


def stored(table: Table, column: str) -> Any:
    with opened(table.options["uri"]) as client:
        return client.get_table_column_statistics("default", table.options["table"], column)


class TestContract(PublisherContract):
    takes_counts = False

    @pytest.fixture
    def table(self, tmp_path: Path, metastore: str) -> Table:
        return registered(tmp_path, metastore)

    def build(self, root: Path) -> Table:
        raise AssertionError("the fixture builds it")

    append = staticmethod(parquet_tables.append)
    count = staticmethod(parquet_tables.count)


def test_what_the_metastore_refuses_is_left_out(tmp_path, metastore):
    """Statistics of partition columns, and infinite bounds."""
    table = registered(tmp_path, metastore, "label")
    facts = [("id", "INT", "-3", "9"), ("label", "STRING", "a", "z"), ("ratio", "DOUBLE", "-Infinity", "Infinity")]
    publication = publish(table.publisher(table.statistics(columns=known_columns(*facts))))
    assert publication.columns == ("id", "ratio") and "is a partition column" in publication.left_out["label"]
    ratio = stored(table, "ratio").statsObj[0].statsData.doubleStats
    assert (ratio.lowValue, ratio.highValue, ratio.numNulls, ratio.numDVs) == (None, None, 7, 6)


def test_column_statistics_of_each_type(tmp_path, metastore):
    table = registered(tmp_path, metastore)
    facts = [
        ("id", "INT", "-3", "9"),
        ("label", "STRING", "a", "z"),
        ("price", "DECIMAL(10,2)", "-1.5", "2.25"),
        ("day", "DATE", "1969-12-31", "1970-01-04"),
        ("raw", "BINARY", None, None),
        ("ratio", "DOUBLE", "0", "1.0E7"),
    ]
    assert len(publish(table.publisher(table.statistics(columns=known_columns(*facts)))).columns) == 6
    about = stored(table, "id")
    (item,) = about.statsObj
    numbers = item.statsData.longStats
    assert (numbers.lowValue, numbers.highValue, numbers.numNulls, numbers.numDVs) == (-3, 9, 7, 6)
    assert about.statsDesc.lastAnalyzed > 0
    texts = stored(table, "label").statsObj[0].statsData.stringStats
    assert (texts.maxColLen, texts.avgColLen, texts.numDVs) == (9, 2.5, 6)
    price = stored(table, "price").statsObj[0].statsData.decimalStats
    assert int.from_bytes(price.lowValue.unscaled, "big", signed=True) == -15 and price.lowValue.scale == 1
    assert stored(table, "day").statsObj[0].statsData.dateStats.lowValue.daysSinceEpoch == -1
    assert stored(table, "ratio").statsObj[0].statsData.doubleStats.highValue == 1e7


def test_row_count_and_size_are_parameters_of_the_table(tmp_path, metastore):
    table = registered(tmp_path, metastore)
    publish(table.publisher())
    with opened(metastore) as client:
        entry = client.get_table("default", table.options["table"])
    assert (entry.parameters["numRows"], entry.parameters["totalSize"], entry.owner) == ("150", "4000", "somebody")


def test_unknown_tables_and_columns_are_errors(tmp_path, metastore):
    table = registered(tmp_path, metastore)
    with pytest.raises(NotFound, match=r"default\.nobody does not exist"):
        publish(Table(**{**vars(table), "options": table.options | {"table": "nobody"}}).publisher())
    with opened(metastore) as client:
        client.drop_table("default", table.options["table"], False)
    with pytest.raises((NotFound, InvalidArgument)):
        publish(table.publisher())
