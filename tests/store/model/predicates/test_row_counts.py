"""Numbers of rows that satisfy a condition enclose the truth, however comparisons are combined."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.model.logical_types import parse
from store.model.predicates import row_counts
from store.model.predicates.plain_conditions import AnyOf, Column, Comparison, Constant, Every, Plain
from store.model.predicates.row_counts import Rows
from store.model.predicates.tree import Op

ROWS = 6
TYPE = parse("INT")
COLUMNS = [Column(id, f"c{id}", TYPE) for id in range(3)]
TESTS = [Comparison(column, op, (value,), False) for column in COLUMNS for op in (Op.LT, Op.EQ) for value in (1, 2)]
TESTS += [Comparison(column, Op.IS_NULL, (), False) for column in COLUMNS]

Values = list[list[int | None]]


def nodes() -> st.SearchStrategy[Plain]:
    leaves = st.sampled_from([*TESTS, Constant.NEVER])

    def joined(children: st.SearchStrategy[Plain]) -> st.SearchStrategy[Plain]:
        parts = st.lists(children, min_size=1, max_size=4).map(tuple)
        return parts.map(Every) | parts.map(AnyOf)

    return st.recursive(leaves, joined, max_leaves=8)


def is_true(node: Plain, row: list[int | None]) -> bool:
    match node:
        case Every(children):
            return all(is_true(child, row) for child in children)
        case AnyOf(children):
            return any(is_true(child, row) for child in children)
        case Comparison(column, op, values):
            value = row[column.id]
            if op is Op.IS_NULL:
                return value is None
            return value is not None and (value < values[0] if op is Op.LT else value == values[0])
    return False


@given(nodes(), st.lists(st.lists(st.none() | st.integers(0, 3), min_size=3, max_size=3), max_size=ROWS), st.data())
def test_limits_enclose_the_truth(node: Plain, table: Values, data: st.DataObject) -> None:
    rows = np.array([len(table)])

    def of_test(test: Comparison) -> Rows:
        true = sum(is_true(test, row) for row in table)
        low, high = data.draw(st.integers(0, true)), data.draw(st.integers(true, len(table) + 2))
        return Rows(np.array([low]), np.array([high]), np.array([data.draw(st.floats(allow_nan=True))]))

    counted = data.draw(st.sets(st.integers(0, 2)))
    values = {id: np.array([sum(row[id] is not None for row in table)]) for id in counted}
    found = row_counts.satisfying(node, rows, of_test, values)
    true = sum(is_true(node, row) for row in table)
    assert 0 <= found.low[0] <= true <= found.high[0] <= len(table)
    assert found.low[0] <= found.guess[0] <= found.high[0]


@given(st.lists(st.lists(st.none() | st.integers(0, 3), min_size=3, max_size=3), max_size=ROWS))
def test_what_is_not_decided_may_be_any_row(table: Values) -> None:
    rows = np.array([len(table)])
    found = row_counts.satisfying(Constant.UNDECIDED, rows, lambda _: row_counts.none_of(rows), {})
    assert (found.low[0], found.high[0]) == (0, len(table))


def test_nulls_of_a_column_are_no_values() -> None:
    """Of ten rows with six values, all below 3 and above 1: as many satisfy both."""
    rows, six = np.array([10]), Rows(np.array([6]), np.array([6]), np.array([6.0]))
    both = Every((TESTS[0], TESTS[1]))
    assert row_counts.satisfying(both, rows, lambda _: six, {0: np.array([6])}).low[0] == 6
    assert row_counts.satisfying(both, rows, lambda _: six, {}).low[0] == 2
