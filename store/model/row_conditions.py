"""Conditions on a row of statistics that are declared once, and asked in three forms: SQL, Arrow, one row in Python.

They are true or false and never unknown: each says what a value that is missing counts as. So `negated` is the opposite
in each form.
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
        sql: The condition in SQL about a row of the alias `{row}`, never NULL.
        arrow: Rows → a mask without nulls.
        holds: One row by column name → the condition; a column that is absent is NULL.
    """

    sql: str
    arrow: Callable[[pa.RecordBatch | pa.Table], pa.Array | pa.ChunkedArray]
    holds: Callable[[Mapping[str, Any]], bool]

    def of(self, row: str) -> str:
        """The condition in SQL about the row of an alias."""
        return self.sql.format(row=row)


def equals(column: str, value: str | int, *, default: str | int | None = None) -> RowCondition:
    """The column has a value.

    Args:
        default: The value that a missing one counts as; None: it is not equal.
    """
    compared = f"coalesce({{row}}.{column}, {default!r}) = {value!r}"
    return RowCondition(
        f"coalesce({{row}}.{column} = {value!r}, false)" if default is None else compared,
        lambda rows: pc.equal(_filled(rows[column], default), value).fill_null(False),
        lambda row: (default if (given := row.get(column)) is None else given) == value,
    )


def above(column: str, limit: float, *, default: float) -> RowCondition:
    """The column has a number above a limit; a missing one counts as the default."""
    return RowCondition(
        f"coalesce({{row}}.{column}, {default!r}) > {limit!r}",
        lambda rows: pc.greater(_filled(rows[column], default), limit),
        lambda row: (default if (given := row.get(column)) is None else given) > limit,
    )


def below(column: str, limit: float) -> RowCondition:
    """The column has a number below a limit."""
    return RowCondition(
        f"coalesce({{row}}.{column} < {limit!r}, false)",
        lambda rows: pc.less(rows[column], limit).fill_null(False),
        lambda row: (given := row.get(column)) is not None and given < limit,
    )


def known(column: str) -> RowCondition:
    """The column is not NULL."""
    return RowCondition(
        f"{{row}}.{column} IS NOT NULL",
        lambda rows: pc.is_valid(rows[column]),
        lambda row: row.get(column) is not None,
    )


def among(column: str, values: Sequence[str]) -> RowCondition:
    """The column has one of some texts that are not empty."""
    listed, members = ", ".join(map(repr, values)), frozenset(values)
    return RowCondition(
        f"coalesce({{row}}.{column}, '') IN ({listed})",
        lambda rows: pc.is_in(rows[column], pa.array(values, pa.string())),
        lambda row: row.get(column) in members,
    )


def begins(column: str, prefix: str) -> RowCondition:
    """The column has a text that begins so."""
    return RowCondition(
        f"coalesce(starts_with({{row}}.{column}, {prefix!r}), false)",
        lambda rows: pc.starts_with(rows[column], prefix).fill_null(False),
        lambda row: (row.get(column) or "").startswith(prefix),
    )


def negated(condition: RowCondition) -> RowCondition:
    """The condition does not hold."""
    return RowCondition(
        f"NOT ({condition.sql})",
        lambda rows: pc.invert(condition.arrow(rows)),
        lambda row: not condition.holds(row),
    )


def every(*conditions: RowCondition) -> RowCondition:
    """All conditions hold."""

    def holds(row: Mapping[str, Any]) -> bool:
        for each in conditions:  # noqa: SIM110  twice as fast as `all` of a generator
            if not each.holds(row):
                return False
        return True

    return RowCondition(
        f"({' AND '.join(each.sql for each in conditions)})",
        lambda rows: reduce(pc.and_, [each.arrow(rows) for each in conditions]),
        holds,
    )


def some(*conditions: RowCondition) -> RowCondition:
    """At least one condition holds."""

    def holds(row: Mapping[str, Any]) -> bool:
        for each in conditions:  # noqa: SIM110  as in `every`
            if each.holds(row):
                return True
        return False

    return RowCondition(
        f"({' OR '.join(each.sql for each in conditions)})",
        lambda rows: reduce(pc.or_, [each.arrow(rows) for each in conditions]),
        holds,
    )


def _filled(values: pa.Array | pa.ChunkedArray, default: Any) -> pa.Array | pa.ChunkedArray:
    return values if default is None else values.fill_null(default)
