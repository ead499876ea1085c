"""Drafts: rows that a worker puts under a lease, invisible until they are committed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from store import segment_listings
from store.catalog.registration import keys_of
from store.duckdb.database import Connection
from store.duckdb.layout import BY_SPAN
from store.duckdb.spill import SpillBuffer
from store.history.file_listings import FAMILIES, ListingChanged, Marks, continue_listings, list_nothing
from store.history.file_spans import end_staged
from store.history.presence import STAGED
from store.model.catalog_entries import TableEntry
from store.model.errors import Cancelled
from store.model.puts import FAMILY_OF, MANY_ROWS, Listing
from store.segment_listings import SegmentListing
from store.segment_making import HandedOver
from store.staged_listings import StagedListing, family_of
from store.stats_store import DuckDBStatsStore, Put, PutMode


class Draft:
    """Rows put under a lease. Many rows of one family of files go to the database in pieces, as they come.

    Args:
        store: Takes these rows; without it all are kept.
    """

    def __init__(self, store: DuckDBStatsStore | None = None, is_cancelled: Callable[[], bool] | None = None):
        self._store, self._is_cancelled = store, is_cancelled
        self._lock, self._closed = threading.Lock(), False
        self._buffers: dict[tuple[str | None, str, PutMode, pa.Schema], SpillBuffer] = {}  # by family, flight, …
        self._handed: dict[str, list[HandedOver]] = {}  # by family; files that are no segments yet
        self._taken: list[str] = []  # names of all files that were added
        self._numbers: dict[str, int] = {}  # family → rows in buffers and such files
        self._is_large = False  # more of them than a listing in the database file has
        self._cells = 0  # rows of files that were added, but for the few
        self.staged: dict[str, StagedListing] = {}  # whose rows are in the database, by family
        self._few: list[Put] = []
        self._merged: list[Put] | None = None
        self._listings: dict[int, Listing] = {}  # by snapshot
        self.sizes: list[tuple[str, int, int]] = []  # flight, rows and bytes of what was added

    def __bool__(self) -> bool:
        return bool(self.sizes or self._listings)

    def declare(self, listing: Listing) -> None:
        """Adds the file listing of a snapshot.

        Raises:
            ListingChanged: It continues another one, and rows of files were stored in pieces as a whole listing.
        """
        with self._lock:
            if listing.base_snapshot_id is not None and not self.staged.keys().isdisjoint(FAMILIES):
                raise ListingChanged
            self._listings[listing.snapshot_id] = listing

    @property
    def listings(self) -> list[Listing]:
        """The declared listings."""
        return list(self._listings.values())

    def add(self, put: Put, whole: bool, *, few: bool = False) -> None:
        """Adds rows.

        Args:
            whole: True if they are all rows of their flight at their snapshots.
            few: Keep them in memory until the end.

        Raises:
            StatflightError: They go to the database in pieces, and it refuses one.
            Cancelled: The rows are unwanted.
        """
        if self._is_cancelled is not None and self._is_cancelled():
            raise Cancelled("the job was cancelled")
        put = Put(put.flight, put.rows, PutMode.REPLACE_SNAPSHOT if whole else put.mode)
        with self._lock:
            self.sizes.append((put.flight, put.rows.num_rows, put.rows.get_total_buffer_size()))
            parts = _by_kind(put)
            if few:
                self._few += parts
                return
            for part in parts:
                self._add(part)

    def _add(self, put: Put) -> None:
        family = family_of(put)
        if family in self.staged and self.staged[family].takes(put):
            self.staged[family].add(put.rows, put.mode)
            return
        key = (family, put.flight, put.mode, put.rows.schema)
        if key not in self._buffers:
            directory = None if self._store is None else self._store.database.directory
            self._buffers[key] = SpillBuffer(put.rows.schema, directory)
        self._buffers[key].add(put.rows)
        if family is not None and self._store is not None and family not in self.staged:
            self._count(self._store, family, put.rows.num_rows)

    def expect_files(self) -> None:
        """Keeps the files that are written for this draft, of which it is told later."""
        with self._lock:
            if self._store is not None and not self._closed:
                self._store.database.segments.files.expect(self)

    def add_file(self, handed: HandedOver) -> None:
        """Adds a file of rows that a worker has written, which is deleted if it does not become a segment.

        Raises:
            StatflightError: The database refuses the rows.
            Cancelled: The rows are unwanted.
        """
        with self._lock:
            store, written = self._store, handed.written
            assert store is not None
            self._taken.append(written.name)
            self.sizes.append((handed.flight, written.row_count, written.size_bytes))
            family = FAMILY_OF[handed.flight]
            listing = self.staged.get(family)
            if self._closed:
                segment_listings.drop_unused(store.database, [written.name])
            elif isinstance(listing, SegmentListing) and listing.takes(handed.first):
                listing.add_file(written, handed.first.mode)
            elif listing is not None:
                self._add(self._read(store, handed))
            else:
                self._handed.setdefault(family, []).append(handed)
                self._count(store, family, written.row_count)

    def _read(self, store: DuckDBStatsStore, handed: HandedOver) -> Put:
        """The put of the rows of a file, which is deleted."""
        files = store.database.segments.files
        put = handed.read(files)
        files.discard([handed.written.name])
        return put

    def _read_all(self, store: DuckDBStatsStore) -> None:
        """Buffers the rows of all files that do not become segments."""
        for family in list(self._handed):
            for handed in self._handed.pop(family):
                self._keep(store, family, self._read(store, handed))

    def _count(self, store: DuckDBStatsStore, family: str, rows: int) -> None:
        """Counts rows of a family that are kept, and moves them to the database once they are many."""
        self._numbers[family] = self._numbers.get(family, 0) + rows
        self._cells += rows
        limit = store.database.segments.cells
        if limit is None:
            if self._numbers[family] >= MANY_ROWS:
                self._stage(store, family, StagedListing)
        elif self._cells > limit and self._numbers[family] > min(limit, MANY_ROWS):
            self._is_large = True
            self._stage(store, family, SegmentListing)

    def _keys(self, store: DuckDBStatsStore) -> set[int]:
        """Keys of the tables of which rows of files are kept."""
        firsts = self._firsts(self._few_of_families())
        return {key for rows in firsts.values() for key in keys_of(store.catalog, rows)}

    def _stage_rest(self, store: DuckDBStatsStore, keys: Collection[int], listed_rows: int) -> None:
        """Begins the listings of the families whose rows were kept: as segments if they are many, or others of the
        table lie there.

        Args:
            keys: Keys of their tables.
            listed_rows: Rows of files that the database has of them.
        """
        segments = store.database.segments
        few = self._few_of_families()
        firsts = self._firsts(few)
        cells = self._cells + sum(put.num_rows for each in few.values() for put in each)
        if segments.cells is not None and cells:
            self._is_large = cells + listed_rows > segments.cells
        if not (self._is_large or segments.may_have(keys)):
            self._read_all(store)
        for family in BY_SPAN:
            if family in self.staged or family not in firsts:
                continue
            if self._is_large or segments.may_have(keys):
                self._stage(store, family, SegmentListing, few[family])
            elif self._numbers.get(family, 0) >= MANY_ROWS:
                self._stage(store, family, StagedListing)
        self._read_all(store)

    def _few_of_families(self) -> dict[str, list[Put]]:
        """The few rows of files, by family."""
        few: dict[str | None, list[Put]] = {}
        for put in self._few:
            few.setdefault(family_of(put), []).append(put)
        return {family: few.get(family, []) for family in BY_SPAN}

    def _firsts(self, few: Mapping[str, Sequence[Put]]) -> dict[str, pa.Table]:
        """Some of the rows that are kept of each family, the few ones among them; without families that have none."""
        firsts = {key[0]: buffer.first for key, buffer in self._buffers.items() if key[0] in BY_SPAN}
        handed = {family: files[0].first.rows for family, files in self._handed.items() if files}
        return handed | firsts | {family: puts[0].rows for family, puts in few.items() if puts}

    def _stage(self, store: DuckDBStatsStore, family: str, kind: type[StagedListing], few: Sequence[Put] = ()) -> None:
        """Moves the rows of a family to the database, if they can be stored in pieces; else they are kept, and it is
        tried again once there are as many more.

        Args:
            few: Rows of the family that are added later.
        """
        keys = sorted((key for key in self._buffers if key[0] == family), key=lambda key: key[2] is PutMode.FILL)
        kept: list[Put | HandedOver] = [Put(key[1], self._buffers.pop(key).table(), key[2]) for key in keys]
        kept += self._handed.pop(family, ())
        if kind is SegmentListing:  # which takes the rows of the mode that most have
            numbers: Counter[PutMode] = Counter()
            for each in kept:
                numbers[each.mode] += each.num_rows
            most = max(numbers, key=lambda mode: numbers[mode], default=None)
            kept.sort(key=lambda each: each.mode is not most)
        self._numbers[family] = 0
        bases = {s: listing for s, listing in self._listings.items() if listing.base_snapshot_id is not None}
        continued = bases if family in FAMILIES else {}
        firsts = [each.first if isinstance(each, HandedOver) else each for each in kept]
        listing = store.stage([*firsts, *few], continued, self._is_cancelled, kind)
        if listing is None:
            for each in kept:
                self._keep(store, family, each)
            return
        if isinstance(listing, SegmentListing) and self._is_large:
            listing.few_rows = 0
        self.staged[family] = listing
        if self._closed:
            listing.close()
        for each, first in zip(kept, firsts, strict=True):
            if not listing.takes(first):
                self._keep(store, family, self._read(store, each) if isinstance(each, HandedOver) else each)
            elif isinstance(each, HandedOver):
                assert isinstance(listing, SegmentListing)
                listing.add_file(each.written, each.mode)
            else:
                listing.add(each.rows, each.mode)

    def _keep(self, store: DuckDBStatsStore, family: str, kept: Put | HandedOver) -> None:
        """Keeps rows that are no part of a listing in the database."""
        if isinstance(kept, HandedOver):
            self._handed.setdefault(family, []).append(kept)
            return
        key = (family, kept.flight, kept.mode, kept.rows.schema)
        if key not in self._buffers:
            self._buffers[key] = SpillBuffer(kept.rows.schema, store.database.directory)
        self._buffers[key].add(kept.rows)

    def settle(self) -> None:
        """Adds the few rows of the listings that are stored in pieces, and what else comes before their commit.

        Raises:
            StatflightError: The database refuses rows; nothing is stored.
        """
        store, keys = self._store, set[int]()
        if store is not None:
            with self._lock:
                keys = self._keys(store)
        may_be_large = store is not None and store.database.segments.cells is not None
        listed_rows = store.listed_rows(keys) if store is not None and may_be_large and keys else 0
        with self._lock:
            if store is not None and self._merged is None:
                self._stage_rest(store, keys, listed_rows)
            if self.staged:
                few, self._few = self._few, []
                for put in sorted(few, key=lambda put: put.mode is PutMode.FILL):
                    listing = self.staged.get(family_of(put) or "")
                    if listing is not None and listing.takes(put):
                        listing.add(put.rows, put.mode)
                    else:
                        self._few.append(put)
            for listing in self.staged.values():
                listing.settle()

    def close(self) -> None:
        """Removes the rows that went to the database and are not committed; no more are taken."""
        self._closed = True
        if self._store is not None:
            self._store.database.segments.files.expect_no_more(self)
        for listing in list(self.staged.values()):
            listing.close()
        if self._store is not None and self._taken:
            segment_listings.drop_unused(self._store.database, self._taken)

    def merged(self) -> list[Put]:
        """The other puts in the order of the commit: requested statistics first, then additional ones (mode FILL)."""
        with self._lock:
            if self._merged is None:  # cached, because a write may run twice and a buffer returns its rows once
                buffers = self._buffers.items()
                puts = [Put(flight, buffer.table(), mode) for (_, flight, mode, _), buffer in buffers]
                self._merged = together(puts + self._few)
            return self._merged


def _by_kind(put: Put) -> list[Put]:
    """A put of sketches as one of those of files and one of the others; any other put as it is."""
    if put.flight != "stats.sketches":
        return [put]
    of_file = pc.fill_null(pc.equal(put.rows["target_kind"], "FILE"), False)
    parts = (put.rows.filter(mask) for mask in (of_file, pc.invert(of_file)))
    return [Put(put.flight, rows, put.mode) for rows in parts if rows.num_rows]


def store_drafts(connection: Connection, store: DuckDBStatsStore, drafts: Sequence[tuple[Draft, TableEntry]]) -> None:
    """Stores drafts: one put takes all, so that its cost depends on rows, not on tables. A draft that is staged, or one
    of several whose listings continue others of their table, is put alone, in order.

    Args:
        drafts: Drafts, each with its table.
    """
    for group in _put_together(drafts):
        listings = [(draft, table.table_key, listing) for draft, table in group for listing in draft.listings]
        _continue(connection, store, [each for each in listings if each[2].base_snapshot_id is not None])
        staged = [each for draft, _ in group for each in draft.staged.values()]
        puts = together(put for draft, _ in group for put in draft.merged())
        marks = {(table_key, listing.snapshot_id): listing.mark for _, table_key, listing in listings}
        store.put_in(connection, puts, staged=staged, marks=marks)
        store.catalog.spans.list_files(list_nothing(connection, store.database.segments, _complete(listings)))


def _put_together(drafts: Sequence[tuple[Draft, TableEntry]]) -> list[Sequence[tuple[Draft, TableEntry]]]:
    """The drafts in the groups in which they are put: those put alone first, then all others."""
    listed = Counter(table.table_key for draft, table in drafts if draft.listings)
    alone: list[Sequence[tuple[Draft, TableEntry]]] = []
    others: list[tuple[Draft, TableEntry]] = []
    for draft, table in drafts:
        continues = any(listing.base_snapshot_id is not None for listing in draft.listings)
        if draft.staged or (continues and listed[table.table_key] > 1):
            alone.append([(draft, table)])
        else:
            others.append((draft, table))
    return [*alone, others]


def _complete(listings: Sequence[tuple[Draft, int, Listing]]) -> Marks:
    """Table key and snapshot → mark of the listings that continue no other, and lack rows of a family, if only because
    it has none."""
    return {
        (table_key, listing.snapshot_id): listing.mark
        for draft, table_key, listing in listings
        if listing.base_snapshot_id is None and not _lists_all(draft, listing.snapshot_id)
    }


def _lists_all(draft: Draft, snapshot_id: int) -> bool:
    """True if a draft has rows of each of `FAMILIES` at a snapshot, none of them staged."""
    listed = {
        put.flight
        for put in draft.merged()
        if put.flight in FAMILIES
        and pc.is_in(pa.scalar(snapshot_id, pa.int64()), pc.unique(put.rows["snapshot_id"])).as_py()
    }
    return listed == {*FAMILIES}


def _continue(connection: Connection, store: DuckDBStatsStore, listings: Sequence[tuple[Draft, int, Listing]]) -> None:
    """Gives snapshots the listings of their bases. Each listing comes with its draft and the key of its table."""
    if not listings:
        return
    for family in FAMILIES:
        keys = [key for draft, key, _ in listings if family not in draft.staged]
        if store.catalog.presence.has_any(STAGED, keys):
            end_staged(connection, store.database.segments, family, keys)
    continue_listings(
        connection,
        store.database.segments,
        [
            (key, listing, [family for family in FAMILIES if family not in draft.staged])
            for draft, key, listing in listings
        ],
    )
    store.catalog.spans.list_files(
        [key for _, key, listing in listings if listing.snapshot_id != listing.base_snapshot_id]
    )
    places = pa.table(
        {
            "table_key": [key for _, key, _ in listings],
            "snapshot_id": pa.array([listing.snapshot_id for *_, listing in listings], pa.int64()),
        }
    )
    for family in FAMILIES:
        store.catalog.behind.stored(family, places)


def together(puts: Iterable[Put]) -> list[Put]:
    """Merges puts into one for each flight and mode, in the order of the commit: sketches after their records."""
    groups: dict[tuple[str, PutMode], list[pa.Table]] = {}
    for put in puts:
        groups.setdefault((put.flight, put.mode), []).append(put.rows)
    ordered = sorted(groups.items(), key=lambda item: (item[0][1] is PutMode.FILL, item[0][0] == "stats.sketches"))
    return [
        Put(flight, tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default"), mode)
        for (flight, mode), tables in ordered
    ]
