"""Registration of what puts are about: keys for the rows of known and new tables, and their snapshots.

All tables and snapshots of a transaction are registered at once, before its rows are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.catalog.catalog import Catalog
from store.duckdb.database import Connection
from store.history.file_listings import ListingChanged
from store.model.catalog_entries import EXTERNAL
from store.model.errors import Conflict, NotFound
from store.model.names import join_name
from store.model.puts import Codes, Put, codes, first_of_each, snapshots_of

_TABLE: Final = ("table_catalog", "table_schema", "table_name")
_PLACED: Final = (*_TABLE, "table_id", "snapshot_id", "schema_hash")  # what says where rows belong


class Begun(Protocol):
    """A listing whose rows are stored already, at a key that its table has or will have.

    Attributes:
        first: A row of it.
        name: Catalog, schema and name of its table.
        is_new: The key is reserved for a table that is not registered yet.
    """

    first: pa.Table
    name: tuple[Any, ...]
    table_key: int
    is_new: bool


class Registration:
    """Registers tables and snapshots inside the writer's transaction.

    Args:
        only_known: Refuse tables that no connector has registered.
    """

    def __init__(self, catalog: Catalog, *, only_known: bool):
        self.catalog, self.only_known = catalog, only_known

    def register(
        self, connection: Connection, puts: Sequence[Put], new_tables: set[int], staged: Sequence[Begun]
    ) -> tuple[list[Put], pa.Table]:
        """Registers new tables, which it adds to the set, and snapshots.

        Returns:
            The puts that have rows, with `table_key` added, and all snapshots (`snapshots_of`).

        Raises:
            Conflict: Rows have the id of another table than the one that its lake has under the name now.
            ListingChanged: The table of a staged listing has another key.
            NotFound: A table is not registered, and only known ones may be put.
        """
        puts = [put for put in puts if put.rows.num_rows]
        if not (staged or puts):
            return [], pa.table({})
        # together: a schema hash that comes only with a later put would change spans
        parts = [*(each.first for each in staged), *(put.rows for put in puts)]
        rows = pa.concat_tables(
            [part.select([name for name in _PLACED if name in part.column_names]) for part in parts],
            promote_options="default",
        )
        reserved = {each.name: each.table_key for each in staged if each.is_new}
        rows = self._with_table_keys(connection, rows, new_tables, reserved)
        keys = rows["table_key"]
        if keys.slice(0, len(staged)).to_pylist() != [each.table_key for each in staged]:
            raise ListingChanged  # another put has registered the table, or it was dropped
        seen = snapshots_of(rows)
        self.catalog.snapshots_of_puts.register(connection, seen, new_tables)
        keyed, start = [], len(staged)
        for put in puts:
            column = keys.slice(start, put.rows.num_rows)
            keyed.append(replace(put, rows=put.rows.append_column("table_key", column)))
            start += put.rows.num_rows
        return keyed, seen

    def _with_table_keys(
        self, connection: Connection, rows: pa.Table, new_tables: set[int], reserved: Mapping[tuple[Any, ...], int]
    ) -> pa.Table:
        """The rows with a column `table_key` (int64); registers new tables, by their reserved keys if they have one,
        and adds them to the set."""
        numbers = codes(rows, _TABLE)
        distinct, first, places = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.argsort(first)
        names = [tuple(row.values()) for row in rows.select(_TABLE).take(pa.array(first[order])).to_pylist()]
        unknown = {name: None for name in names if self.catalog.find(name) is None}
        if unknown:
            self._check_may_register(next(iter(unknown)))
            ids = _first_of_each(rows, "table_id", numbers)
            given = {name: ids.get(int(distinct[at])) for name, at in zip(names, order, strict=True)}
            latest = _greatest_snapshots(rows, places, len(distinct))
            current = {name: latest[at] for name, at in zip(names, order, strict=True)}
            new = {name: given[name] for name in unknown}
            entries = self.catalog.register_all(connection, new, current=current, keys=reserved)
            new_tables.update(entry.table_key for entry in entries.values())
        keys: Codes = np.empty(len(distinct), np.int64)
        for name, at in zip(names, order, strict=True):
            entry = self.catalog.find(name)
            assert entry is not None
            keys[at] = entry.table_key
        keyed = rows.append_column("table_key", pa.array(keys[places]))
        self._check_ids(keyed)
        return keyed

    def _check_may_register(self, name: tuple[Any, ...]) -> None:
        """Refuses a new table, where only those of connectors may be put."""
        if self.only_known:
            raise NotFound(
                f'no table "{join_name(*name)}"',
                code="UNKNOWN_TABLE",
                hint="only registered tables may be put: connect its catalog first",
            )

    def _check_ids(self, rows: pa.Table) -> None:
        """Refuses rows about another table than the one that a lake has under the name now, by its id."""
        if "table_id" not in rows.column_names or rows["table_id"].null_count == rows.num_rows:
            return
        columns = ["table_key", "table_id"]
        for given in rows.select(columns).take(first_of_each(rows, columns)).to_pylist():
            entry = self.catalog.by_key(given["table_key"])
            if entry.format != EXTERNAL and given["table_id"] and given["table_id"] != entry.table_id:
                raise Conflict(
                    f'table_id: "{entry.full_name}" is another table; expected {entry.table_id}, '
                    f"got {given['table_id'][:100]}",
                    hint="it was created again: what was known of the former does not hold for it",
                    params={"field": "table_id"},
                )


def keys_of(catalog: Catalog, rows: pa.Table) -> set[int]:
    """Keys of the known tables that rows are about, which have the names of their tables."""
    names = rows.select(_TABLE).take(first_of_each(rows, _TABLE)).to_pylist()
    entries = (catalog.find(tuple(name.values())) for name in names)
    return {entry.table_key for entry in entries if entry is not None}


def _greatest_snapshots(rows: pa.Table, places: Codes, count: int) -> list[int]:
    """The greatest snapshot id of each of `count` groups of rows; `places` has the group of each row."""
    greatest: Codes = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(greatest, places, rows["snapshot_id"].to_numpy())
    return greatest.tolist()


def _first_of_each(rows: pa.Table, name: str, numbers: Codes) -> dict[int, Any]:
    """Group number → the first value of a text column in that group that is neither null nor empty."""
    if name not in rows.column_names or rows[name].null_count == rows.num_rows:
        return {}
    given = pc.fill_null(pc.greater(pc.utf8_length(rows[name]), 0), False).to_numpy()
    distinct, first = np.unique(numbers[given], return_index=True)
    values = rows[name].filter(pa.array(given)).take(pa.array(first)).to_pylist()
    return dict(zip(distinct.tolist(), values, strict=True))
