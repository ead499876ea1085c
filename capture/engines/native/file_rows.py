"""Rows of the files of a table and of their columns, put as a listing that continues the newest one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import FilePart
from capture.engines.native import known_listings
from capture.engines.native.known_listings import KnownListings, ListedPart, ListingDelta, RememberedListing
from capture.engines.native.metadata import Metadata
from capture.engines.rollup import Rollup, roll_up
from capture.flight_rows import with_constants
from capture.spi import Sink
from store.model.freshness import CONTRADICTED, UNCONFIRMED
from store.model.puts import Listing


class FileRows:
    """Puts the rows of files, and rolls up the statistics of their columns.

    Args:
        metadata: What the capture has read.
        listings: The newest listing of each table.
        is_covered: Other engines have put the records of all columns of files.
    """

    def __init__(self, metadata: Metadata, sink: Sink, listings: KnownListings, *, is_covered: bool = False):
        self._metadata, self._native, self._table = metadata, metadata.native, metadata.table
        self._sink, self._listings, self._is_covered = sink, listings, is_covered
        self._delta: ListingDelta | None = None  # changes since the stored listing; None: all files are put

    def put_files(self) -> None:
        """Puts the rows of the files that the listing adds."""
        files, whole = self._native.files, True
        if self._delta is not None:
            files, whole = files.filter(pc.is_in(files["file_path"], self._delta.added)), False
        if whole or files.num_rows:
            self._sink.put(
                "stats.files", with_constants(files, self._metadata.provenance_of_files, "stats.files"), whole=whole
            )

    def put_columns(self, part: pa.Table) -> None:
        """Puts rows of columns of files."""
        complete = pc.and_(pc.is_valid(part["null_count"]), pc.is_valid(part["row_count"]))
        part = part.append_column("completeness", pc.if_else(complete, "COMPLETE", "PARTIAL"))
        unknown, levels = pa.scalar(None, pa.float64()), None
        if part["doubt"].null_count < part.num_rows:
            levels = pc.if_else(pc.is_valid(part["doubt"]), UNCONFIRMED, unknown)
        if self._metadata.other_rows:
            levels = pa.repeat(pa.scalar(CONTRADICTED), part.num_rows)
        elif self._table.contradicted:
            of_columns = pa.array(sorted(self._table.contradicted), pa.int64())
            others = unknown if levels is None else levels
            levels = pc.if_else(pc.is_in(part["column_id"], of_columns), CONTRADICTED, others)
        if levels is not None:
            part = part.append_column("confidence_level", levels)
        self._sink.put(
            "stats.file_columns",
            with_constants(part, self._metadata.provenance_of_files, "stats.file_columns"),
            extra=True,
        )

    def rollups(self) -> dict[int, Rollup]:
        """Puts the statistics of columns of files, if the whole table is captured; returns roll-ups by column id."""
        is_listed = self._native.parts or self._native.data_file_count == 0  # that there are none is a listing, too
        if self._metadata.is_whole and is_listed and self._metadata.wanted is None:  # a listing has all columns
            return self._parts()
        rollups: dict[int, Rollup] = {}
        for part in () if self._is_covered else self._native.file_columns():
            roll_up(rollups, part, self._table)
            if self._metadata.is_whole and part.num_rows:
                self.put_columns(part)
        return rollups

    def _parts(self) -> dict[int, Rollup]:
        """As `rollups`, but puts only what changed since the newest listing, if the store still has that one."""
        native, table, last = self._native, self._table, self._listings.last(self._table)
        mark = known_listings.mark_of(table, native.parts)
        self._delta = self._listed_from(last, Listing(table.snapshot_id, mark))
        earlier = {} if last is None else last.parts
        listed_parts = {part.key: self._listed_part(part, earlier.get(part.key)) for part in native.parts}
        self._listings.remember(table, mark, listed_parts)
        return {} if self._is_covered else self._joined(listed_parts.values())

    def _listed_from(self, last: RememberedListing | None, listing: Listing) -> ListingDelta | None:
        """Starts a listing, from the last one if the store still has that; returns the changes since then, or None if
        all files are to be put."""
        delta = known_listings.delta(last, self._table, self._native.parts, self._native.files)
        if delta is not None and last is not None:
            removed = tuple(delta.removed.to_pylist())
            base = replace(listing, base_snapshot_id=last.snapshot_id, base_mark=last.mark, removed=removed)
            if self._sink.list_files(self._table, base):
                return delta
        self._sink.list_files(self._table, listing)
        return None

    def _listed_part(self, part: FilePart, earlier: ListedPart | None) -> ListedPart:
        """A part of the listing, whose rows are put unless they are known; `earlier` is the same part of the last."""
        known = earlier if earlier is not None and earlier.rollups is not None else None
        if self._is_covered:
            return known or ListedPart(part.files, part.marks, None)
        if known is not None and self._delta is not None:
            return known
        return self._put_part(part, known)

    def _joined(self, listed_parts: Collection[ListedPart]) -> dict[int, Rollup]:
        """Roll-ups of the columns over all parts, by column id."""
        parts_of: dict[int, list[Rollup]] = {}
        for listed in listed_parts:
            for column_id, rollup in (listed.rollups or {}).items():
                parts_of.setdefault(column_id, []).append(rollup)
        return {
            column_id: Rollup.of(self._table.by_id[column_id].name, self._table.by_id[column_id].logical_type, parts)
            for column_id, parts in parts_of.items()
        }

    def _put_part(self, part: FilePart, known: ListedPart | None) -> ListedPart:
        rollups: dict[int, Rollup] = {}
        for rows in part.file_columns():
            if known is None:
                roll_up(rollups, rows, self._table)
            if self._delta is not None:
                rows = rows.filter(pc.is_in(rows["file_path"], self._delta.added))
            if rows.num_rows:
                self.put_columns(rows)
        return known or ListedPart(part.files, part.marks, rollups)
