"""Columns of whole flights: cached from the second read until the next write, within a budget."""

import pyarrow as pa

from flight_server.sql.whole_columns import WholeColumns

KEY = ("stats.columns", "current", ("table_name", "ndv"))
ROWS = pa.table({"table_name": ["a", "b"] * 50, "ndv": [float(i) for i in range(100)]})


def test_columns_are_cached_on_the_second_read_until_a_write():
    epoch, reads = [1], []

    def read(most):
        reads.append(most)
        return ROWS.slice(0)

    cache = WholeColumns(lambda: epoch[0], 1 << 20)
    assert cache.get(KEY, read) is None and not reads
    first = cache.get(KEY, read)
    assert first.equals(ROWS)
    assert cache.get(KEY, read) is first and len(reads) == 1
    epoch[0] = 2
    assert cache.get(KEY, read) is None and len(reads) == 1
    assert cache.get(KEY, read) is not first and len(reads) == 2


def test_write_during_the_read_prevents_caching():
    epoch = [1]

    def read(_):
        epoch[0] += 1
        return ROWS

    cache = WholeColumns(lambda: epoch[0], 1 << 20)
    cache.get(KEY, read)
    assert cache.get(KEY, read) is not None and cache.get(KEY, read) is None


def test_oversized_columns_are_read_only_once():
    reads = []
    cache = WholeColumns(lambda: 1, 100)
    assert [cache.get(KEY, lambda most: reads.append(most)) for _ in range(6)] == [None] * 6
    assert reads == [100]


def test_cache_without_a_budget_stays_empty():
    cache = WholeColumns(lambda: 1, 0)
    tables = [cache.get(KEY, lambda most: None) for _ in range(3)]
    assert tables == [None] * 3
