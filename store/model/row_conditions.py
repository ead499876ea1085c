"""Conditions on a row of statistics that are declared once, and asked in three forms: SQL, Arrow, one row in Python.

They are true or false and never unknown: what compares with NULL is false. So `negated` is the opposite in each form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class RowCondition:
    """A condition on a row.

    Attributes:
        sql: Alias of the row → the condition, never NULL.
        arrow: Rows → a mask without nulls.
        holds: One row by column name → the condition; a column that is absent is NULL.
    """

    sql: Callable[[str], str]
    arrow: Callable[[pa.RecordBatch | pa.Table], pa.Array | pa.ChunkedArray]
    holds: Callable[[Mapping[str, Any]], bool]


def equals(column: str, value: str | int) -> RowCondition:
    """The column has a value."""
    return RowCondition(
        lambda row: f"coalesce({row}.{column} = {value!r}, false)",
        lambda rows: pc.equal(rows[column], value).fill_null(False),
        lambda row: row.get(column) == value,
    )


def above(column: str, limit: float) -> RowCondition:
    """The column has a number above a limit."""
    return RowCondition(
        lambda row: f"coalesce({row}.{column} > {limit!r}, false)",
        lambda rows: pc.greater(rows[column], limit).fill_null(False),
        lambda row: row.get(column) is not None and row[column] > limit,
    )


def missing(column: str) -> RowCondition:
    """The column is NULL."""
    return RowCondition(
        lambda row: f"{row}.{column} IS NULL",
        lambda rows: pc.is_null(rows[column]),
        lambda row: row.get(column) is None,
    )


def among(column: str, values: Sequence[str]) -> RowCondition:
    """The column has one of some texts."""
    listed, members = ", ".join(map(repr, values)), frozenset(values)
    return RowCondition(
        lambda row: f"coalesce({row}.{column} IN ({listed}), false)",
        lambda rows: pc.is_in(rows[column], pa.array(values, pa.string())),
        lambda row: row.get(column) in members,
    )


def begins(column: str, prefix: str) -> RowCondition:
    """The column has a text that begins so."""
    return RowCondition(
        lambda row: f"coalesce(starts_with({row}.{column}, {prefix!r}), false)",
        lambda rows: pc.starts_with(rows[column], prefix).fill_null(False),
        lambda row: (row.get(column) or "").startswith(prefix),
    )


def negated(condition: RowCondition) -> RowCondition:
    """The condition does not hold."""
    return RowCondition(
        lambda row: f"NOT ({condition.sql(row)})",
        lambda rows: pc.invert(condition.arrow(rows)),
        lambda row: not condition.holds(row),
    )


def every(*conditions: RowCondition) -> RowCondition:
    """All conditions hold."""
    return RowCondition(
        lambda row: f"({' AND '.join(each.sql(row) for each in conditions)})",
        lambda rows: reduce(pc.and_, (each.arrow(rows) for each in conditions)),
        lambda row: all(each.holds(row) for each in conditions),
    )


def some(*conditions: RowCondition) -> RowCondition:
    """At least one condition holds."""
    return RowCondition(
        lambda row: f"({' OR '.join(each.sql(row) for each in conditions)})",
        lambda rows: reduce(pc.or_, (each.arrow(rows) for each in conditions)),
        lambda row: any(each.holds(row) for each in conditions),
    )
