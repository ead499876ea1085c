"""Reading stored records as they were put: single ones, those of a snapshot, whole flights of it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, OPEN_END, stored_columns
from store.history.content_hash import content_hash
from store.history.file_spans import STORAGE_ID, rows_of, where_target
from store.model.catalog_entries import TableEntry
from store.model.columns import COMPUTED
from store.model.errors import NotFound
from store.model.puts import FLIGHT_OF, one_place
from store.model.schemas import FLIGHTS
from store.model.targets import Target, TargetKind
from store.stores import Meta, Page
from store.stores import Records as Rows

_TABLE: Final = ("table_catalog", "table_schema", "table_name", "table_id")
_FAMILIES: Final = {"stats.sketches": ("stats.sketches", "file_sketches")}  # other flights are one family
Texts = list[str]  # `list` is a method in the class below


class Records:
    """The records of a database: what a `StatsStore`, which tells more of these methods, reads."""

    def __init__(self, database: Database, catalog: Catalog):
        self.database, self.catalog = database, catalog

    def get(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        """A record as it was put; None if there is none."""
        record = self._find(table, snapshot_id, target)
        return record and {name: record[name] for name in record if name not in ("generation", "created_at")}

    def _find(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        flight = FLIGHT_OF[target.kind]
        condition, parameters = where_target(flight, target)
        source, leading = rows_of(flight, table, snapshot_id)
        with self._reading(table, flight) as cursor:
            rows = query(cursor, f"SELECT t.* FROM {source}{condition}", [*leading, *parameters])
        return rows.to_pylist()[0] if rows.num_rows else None

    def meta(self, table: TableEntry, snapshot_id: int, target: Target) -> Meta:
        """The digest, generation and times of a record. Raises NotFound if there is none, or no such snapshot."""
        self.catalog.snapshot(table, snapshot_id)
        row = self._find(table, snapshot_id, target)
        if row is None:
            raise NotFound(
                f'nothing is stored for {target.storage_id} of "{table.full_name}" at snapshot {snapshot_id}',
                code="UNKNOWN_TARGET",
                hint="capture it first",
            )
        digest = content_hash(FLIGHT_OF[target.kind], row, self._sketch_digests(table, snapshot_id, target))
        return Meta(digest, row["generation"], row["created_at"], row["refreshed_at"] or row["created_at"])

    def _sketch_digests(self, table: TableEntry, snapshot_id: int, target: Target) -> Texts:
        family = "file_sketches" if target.kind is TargetKind.FILE else "stats.sketches"
        source, leading = rows_of(family, table, snapshot_id)
        with self._reading(table, family) as cursor:
            digests = cursor.execute(
                f"SELECT role || ' ' || sketch_type || ' ' || sha256(data) FROM {source} AND t.storage_id = ?"
                " ORDER BY 1",
                [*leading, target.storage_id],
            ).fetchall()
        return [row[0] for row in digests]

    def rows(self, table: TableEntry, snapshot_id: int, flight: str) -> pa.Table:
        """The stored rows of a flight at a snapshot, as the database has them."""
        places = one_place(table.table_key, snapshot_id)
        with self._reading(table, flight) as cursor:
            return query(cursor, select_rows(flight), places=places)

    @contextlib.contextmanager
    def _reading(self, table: TableEntry, *flights: str) -> Iterator[Connection]:
        """A cursor for the block, which sees the rows in segments, too."""
        families = [flight for flight in flights if flight in BY_SPAN]
        with self.database.reading() as cursor:
            if families:
                self.database.segments.attach(cursor, [table.table_key], families)
            yield cursor

    def of_flight(self, flight: str, table: TableEntry, snapshot_id: int) -> pa.Table:
        """Stored rows of a flight for a table at one snapshot.

        Args:
            flight: Name of a stored `stats.*` flight; `stats.sketches` includes sketches of files.

        Returns:
            The flight's columns without the derived ones; columns that are not stored are null.
        """
        schema = pa.schema([field for field in FLIGHTS[flight].schema if field.name not in COMPUTED])
        values = (*table.name, table.table_id, snapshot_id)
        key = dict(zip((*_TABLE, "snapshot_id"), values, strict=True))
        families = _FAMILIES.get(flight, (flight,))
        parts = []
        with self._reading(table, *families) as cursor:
            for family in families:
                source, parameters = rows_of(family, table, snapshot_id)
                parts.append(query(cursor, f"SELECT t.* FROM {source}", parameters))
        return pa.concat_tables([_in_schema(part, schema, key) for part in parts])

    def count(self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None) -> int:
        """The number of records of a snapshot, of one kind or all. Raises NotFound if there is no such snapshot."""
        self.catalog.snapshot(table, snapshot_id)
        total = 0
        with self._reading(table, "stats.files") as cursor:
            for each in [kind] if kind else list(FLIGHT_OF):
                source, leading = rows_of(FLIGHT_OF[each], table, snapshot_id)
                total += cursor.execute(f"SELECT count(*) FROM {source}", leading).fetchall()[0][0]
        return total

    def list(
        self,
        table: TableEntry,
        snapshot_id: int,
        kind: TargetKind | None = None,
        *,
        page_token: str = "",
        page_size: int = 1000,
    ) -> Page:
        """A page of the records of a snapshot. Raises NotFound if there is no such snapshot."""
        total = self.count(table, snapshot_id, kind)
        records: Rows = []
        with self._reading(table, "stats.files") as cursor:
            for each in [kind] if kind else list(FLIGHT_OF):
                wanted = page_size + 1 - len(records)
                if wanted <= 0:
                    break
                flight = FLIGHT_OF[each]
                source, leading = rows_of(flight, table, snapshot_id)
                named = f"{STORAGE_ID[flight].format('t')} AS storage_id, '{each}' AS target_kind"
                page = query(
                    cursor,
                    f"SELECT * FROM (SELECT {named}, t.* FROM {source}) WHERE storage_id > ?"
                    f" ORDER BY storage_id LIMIT {wanted}",
                    [*leading, page_token],
                )
                records += page.to_pylist()
        page = records[:page_size]
        return page, page[-1]["storage_id"] if len(records) > len(page) else "", total

    def listed_rows(self, table_keys: Collection[int]) -> int:
        """Rows in the database file that belong to the newest file listings of tables."""
        if not any(self.catalog.presence.has_any(family, table_keys) for family in BY_SPAN):
            return 0
        where = f"WHERE table_key IN ({', '.join(map(str, table_keys))}) AND to_pos = {OPEN_END}"
        each = " UNION ALL ".join(f"SELECT count(*) AS n FROM {table} {where}" for table in BY_SPAN.values())
        ((rows,),) = self.database.rows(f"SELECT sum(n)::BIGINT FROM ({each})")
        return int(rows)


def select_rows(flight: str) -> str:
    """SQL of the records of a flight, or `file_sketches`, at the places of an Arrow table `places` (`table_key`,
    `snapshot_id`), with the columns of a put."""
    names = ", ".join(f"c.{name}" for name in _TABLE)
    values = ", ".join(f't."{name}"' for name in stored_columns(flight))
    if flight in BY_SNAPSHOT:
        source, at = f"{BY_SNAPSHOT[flight]} t", "t"
    else:
        source, at = (
            f"{BY_SPAN[flight]} t JOIN file_snapshots f ON f.table_key = t.table_key AND f.family = '{flight}'"
            " AND f.pos >= t.from_pos AND f.pos < t.to_pos",
            "f",
        )
    return (
        f"SELECT {names}, {at}.snapshot_id, {values} FROM {source} JOIN {{places}} p ON p.table_key = {at}.table_key"
        f" AND p.snapshot_id = {at}.snapshot_id JOIN tables c ON c.table_key = t.table_key"
    )


def _in_schema(rows: pa.Table, schema: pa.Schema, key: Mapping[str, Any]) -> pa.Table:
    """Stored rows with the columns of a schema: those of the key have its values, absent ones are null."""
    columns = []
    for field in schema:
        if field.name in key:
            column = pa.repeat(pa.scalar(key[field.name], field.type), rows.num_rows)
        elif field.name in rows.column_names:
            column = rows[field.name].cast(field.type)
        else:
            column = pa.nulls(rows.num_rows, field.type)
        columns.append(column)
    return pa.table(columns, schema)
