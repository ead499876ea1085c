"""Freshness and `usable_for` of a record (`store/SEMANTICS.md` §3).

What makes a record usable is declared once, as conditions on its row, from which the forms in SQL, in Arrow and for one
row follow; so does its label, by whether it is of the requested snapshot, older, or inherited. Whether a record holds
is a matter of spans and of ranking, which DuckDB computes.

Freshness compares the snapshot at which a record was captured with the requested one: EXACT at its own, INHERITED at a
later one of the same known schema, else STALE. `usable_for` is PRUNING if a planner may skip data by the row, else
PLANNING. `tests/store/model/test_freshness.py` compares the forms, and freshness with a model for one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from store.model.row_conditions import (
    Choice,
    Mask,
    RowCondition,
    above,
    among,
    begins,
    below,
    equals,
    every,
    known,
    negated,
    some,
)

EXACT: Final = "EXACT"
INHERITED: Final = "INHERITED"
STALE: Final = "STALE"
PRUNING: Final = "PRUNING"
PLANNING: Final = "PLANNING"

NAN_TYPES: Final = ("FLOAT", "DOUBLE")  # readers order NaN above every number
CONTRADICTED: Final = 0.0
"""`confidence_level` of a record about data that contradicts the metadata of its table. Readers that skip data by that
metadata may miss rows."""

UNCONFIRMED: Final = 0.5
"""`confidence_level` of a record with bounds whose writer is not known to be right, until the data was read. A record
with a level up to this one is never PRUNING."""

WHOLE_TABLE: Final = 0
"""In place of a column's id: the number of the table's rows is contradicted."""

UNCOMPARED: Final = "INTERVAL"  # how the types begin whose bounds are stored, but have no order
USABLE_COLUMNS: Final = (
    "completeness",
    "confidence_level",
    "row_groups_sampled",
    "logical_type",
    "nan_count",
    "min",
    "max",
)
"""The columns that `usable_for` depends on besides freshness; flights without bounds lack the last four."""

WHOLE: Final = every(
    equals("completeness", "COMPLETE"),
    equals("row_groups_sampled", 0, default=0),
    above("confidence_level", UNCONFIRMED, default=1.0),
)
"""A record is complete, not from a sample, and neither CONTRADICTED nor UNCONFIRMED."""

COUNTED: Final = every(
    equals("completeness", "COMPLETE"),
    equals("row_groups_sampled", 0, default=0),
    negated(below("confidence_level", UNCONFIRMED)),
)
"""The counts of a record are sure, whatever its bounds are."""

KNOWN_NANS: Final = some(known("nan_count"), negated(among("logical_type", NAN_TYPES)))
"""A record with bounds says how many values its bounds leave out."""

ORDERED: Final = negated(every(begins("logical_type", UNCOMPARED), some(known("min"), known("max"))))
"""A record has no bounds that readers cannot compare."""

_SURE: Final = {  # (has `nan_count`, has `min`) → condition
    (False, False): WHOLE,
    (True, False): every(WHOLE, KNOWN_NANS),
    (False, True): every(WHOLE, ORDERED),
    (True, True): every(WHOLE, KNOWN_NANS, ORDERED),
}


_FRESHNESS: Final = Choice(
    (["is_own"], EXACT),
    (["is_older", "is_inherited"], INHERITED),
    (["is_older"], STALE),
)
"""Freshness of a record for a requested snapshot: `is_own`, it was captured at that; `is_older`, at one before;
`is_inherited`, under the same known schema, and within the age limit of its table where it has a distribution."""


def held_sql(is_own: str, is_known: str | bool = True) -> str:
    """SQL of the freshness of a row that holds at a requested snapshot.

    Args:
        is_own: SQL that is true if that is the row's own.
        is_known: SQL that is true if there is such a row, or distribution; null where there is none.
    """
    return _FRESHNESS.sql(is_own=is_own, is_older=is_known, is_inherited=True)


def held_arrow(is_own: Mask, is_known: Mask | bool = True) -> Mask:
    """`held_sql` in Arrow, of each row (utf8)."""
    return _FRESHNESS.arrow(is_own=is_own, is_older=is_known, is_inherited=True)


def held(*, is_own: bool) -> str:
    """`held_sql` of one row."""
    label = _FRESHNESS.of(is_own=is_own, is_older=True, is_inherited=True)
    assert label is not None
    return label


def freshness_sql(record: str, hash: str, ordinal: str, requested: str) -> str:
    """SQL of the freshness of a record: EXACT, INHERITED or STALE; NULL if it is newer than what is requested.

    Args:
        record: Alias of the record's row, which has `snapshot_id`.
        hash: SQL of the record's schema hash.
        ordinal: SQL of the ordinal of the record's snapshot.
        requested: Alias of a row with `snapshot_id`, `ordinal` and `schema_hash` of the requested snapshot.
    """
    return _FRESHNESS.sql(
        is_own=f"{record}.snapshot_id = {requested}.snapshot_id",
        is_older=f"{ordinal} < {requested}.ordinal",
        is_inherited=f"{hash} = {requested}.schema_hash",
    )


def distribution_freshness_sql(record: str, hash: str, ordinal: str, requested: str, oldest: str) -> str:
    """SQL of the freshness of a distribution: that of its record, but STALE in place of INHERITED if the record is more
    snapshots behind than its table allows. The arguments are those of `freshness_sql`, and:

    Args:
        oldest: SQL of `oldest` of `oldest_sql`; null for any.
    """
    return _FRESHNESS.sql(
        is_own=f"{record}.snapshot_id = {requested}.snapshot_id",
        is_older=f"{ordinal} < {requested}.ordinal",
        is_inherited=f"{hash} = {requested}.schema_hash AND coalesce({ordinal} >= {oldest}, true)",
    )


def oldest_sql(requested: str) -> str:
    """SQL of the tables with a `max_snapshots_behind`: table_key, and `oldest`, the ordinal of the oldest snapshot
    whose distributions may be inherited.

    Args:
        requested: A join of the snapshots `k` with the requested snapshots that are not older.
    """
    return (
        "(SELECT table_key, min(ordinal) AS oldest FROM (SELECT k.table_key, k.ordinal FROM snapshots k"
        " JOIN tables x ON x.table_key = k.table_key AND x.max_snapshots_behind IS NOT NULL"
        f"{requested}"
        " QUALIFY row_number() OVER (PARTITION BY k.table_key ORDER BY k.ordinal DESC) <= x.max_snapshots_behind + 1)"
        " GROUP BY 1)"
    )


def has_sql(row: str, columns: Iterable[str]) -> str:
    """SQL that is true for a row with a value in at least one of the columns; `row` is its alias, or empty."""
    row = f"{row}." if row else ""
    return f"({' OR '.join(f'{row}{name} IS NOT NULL' for name in columns)})"


def group_rank_sql(label: str, preferred: str, rank: str) -> str:
    """SQL of the order of records from which one group of statistics is served, the best first: records that are not
    STALE, among those the preferred, among those by `rank_sql`.

    Args:
        label: SQL of the record's freshness; a record without comes last.
        preferred: SQL that is true for records that have the group.
    """
    return f"({label}) IS NULL, ({label}) = '{STALE}', NOT {preferred}, {rank}"


def rank_sql(record: str, hash: str, ordinal: str, requested: str) -> str:
    """SQL of the order of the records of one target that apply to a requested snapshot, the best first."""
    return (
        f"({record}.snapshot_id = {requested}.snapshot_id) DESC,"
        f" coalesce({hash} = {requested}.schema_hash, false) DESC, {ordinal} DESC"
    )


def stored_freshness_sql(snapshot_id: str, current: str) -> str:
    """SQL of the freshness of a stored row, read without a requested snapshot: EXACT at the current snapshot, else
    STALE; EXACT for a table without a current snapshot."""
    is_own = f"{snapshot_id} = coalesce({current}, {snapshot_id})"
    return _FRESHNESS.sql(is_own=is_own, is_older=True, is_inherited=False)


# usable_for


def is_unconfirmed(row: Mapping[str, Any]) -> bool:
    """True for a record whose bounds are by a writer that is not known to be right; its counts are sure."""
    return row.get("confidence_level") == UNCONFIRMED


def usable_for(label: str | None, row: Mapping[str, Any]) -> str:
    """PRUNING or PLANNING, by the record's freshness for the requested snapshot, and the record."""
    return PRUNING if label == EXACT and _sure(USABLE_COLUMNS).holds(row) else PLANNING


