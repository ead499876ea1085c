"""Containment of the values of a column in those of another, by theta sketches.

Both sketches have every hash below the smaller of their thetas, so a hash of the one that the other lacks is a value
that it lacks, and the share found is that of a random sample of the distinct values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from flight_server.core.views.numbers import number
from flight_server.core.views.reader import Reader, equal, read_table
from flight_server.core.views.table_summary import Row
from flight_server.insight import measures
from flight_server.insight.found import Found
from flight_server.insight.rules import SELECT, Rule, parse
from store.model.errors import InvalidArgument
from store.model.logical_types import Kind
from store.model.names import join_name, name_parts, split_name
from store.model.sketches import is_partial, read_theta

Z: Final = 5.0  # standard errors: a share beyond is impossible

Name: TypeAlias = tuple[str, str, str]
"""Catalog, schema and name of a table."""


def of_table(rule: Rule, table: str, rows: Sequence[Row]) -> Rule | None:
    """A rule with the plain name of its column; None if `orders.id` is a column of another table.

    Args:
        rule: A rule with one column, `id` or `orders.id`.
        table: Full name of the table that is checked.
    """
    (name,) = rule.columns
    if any(row["column_name"] == name for row in rows):
        return rule
    try:
        parts, of = name_parts(name), name_parts(table)
    except ValueError:
        return None if "." in name else rule
    if len(parts) == 1:
        return replace(rule, columns=(parts[0],))
    ends = (i for i in range(min(len(parts) - 1, len(of)), 0, -1) if parts[:i] == of[-i:])
    return next((replace(rule, columns=(".".join(parts[i:]),)) for i in ends), None)


def containment(reader: Reader, table: str, row: Row, sketch: Row | None, of: str) -> Found:
    """The share of a column's distinct values that another column has, and its error.

    Args:
        table: Full name of the table.
        of: `TABLE.COLUMN`, where TABLE may leave out what it shares with the table.

    Raises:
        UnknownValue: A sketch is missing or partial, or too few hashes can be compared.
        NeverKnown: There is no such column, or the types are not comparable.
    """
    other_table, other_column = _referenced(reader, table, of)
    named = equal("column_name", other_column)
    others = read_table(reader, "stats.columns", other_table, None, named, snapshot="current").to_pylist()
    of_id = {one["column_id"]: one for one in sketches(reader, other_table, "NDV", "current")}
    target = of_id.get(others[0]["column_id"]) if others else None
    for name, one in ((row["column_name"], sketch), (of, target)):
        if one is None:
            raise measures.UnknownValue(f"no distinct values of {name} at the current snapshot; capture the kind NDV")
        if is_partial(one["params"]):
            raise measures.UnknownValue(f"the sketch of {name} is of a part of the rows; capture NDV without sampling")
    assert sketch is not None and target is not None
    if _hashed_as(row) != _hashed_as(others[0]):
        raise measures.NeverKnown(f"a {row['logical_type']} does not compare with {of}, a {others[0]['logical_type']}")
    mine, theirs = read_theta(sketch["data"]), read_theta(target["data"])
    limit = min(mine.theta, theirs.theta)
    hashes = mine.hashes[: np.searchsorted(mine.hashes, np.uint64(limit))]
    if not len(hashes):
        if mine.exact and not len(mine.hashes):
            return Found(Fraction(1), note="no values")
        raise measures.UnknownValue(f"{of} has too many values for their sketches to be compared")
    found, count = int(np.isin(hashes, theirs.hashes, assume_unique=True).sum()), len(hashes)
    decides = target["freshness"] != "INHERITED"
    stale = "" if decides else f"; {of} as of its snapshot {target['snapshot_id']}"
    if mine.exact and theirs.exact:
        note = f"{number(count - found)} of {number(count)} values are not in {of}{stale}"
        return Found(Fraction(found, count), note=note, decides=decides)
    low, high = _interval(found, count)
    sample = f"of a sample of {number(count)} values, {number(count - found)} are not in {of}{stale}"
    return Found(Fraction(found, count), (Fraction(low), Fraction(high)), sample, decides=decides)


def sketches(reader: Reader, table: str, role: str, snapshot: int | str) -> list[Row]:
    """The sketches of a table's columns that have a role, at a snapshot."""
    columns = ["column_id", "snapshot_id", "freshness", "data", "params"]
    more = equal("role", role), equal("target_kind", "COLUMN")
    return read_table(reader, "stats.sketches", table, columns, *more, snapshot=snapshot).to_pylist()


def _interval(found: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share of which `found` of `count` were seen."""
    share, z2 = found / count, Z * Z / count
    centre, spread = share + z2 / 2, Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    low = max((centre - spread) / (1 + z2), 0.0) if found else 0.0
    return low, min((centre + spread) / (1 + z2), 1.0) if found < count else 1.0


def _hashed_as(row: Row) -> tuple[object, ...]:
    """A key that is equal where equal values have equal hashes: integers hash by value, decimals by scale too."""
    lt = measures.type_of(row)
    return (lt.kind, lt.scale if lt.kind is Kind.DECIMAL else None)


def _referenced(reader: Reader, table: str, of: str) -> tuple[str, str]:
    """Full name of the table and name of the column that `TABLE.COLUMN` means for a table."""
    try:
        candidates = list(_candidates(table, of))
    except ValueError:
        raise measures.NeverKnown(f"{of!r} must be TABLE.COLUMN") from None
    for name, column in candidates:
        full = join_name(*name)
        if read_table(reader, "information_schema.columns", full, None, equal("column_name", column)).num_rows:
            return full, column
    raise measures.NeverKnown(f"there is no column {of}")


def _candidates(table: str, of: str) -> Iterator[tuple[Name, str]]:
    """The tables and columns that `TABLE.COLUMN` may mean for a table, nearest first; ValueError if it is malformed."""
    catalog, schema, _ = split_name(table)
    parts = name_parts(of)
    for i in range(1, len(parts)):
        name, column = parts[:i], ".".join(parts[i:])
        if i == 1:
            yield (catalog, schema, name[0]), column
        if i >= 2:
            yield (catalog, ".".join(name[:-1]), name[-1]), column
        if i >= 3:
            yield (name[0], ".".join(name[1:-1]), name[-1]), column


def may_see(text: str, table: str, exists: Callable[[Name], bool], sees: Callable[[str, str, str], bool]) -> bool:
    """True if a caller who sees a table may see the result of a rule of a measure in OF_OTHERS for it.

    A SELECT may read any table, so its value is for callers who see all.

    Args:
        text: The rule.
        exists: True for the name of a table that exists.
        sees: True for the name of a table that the caller sees, whether or not it exists.
    """
    try:
        rule = parse(text)
        if rule.measure == SELECT:
            return False
        named = [name for name, _ in _candidates(table, rule.of)]
    except (InvalidArgument, ValueError):  # a rule of an earlier version
        return False
    return all(sees(*name) for name in list(filter(exists, named)) or named)
