"""Column ids for puts that give names only, and the columns of external tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import among, execute, query, within
from store.duckdb.layout import Connection, insert_rows
from store.model.catalog_entries import EXTERNAL
from store.model.errors import InvalidField
from store.model.names import dotted_name
from store.model.puts import Codes, codes


class ColumnNames:
    """Column ids by name, for rows of any number of tables with `table_key`."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

    def with_ids(self, connection: Connection, rows: pa.Table) -> pa.Table:
        """The rows with missing column ids filled in by name; a new name gets the next free id.

        Raises:
            InvalidField: A row has no id, and several columns have its name.
        """
        if "column_name" not in rows.column_names:
            return rows
        if "column_id" not in rows.column_names:
            rows = rows.append_column("column_id", pa.nulls(rows.num_rows, pa.int64()))
        lacking = pc.and_(pc.is_null(rows["column_id"]), pc.is_valid(rows["column_name"]))
        if not pc.any(lacking).as_py():
            return rows
        named = rows.filter(lacking).select(["table_key", "column_name"])
        numbers = codes(named, named.column_names)
        _, first, places = np.unique(numbers, return_index=True, return_inverse=True)
        wanted = named.take(pa.array(first)).append_column("first", pa.array(first))
        self._refuse_ambiguous(connection, wanted)
        ids = np.array(self._assigned(connection, wanted), np.int64)
        filled = np.zeros(rows.num_rows, np.int64)
        filled[lacking.to_numpy()] = ids[places]
        column_ids = pc.if_else(lacking, pa.array(filled), rows["column_id"])
        return rows.set_column(rows.schema.get_field_index("column_id"), "column_id", column_ids)

    def _refuse_ambiguous(self, connection: Connection, wanted: pa.Table) -> None:
        shared = execute(
            connection,
            "SELECT table_key, column_name FROM table_columns"
            f" WHERE {within('table_key', wanted['table_key'])}"
            " GROUP BY table_key, column_name HAVING min(column_id) < max(column_id)",
        )
        if not shared:
            return
        names = zip(wanted["table_key"].to_pylist(), wanted["column_name"].to_pylist(), strict=True)
        if ambiguous := sorted({*shared}.intersection(names)):
            table_key, name = ambiguous[0]
            raise InvalidField(
                "column_name",
                f'is the name of several columns of "{self._catalog.by_key(table_key).full_name}"',
                expected="a column_id with the name",
                actual=name,
            )

    def _assigned(self, connection: Connection, wanted: pa.Table) -> list[int]:
        """The id of each (table_key, column_name), in order; new ids are assigned in the order of `first`."""
        tables = wanted["table_key"].unique()
        known = execute(
            connection,
            "SELECT table_key, column_name, column_id FROM column_ids"
            f" WHERE {among('table_key', tables.to_pylist(), 'tables')}",
            tables=pa.table({"key": tables}),
        )
        ids: dict[int, dict[str, int]] = {}
        for key, name, column_id in known:
            ids.setdefault(key, {})[name] = column_id
        for by_name in ids.values():  # a name with dots may be a path of one part
            by_name |= {dotted_name(key): id for key, id in by_name.items() if '"' in key} | by_name
        keys, names = wanted["table_key"].to_pylist(), wanted["column_name"].to_pylist()
        new: list[tuple[int, str, int]] = []
        for at in np.argsort(wanted["first"].to_numpy()):
            by_name = ids.setdefault(keys[at], {})
            if names[at] not in by_name:
                by_name[names[at]] = max(by_name.values(), default=0) + 1
                new.append((keys[at], names[at], by_name[names[at]]))
        if new:
            insert_rows(connection, "column_ids (table_key, column_name, column_id)", new)
        return [ids[key][name] for key, name in zip(keys, names, strict=True)]

    def note(self, connection: Connection, rows: pa.Table, *, is_novel: bool) -> None:
        """Adds the columns in rows of `stats.columns` to the catalog, for external tables.

        Args:
            rows: Rows with `table_key` and `column_id`.
            is_novel: The tables are new and have no columns yet.
        """
        external = [k for k in rows["table_key"].unique().to_pylist() if self._catalog.by_key(k).format == EXTERNAL]
        if not external or "column_name" not in rows.column_names:
            return
        if "logical_type" not in rows.column_names:
            rows = rows.append_column("logical_type", pa.nulls(rows.num_rows, pa.string()))
        rows = rows.select(["table_key", "column_id", "column_name", "logical_type"])
        rows = rows.filter(pc.and_(pc.is_valid(rows["column_name"]), pc.is_in(rows["table_key"], pa.array(external))))
        if not rows.num_rows:
            return
        _, first = np.unique(codes(rows, ["table_key", "column_id"]), return_index=True)
        names = rows.take(pa.array(np.sort(first)))
        names = names.append_column("row_no", pa.array(np.arange(names.num_rows)))
        if not is_novel and not self._has_missing(connection, names):
            return
        missing = self._missing(connection, names, is_novel)
        if missing.num_rows:
            self._add(connection, missing)

    def _has_missing(self, connection: Connection, names: pa.Table) -> bool:
        """True if a column is not stored, which is rare. This takes a quarter of the time of `_missing`."""
        return bool(
            execute(
                connection,
                "SELECT 1 FROM {names} n ANTI JOIN table_columns c ON c.table_key = n.table_key"
                f" AND c.column_id = n.column_id AND c.{within('table_key', names['table_key'])} LIMIT 1",
                names=names,
            )
        )

    def _missing(self, connection: Connection, names: pa.Table, is_novel: bool) -> pa.Table:
        """The columns (`table_key`, `column_id`, …, `row_no`) that are not stored, in the order of `row_no`, with their
        future `position` and the id that their name has now (`id_of_name`, null if none)."""
        scope = within("table_key", names["table_key"])
        if is_novel and not connection.execute(f"SELECT 1 FROM column_ids WHERE {scope} LIMIT 1").fetchall():
            positions = pa.array(_positions(codes(names, ["table_key"])))
            names = names.append_column("position", positions)
            return names.append_column("id_of_name", pa.nulls(names.num_rows, pa.int64()))
        return query(
            connection,
            "SELECT n.*, coalesce(k.known, 0) + row_number() OVER (PARTITION BY n.table_key ORDER BY"
            " n.row_no) AS position, i.column_id AS id_of_name FROM {names} n"
            " ANTI JOIN table_columns c ON c.table_key = n.table_key AND c.column_id = n.column_id"
            " LEFT JOIN (SELECT table_key, count(DISTINCT column_id) AS known FROM table_columns"
            f" WHERE {scope} GROUP BY table_key) k ON k.table_key = n.table_key"
            " LEFT JOIN column_ids i ON i.table_key = n.table_key AND i.column_name = n.column_name"
            " ORDER BY n.row_no",
            names=names,
        )

    def _add(self, connection: Connection, columns: pa.Table) -> None:
        """Stores columns, in the order of `row_no`; if several have one name, it gets the id of the last."""
        _, last = np.unique(codes(columns, ["table_key", "column_name"])[::-1], return_index=True)
        named = columns.take(pa.array(np.sort(columns.num_rows - 1 - last)))
        renamed = named.filter(pc.fill_null(pc.not_equal(named["id_of_name"], named["column_id"]), False))
        unknown = named.filter(pc.is_null(named["id_of_name"]))
        execute(
            connection,
            "INSERT INTO table_columns"
            " (table_key, column_name, data_type, ordinal_position, is_nullable, column_id)"
            " SELECT table_key, column_name, logical_type, position, 'YES', column_id FROM {columns}",
            columns=columns,
        )
        if renamed.num_rows:
            execute(
                connection,
                "UPDATE column_ids SET column_id = r.column_id FROM {renamed} r"
                " WHERE column_ids.table_key = r.table_key AND column_ids.column_name = r.column_name",
                renamed=renamed,
            )
        if unknown.num_rows:
            execute(
                connection,
                "INSERT INTO column_ids SELECT table_key, column_name, column_id FROM {unknown}",
                unknown=unknown,
            )


def _positions(groups: Codes) -> Codes:
    """The rank of each element among equal ones, from 1, in order of appearance."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    lengths: Codes = np.diff(np.append(starts, len(ranked)))
    positions: Codes = np.empty(len(groups), np.int64)
    positions[order] = np.arange(1, len(groups) + 1) - np.repeat(starts, lengths)
    return positions
