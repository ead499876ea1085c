"""Columns of whole flights: kept from the second time on, until something is written, within the budget."""

import pyarrow as pa

from flight_server.sql.whole_columns import WholeColumns

KEY = ("stats.columns", "current", ("table_name", "ndv"))
ROWS = pa.table({"table_name": ["a", "b"] * 50, "ndv": [float(i) for i in range(100)]})


def test_kept_until_the_next_write():
    epoch, reads = [1], []

    def read(most):
        reads.append(most)
        return ROWS.slice(0)

    kept = WholeColumns(lambda: epoch[0], 1 << 20)
    assert kept.get(KEY, read) is None and not reads
    first = kept.get(KEY, read)
    assert first.equals(ROWS)
    assert kept.get(KEY, read) is first and len(reads) == 1
    epoch[0] = 2
    assert kept.get(KEY, read) is None and len(reads) == 1
    assert kept.get(KEY, read) is not first and len(reads) == 2


def test_a_write_while_they_are_read():
    epoch = [1]

    def read(_):
        epoch[0] += 1
        return ROWS

    kept = WholeColumns(lambda: epoch[0], 1 << 20)
    kept.get(KEY, read)
    assert kept.get(KEY, read) is not None and kept.get(KEY, read) is None


def test_what_is_too_large_is_not_tried_again():
    reads = []
    kept = WholeColumns(lambda: 1, 100)
    assert [kept.get(KEY, lambda most: reads.append(most)) for _ in range(6)] == [None] * 6
    assert reads == [100]


def test_nothing_is_kept_without_a_budget():
    kept = WholeColumns(lambda: 1, 0)
    tables = [kept.get(KEY, lambda most: None) for _ in range(3)]
    assert tables == [None] * 3