def is_whole_sql(row: str) -> str:
    """SQL that is true for a record that is complete, not from a sample, and not in doubt; never NULL.

    Args:
        row: The record's alias.
    """
    return WHOLE.of(row)


def usable_for_sql(is_exact: str, row: str, columns: Collection[str]) -> str:
    """SQL of `usable_for`.

    Args:
        is_exact: SQL that is true if the freshness is EXACT.
        row: Alias of the record's row.
        columns: The columns that the flight has.
    """
    return f"CASE WHEN {is_exact} AND {_sure(columns).of(row)} THEN '{PRUNING}' ELSE '{PLANNING}' END"


def prunes_sql(row: str, columns: Collection[str] = USABLE_COLUMNS) -> str:
    """SQL that is true for a record by which a planner may skip data at its own snapshot, never NULL: as
    `usable_for_sql`, but for bounds without an order, with which no plan compares."""
    return (every(WHOLE, KNOWN_NANS) if "nan_count" in columns else WHOLE).of(row)


def prunes_arrow(rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """A mask of the rows with bounds by which a planner may skip data, as `prunes_sql`; without nulls."""
    return every(WHOLE, KNOWN_NANS).arrow(rows)


def is_whole_arrow(rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """A mask of the rows that are complete, not from a sample, and not in doubt; without nulls."""
    return WHOLE.arrow(rows)


def usable_for_arrow(label: pa.Array, rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """`usable_for` of each row (utf8, without nulls), by its freshness (utf8) and those of `USABLE_COLUMNS` it has."""
    is_exact = pc.equal(label, EXACT).fill_null(False)
    return pc.if_else(pc.and_(is_exact, _sure(rows.schema.names).arrow(rows)), PRUNING, PLANNING)


def _sure(columns: Collection[str]) -> RowCondition:
    """The condition on records by which a planner may skip data at their own snapshot.

    Args:
        columns: The columns that the records have; those without values lack some.
    """
    return _SURE["nan_count" in columns, "min" in columns]
