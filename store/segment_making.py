"""Segments made by whoever captures: rows of files are checked, sorted and written by the capture's own process.

A maker has a directory or bucket in common with the server, which takes a file over by its name and digest. Its rows
are as those of a put: the same checks have been made of them, and no two of its files have a row about the same target.
"""

from __future__ import annotations

import functools
import logging
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from store.duckdb.layout import stored_columns
from store.duckdb.segment_buckets import files_at
from store.duckdb.segment_files import ROUNDED_BOUNDS, SegmentError, SegmentFiles, Written
from store.history import validation
from store.history.target_bits import TargetBits
from store.model import target_ids
from store.model.errors import InvalidArgument
from store.model.names import join_name
from store.model.puts import FAMILY_OF, IDENTITY, Put, PutMode, once
from store.model.schemas import FLIGHTS
from store.segment_listings import in_order

log = logging.getLogger("statflight.store")

_PLACE: Final = ("table_catalog", "table_schema", "table_name", "table_id")


class Made(NamedTuple):
    """The rows of a flight that a maker was given: the file with them, if any, and those left to a put, since they are
    about targets of earlier files."""

    written: Written | None
    repeated: pa.Table


class SegmentMaker:
    """Writes the rows of one capture at one snapshot.

    Args:
        files: The directory of the server's segments.
    """

    def __init__(self, files: SegmentFiles):
        self._files = files
        numbers: dict[str, dict[str, int]] = {IDENTITY[family][0]: {} for family in FAMILY_OF.values()}
        self._targets = {family: TargetBits(family, numbers[IDENTITY[family][0]]) for family in FAMILY_OF.values()}

    @staticmethod
    def open(location: str, owner: str) -> SegmentMaker | None:
        """A maker of segments at a server's place for them; None if this process does not reach it.

        Args:
            location: A directory, or the URL of a bucket.
            owner: The name by which the server's database owns it.
        """
        try:
            files = files_at(location, copies=None)
        except InvalidArgument as error:  # a library is missing here
            log.info("%s", error)
            return None
        return SegmentMaker(files) if files.is_shared_with(owner) else None

    def make(self, flight: str, rows: pa.Table, *, checked: bool) -> Made:
        """Writes rows to a file.

        Args:
            flight: A flight of `FAMILY_OF`.
            rows: Rows of files of one table and snapshot, with all columns of their identity.
            checked: The values are valid and normal, as those of the built-in engines.

        Raises:
            StatflightError: A row is not valid, or there is no room for the file.
        """
        family = FAMILY_OF[flight]
        prepared = validation.prepare(FLIGHTS[flight], rows, clamp=True, checked=checked)
        if flight == "stats.sketches":
            prepared = target_ids.with_storage_ids(prepared)
        rows = _once(in_order(prepared, family), family)
        targets = self._targets[family]
        places = targets.places(rows)
        known = targets.has(places)
        targets.add(places)
        repeated = rows.slice(0, 0)
        if known.any():
            rows, repeated = rows.filter(pa.array(~known)), rows.filter(pa.array(known))
        stored = rows.select([name for name in stored_columns(family) if name in rows.column_names])
        return Made(self._files.write(stored) if stored.num_rows else None, repeated)

    def discard(self, written: Written) -> None:
        """Deletes a file that the server does not take."""
        self._files.discard([written.name])


def _once(rows: pa.Table, family: str) -> pa.Table:
    """Rows in order without duplicates.

    Raises:
        InvalidArgument: Two different rows for one target.
    """
    has_nulls = any(rows[name].null_count for name in IDENTITY[family])  # which are equal, and pc.equal is null
    neighbours = (pc.equal(rows[name].slice(1), rows[name].slice(0, rows.num_rows - 1)) for name in IDENTITY[family])
    if not has_nulls and not pc.any(functools.reduce(pc.and_kleene, neighbours)).as_py():
        return rows
    name = join_name(*(rows[name][0].as_py() for name in _PLACE[:3]))
    return once(family, lambda _: name, rows, IDENTITY[family])


class HandedOver(NamedTuple):
    """A file that a maker has handed over.

    Attributes:
        first: A put with the first of its rows.
    """

    first: Put
    written: Written

    @property
    def flight(self) -> str:
        """The flight of its rows."""
        return self.first.flight

    @property
    def mode(self) -> PutMode:
        """The treatment of targets that are stored already."""
        return self.first.mode

    @property
    def num_rows(self) -> int:
        """The number of its rows."""
        return self.written.row_count

    def read(self, files: SegmentFiles) -> Put:
        """The put of its rows, of which the file is not needed any more.

        Raises:
            SegmentError: The file is missing or damaged.
        """
        return Put(self.flight, _placed(files.read(self.written), self.first.rows), self.first.mode)


def taken_over(files: SegmentFiles, place: Put, written: Written) -> HandedOver:
    """Takes a file over, once it is known to be whole and of the columns that its family has.

    Args:
        place: A put without rows, of the flight and mode of the file's rows; its columns are their place.

    Raises:
        SegmentError: It is missing, damaged, or has other columns or another number of rows.
        InvalidArgument: It is taken already, or no file of a segment.
    """
    files.adopt(written)
    try:
        family = FAMILY_OF[place.flight]
        files.check(written.name, written.digest)
        found = pq.ParquetFile(files.path(written.name))
        types = {**stored_columns(family), **ROUNDED_BOUNDS}
        wrong = [field.name for field in found.schema_arrow if types.get(field.name) != field.type]
        lacking = set(IDENTITY[family]) - {"column_id"} - set(found.schema_arrow.names)
        if wrong or lacking or found.metadata.num_rows != written.row_count or not written.row_count:
            raise SegmentError(written.name, "does not have the rows of its flight")
        few = [name for name in (*IDENTITY[family], "schema_hash", "target_kind") if name in found.schema_arrow.names]
        first = pa.Table.from_batches([next(found.iter_batches(1, row_groups=[0], columns=few))])
    except BaseException:
        files.discard([written.name])
        raise
    return HandedOver(Put(place.flight, _placed(first, place.rows), place.mode), written)


def _placed(rows: pa.Table, place: pa.Table) -> pa.Table:
    """Rows of a segment with the columns of their place, that of the first row of another table."""
    for name in (*_PLACE, "snapshot_id"):
        if name in place.column_names:
            rows = rows.append_column(name, pa.repeat(place[name][0], rows.num_rows))
    return rows
