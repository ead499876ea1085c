"""The scope of a read (its tables and their snapshots), and the source that its query selects from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flight_server.core.auth.principal import Principal
from store.model.catalog_entries import TableEntry


@dataclass(frozen=True)
class ReadScope:
    """The tables and snapshots of a read.

    Attributes:
        keys: Keys of the tables it is limited to; None for all.
        current: Read each table at the snapshot that is current when the query runs.
        snapshot: Id of the snapshot requested of every table.
        pins: Table key → id of the requested snapshot; tables without one have no rows. Without `current`, `snapshot`
            and `pins`, every stored row is read.
        only: The table, if the scope has exactly one.
        is_limited: True if any table limits how old an inherited distribution may be.
        failing: Keys of the tables that cannot be inspected or read; their rows are STALE at the current snapshot.
        overdue: Keys of the tables of which it is not known whether they have changed since; their rows are not EXACT.
        any_dropped: True if any table is dropped; rows of dropped tables are not served.
        caller: The caller, if it is limited to some tables; None for one who sees all.
        epoch: Epoch (`TableVersions.steady`) at which the requested snapshots are the current ones; None if they are
            not.
    """

    keys: Sequence[int] | None = None
    pins: Mapping[int, int] | None = None
    allow_stale: bool = False
    only: TableEntry | None = None
    current: bool = False
    snapshot: int | None = None
    any_dropped: bool = True
    is_limited: bool = True
    failing: frozenset[int] = frozenset()
    overdue: frozenset[int] = frozenset()
    epoch: int | None = None
    caller: Principal | None = None

    @property
    def is_stored(self) -> bool:
        """True if every stored row is requested."""
        return not self.current and self.snapshot is None and self.pins is None


@dataclass
class FlightSource:
    """A relation to select a flight's rows from.

    Attributes:
        sql: The FROM clause; `s` is the row.
        parameters: Parameters of `sql`, then of `where`.
        columns: Column of the flight → its SQL.
        order: ORDER BY of small reads, over columns of `s`.
        where: A condition that always applies.
        arrow: Arrow tables used in the SQL, by name.
        base: The FROM clause without the join for table names; empty if there is none.
    """

    sql: str
    parameters: list[Any] = field(default_factory=list)
    columns: Mapping[str, str] = field(default_factory=dict)
    order: str = ""
    where: str = "true"
    arrow: Mapping[str, pa.Table] = field(default_factory=dict)
    base: str = ""


def limited_to(alias: str, scope: ReadScope, parameters: list[Any]) -> str:
    """A condition on table keys: with few keys a list of integers, by which DuckDB skips row groups.

    Long lists become a parameter; the keys of many pins are those of the Arrow table `pins` (`pins_of`).

    Args:
        parameters: Parameters of the query, to which those of the condition are appended.
    """
    keys = scope.keys
    if scope.pins is not None and keys is None and len(scope.pins) > 16:
        return f"{alias}.table_key IN (SELECT table_key FROM pins)"
    if scope.pins is not None and (keys is None or len(keys) <= 16):
        keys = [key for key in (scope.pins if keys is None else keys) if key in scope.pins]
    if keys is None:
        return "true"
    if len(keys) <= 16:
        return f"{alias}.table_key IN ({', '.join(str(int(key)) for key in keys)})" if keys else "false"
    parameters.append(list(keys))
    return f"{alias}.table_key IN (SELECT unnest(?::BIGINT[]))"


def pins_of(scope: ReadScope) -> dict[str, pa.Table]:
    """The Arrow table `pins` (table_key, snapshot_id) for the SQL of a scope; empty without pins."""
    if scope.pins is None:
        return {}
    keys, snapshots = pa.array(scope.pins.keys(), pa.int64()), pa.array(scope.pins.values(), pa.int64())
    return {"pins": pa.table({"table_key": keys, "snapshot_id": snapshots})}
