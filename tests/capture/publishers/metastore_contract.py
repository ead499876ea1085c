"""Contract suite of homes that keep statistics by column in a catalog's entry of the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from capture.publishers.publishing import publish, withdraw
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import PublisherContract, Table, rows


class MetastoreContract(PublisherContract):
    """Contract suite; a subclass has the fixtures `table`, and `home` of which `stored` has statistics by column."""

    takes_counts = False
    append = staticmethod(parquet_tables.append)
    count = staticmethod(parquet_tables.count)

    def build(self, root: Path) -> Table:
        raise AssertionError("the fixture builds it")

    def test_statistics_that_are_no_longer_valid_are_removed(self, table: Table, home: Any):
        statistics = table.statistics()
        publish(table.publisher(statistics))
        assert set(home.stored) == {"id", "label"}
        fewer = table.statistics(
            columns=statistics.columns[:1], left_out={"label": "is INHERITED", "price": "is of a sample"}
        )
        publish(table.publisher(fewer))
        assert set(home.stored) == {"id"}

    def test_statistics_that_the_home_can_no_longer_store_are_removed(self, table: Table, home: Any):
        statistics = table.statistics()
        publish(table.publisher(statistics))
        columns = tuple(replace(c, null_count=None if c.name == "label" else 0) for c in statistics.columns)
        publication = publish(table.publisher(table.statistics(columns=columns)))
        assert "number of nulls is not known" in publication.left_out["label"] and set(home.stored) == {"id"}

    def test_statistics_of_a_dropped_column_are_removed(self, table: Table, home: Any):
        (part,) = table.path.iterdir()
        for remove in (publish, withdraw):
            pq.write_table(rows(0, 150), part)
            publish(table.publisher())
            pq.write_table(rows(0, 150).select(["id"]), part)
            remove(table.publisher(table.statistics(columns=table.statistics().columns[:1])))
            assert set(home.stored) == ({"id"} if remove is publish else set())
