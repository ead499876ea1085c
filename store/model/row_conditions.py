"""Conditions on a row of statistics, and values by conditions, that are declared once, and asked in three forms: SQL,
Arrow, one row in Python.

They are true or false and never unknown: each says what a value that is missing counts as. So `negated` is the opposite
in each form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

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


Mask: TypeAlias = "pa.Array | pa.ChunkedArray"


class Choice:
    """A text by the first of some cases that holds; null if none does. A condition that is null does not hold.

    Conditions are given by name when it is asked for. `True` or `False` in place of one stands for all rows.

    Args:
        cases: The names of the conditions that must all hold, and the text.
    """

    def __init__(self, *cases: tuple[Collection[str], str]):
        self._cases = cases

    def sql(self, **conditions: str | bool) -> str:
        """SQL of the text.

        Args:
            conditions: Their SQL.
        """
        text = ""
        for asked, value in self._left(conditions):
            if not asked:
                text += f" ELSE '{value}'"
                break
            text += f" WHEN {' AND '.join(f'({each})' for each in asked)} THEN '{value}'"
        return f"CASE{text} END"

    def arrow(self, **conditions: Mask | bool) -> Mask:
        """The text of each row (utf8).

        Args:
            conditions: A mask of the rows each, of which at least one is no constant.
        """
        chosen: Any = pa.scalar(None, pa.string())
        for asked, value in reversed([*self._left(conditions)]):
            is_case = reduce(pc.and_kleene, asked).fill_null(False) if asked else None
            chosen = pa.scalar(value) if is_case is None else pc.if_else(is_case, value, chosen)
        return chosen

    def of(self, **conditions: bool | None) -> str | None:
        """The text of one row."""
        return next((value for names, value in self._cases if all(conditions[name] for name in names)), None)

    def _left(self, conditions: Mapping[str, Any]) -> Iterator[tuple[list[Any], str]]:
        """The cases that may hold, with those of their conditions that are no constants; the last one may have none."""
        for names, value in self._cases:
            asked = [conditions[name] for name in names]
            if any(each is False for each in asked):
                continue
            variable = [each for each in asked if each is not True]
            yield variable, value
            if not variable:
                return


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
