"""Merging the rows of puts into the stored ones, for any number of tables, inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc

from store.catalog.catalog import Catalog
from store.catalog.column_ids import ColumnNames
from store.duckdb.database import Connection
from store.duckdb.layout import BY_SPAN
from store.history.file_listings import Marks
from store.history.file_spans import end_staged
from store.history.placement import Placement
from store.history.presence import STAGED
from store.history.snapshot_merge import SnapshotMerge
from store.history.span_merge import SpanMerge, drop_orphaned_sketches, waves
from store.model.catalog_entries import Place
from store.model.puts import Counts, Put, PutMode


class Merging:
    """Stores puts whose tables and snapshots are registered: their rows have `table_key`."""

    def __init__(self, catalog: Catalog):
        self.catalog, self._segments = catalog, catalog.database.segments
        self._columns = ColumnNames(catalog)

    def store(
        self,
        connection: Connection,
        puts: Sequence[Put],
        generation: int,
        new_tables: set[int],
        places: Mapping[tuple[int, int], Place],
        marks: Marks,
    ) -> Counts:
        """Stores puts in their order; each sees the rows of the previous ones.

        Args:
            new_tables: Keys of tables that had no rows before.
            places: (table key, snapshot id) → place, of all snapshots of the puts.
            marks: (table key, snapshot id) → mark of the listings of files.
        """
        keys = {key for put in puts if _lists_files(put) for key in put.rows["table_key"].unique().to_pylist()}
        had_sketches = self.catalog.presence.of("file_sketches", keys)
        spans, presence = self.catalog.spans, self.catalog.presence
        placement = Placement(self._name_of, places, spans, presence, self._segments, marks)
        counts = Counts()
        for put in puts:
            counts += self._store(connection, put, generation, new_tables, placement)
        placement.listings.store(connection)
        self._drop_orphans(connection, puts, had_sketches)
        return counts

    def _store(
        self,
        connection: Connection,
        put: Put,
        generation: int,
        new_tables: set[int],
        placement: Placement,
    ) -> Counts:
        rows, presence = put.rows, self.catalog.presence
        keys = rows["table_key"].unique().to_pylist()
        if put.flight in ("stats.columns", "stats.file_columns"):
            rows = self._columns.with_ids(connection, rows)
            if put.flight == "stats.columns":
                is_novel = new_tables.issuperset(keys) and not presence.has_any(put.flight, keys)
                self._columns.note(connection, rows, is_novel=is_novel)
        families = {put.flight: rows}
        if put.flight == "stats.sketches":
            of_file = pc.fill_null(pc.equal(rows["target_kind"], "FILE"), False)
            families = {"file_sketches": rows.filter(of_file), put.flight: rows.filter(pc.invert(of_file))}
        counts = Counts()
        for family, part in families.items():
            if not part.num_rows:
                continue
            self.catalog.behind.stored(family, part)
            if family in BY_SPAN and presence.has_any(STAGED, keys):
                placement.listings.store(connection)
                end_staged(connection, self._segments, family, keys)
            if family not in BY_SPAN:
                counts += SnapshotMerge(put.mode, family, part, placement).apply(connection, generation)
                continue
            for wave in waves(part):
                counts += SpanMerge(put.mode, family, wave, placement).apply(connection, generation)
        return counts

    def _drop_orphans(self, connection: Connection, puts: Sequence[Put], had_sketches: Set[int]) -> None:
        """Removes sketches of files that the puts' whole listings of files lack. Where all sketches of a table have
        come with the puts, which seldom have some of other files, the puts tell.

        Args:
            had_sketches: Keys of the tables that had sketches of files before.
        """
        of_files = [put.rows for put in puts if put.flight == "stats.sketches"]
        for put in filter(_lists_files, puts):
            keys = put.rows["table_key"].unique().to_pylist()
            if not self.catalog.presence.has_any("file_sketches", keys):
                continue
            listed = _files(put.rows)
            if had_sketches.isdisjoint(keys) and all(_are_listed(rows, keys, listed) for rows in of_files):
                continue
            for wave in waves(put.rows):
                drop_orphaned_sketches(connection, self._segments, wave)

    def _name_of(self, table_key: int) -> str:
        return self.catalog.by_key(table_key).full_name


def _lists_files(put: Put) -> bool:
    """True if a put has all files of its snapshots."""
    return put.flight == "stats.files" and put.mode is PutMode.REPLACE_SNAPSHOT


def _files(rows: pa.Table) -> pa.ChunkedArray:
    """The files that rows are about, each a text with its table and snapshot."""
    places = [rows[name].cast(pa.string()) for name in ("table_key", "snapshot_id")]
    return pc.binary_join_element_wise(*places, rows["file_path"].cast(pa.string()), "\x1f")


def _are_listed(sketches: pa.Table, keys: Sequence[int], listed: pa.ChunkedArray) -> bool:
    """True if all sketches of files of some tables are of listed files; false if their files are not named."""
    of_file = pc.and_(pc.equal(sketches["target_kind"], "FILE"), pc.is_in(sketches["table_key"], pa.array(keys)))
    sketches = sketches.filter(of_file)
    if not sketches.num_rows or "file_path" not in sketches.column_names:
        return not sketches.num_rows
    return bool(pc.all(pc.is_in(_files(sketches), listed)).as_py())
