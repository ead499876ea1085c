"""The scope of a read: whose rows it is about, at which snapshot of each table; and what a read selects from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from store.catalog_store import TableEntry


@dataclass(frozen=True)
class ReadScope:
    """The tables and snapshots of a read.

    Attributes:
        keys: Keys of the tables it is limited to; None for all.
        current: Each table at its current snapshot, as of the moment of the query.
        snapshot: The snapshot id asked for, of every table.
        pins: Table key → the snapshot asked for; tables without one have no rows. Without any of `current`, `snapshot`
            and `pins`, every stored row is read.
        allow_stale: Rows of other schemas may answer.
        only: The one table of a scope that is about no other: its names need not be looked up.
        any_dropped: Some table is dropped; its rows are not served.
        epoch: The commit (`TableVersions.steady`) for which the pins are the current snapshots; None if they are not.
        lacking: With `snapshot`, keys of the tables that may inherit records; None where that is still to be found out.
    """

    keys: Sequence[int] | None = None
    pins: Mapping[int, int] | None = None
    allow_stale: bool = False
    only: TableEntry | None = None
    current: bool = False
    snapshot: int | None = None
    any_dropped: bool = True
    epoch: int | None = None
    lacking: tuple[int, ...] | None = None

    @property
    def is_stored(self) -> bool:
        """True if every stored row is requested."""
        return not self.current and self.snapshot is None and self.pins is None


@dataclass
class FlightSource:
    """Something to select from.

    Attributes:
        sql: The FROM clause; `s` is the row.
        parameters: Of `sql`, then of `where`.
        columns: Column of the flight → its SQL.
        order: ORDER BY of small reads, of columns of `s`.
        where: A condition that always applies.
        arrow: Arrow tables that the SQL names.
        names: Catalog, schema, name and id of the one table: what `:t0` … `:t3` stand for in the SQL of columns.
        base: The FROM clause without what only names tables, where `sql` is it and `join`: a limit may apply to it.
        join: See `base`.
    """

    sql: str
    parameters: list[Any] = field(default_factory=list)
    columns: Mapping[str, str] = field(default_factory=dict)
    order: str = ""
    where: str = "true"
    arrow: Mapping[str, pa.Table] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    base: str = ""
    join: str = ""


def limited_to(alias: str, scope: ReadScope, parameters: list[Any]) -> str:
    """A condition on table keys; an integer list where they are few, so that DuckDB skips row groups by it.

    Long lists become a parameter, the keys of pins are those of the Arrow table `pins` (`pins_of`).

    Args:
        alias: Alias of the rows.
        scope: The tables.
        parameters: Parameters of the query; those of the condition are added.
    """
    keys = scope.keys
    if scope.pins is not None and (keys is None or len(keys) <= 16):
        keys = None if keys is None and len(scope.pins) > 16 else [k for k in keys or scope.pins if k in scope.pins]
        if keys is None:
            return f"{alias}.table_key IN (SELECT table_key FROM pins)"
    if keys is None:
        return "true"
    if len(keys) <= 16:
        return f"{alias}.table_key IN ({', '.join(str(int(key)) for key in keys)})" if keys else "false"
    parameters.append(list(keys))
    return f"{alias}.table_key IN (SELECT unnest(?::BIGINT[]))"


def pins_of(scope: ReadScope) -> dict[str, pa.Table]:
    """The pins as an Arrow table for the SQL to name."""
    if scope.pins is None:
        return {}
    keys, snapshots = pa.array(scope.pins.keys(), pa.int64()), pa.array(scope.pins.values(), pa.int64())
    return {"pins": pa.table({"table_key": keys, "snapshot_id": snapshots})}
