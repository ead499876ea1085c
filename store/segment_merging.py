"""Upkeep of segments: small ones and rows in the file are merged into larger segments, and files of none are deleted.

A merge reads what it merges, writes one file, and replaces them in one short commit, if nothing of the table was
written meanwhile. Readers see the same rows before and after it; files that were replaced are deleted once the reads
that began before have ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SPAN, OPEN_END
from store.duckdb.segment_files import GRACE_SECONDS, Written
from store.duckdb.segment_location import used
from store.duckdb.segments import Segment
from store.segment_listings import in_order

MANY_SMALL: Final = 16
"""Segments of a table and family, each of fewer rows than `SMALL_ROWS`, that are merged."""

SMALL_ROWS: Final = 1 << 16
FILE_ROWS: Final = 200_000
"""Rows of a table and family in the database file, beside segments, that are moved to a segment."""

_MERGED_ROWS: Final = 1 << 20  # of a segment made by a merge, at most


class _Changed(Exception):
    """The table was written while its rows were merged."""


class _Merge(NamedTuple):
    table_key: int
    family: str
    segments: Sequence[Segment]
    takes_file: bool  # the rows in the database file, too
    version: int  # of the table, before its rows were read


def collect(database: Database, grace_seconds: float = GRACE_SECONDS) -> int:
    """Deletes files that no segment has; returns how many."""
    with database.reading() as cursor:
        names = used(cursor)
    return database.segments.files.collect(names, grace_seconds)


def merge(database: Database) -> int:
    """Merges the small segments of all tables; returns how many merges were made."""
    if not database.segments.may_have():
        return 0
    with database.reading() as cursor:
        found = database.segments.find(cursor)
    groups: dict[tuple[int, str], list[Segment]] = {}
    for segment in found:
        groups.setdefault((segment.table_key, segment.family), []).append(segment)
    return sum(merge_table(database, key, family, segments) for (key, family), segments in groups.items())


def merge_table(database: Database, key: int, family: str, segments: Sequence[Segment]) -> bool:
    """Merges the small segments of a table and family, and its rows in the database file.

    Args:
        segments: Its segments.

    Returns:
        False if there was nothing to merge, or the table was written meanwhile.
    """
    version = database.versions.generation(key)
    small = [segment for segment in segments if segment.row_count < SMALL_ROWS]
    ((in_file,),) = database.rows(f"SELECT count(*) FROM {BY_SPAN[family]} WHERE table_key = ?", key)
    if len(small) < MANY_SMALL and in_file < FILE_ROWS:
        return False
    chosen, rows = [], in_file
    for segment in small:
        if rows + segment.row_count > _MERGED_ROWS:
            break
        chosen.append(segment)
        rows += segment.row_count
    plan = _Merge(key, family, chosen, 0 < in_file <= _MERGED_ROWS, version)
    rows_in_order = in_order(_rows(database, plan), family)
    files = database.segments.files
    written = files.write(rows_in_order.drop_columns(["to_pos"])) if rows_in_order.num_rows else None
    ends = rows_in_order["to_pos"].to_numpy()
    try:
        if written is not None:
            files.sync()
        database.write(lambda connection: _commit(connection, database, plan, written, ends))
    except BaseException as error:
        if written is not None:
            files.discard([written.name])
        if isinstance(error, _Changed):
            return False
        raise
    if written is not None:
        files.keep([written.name])
    return True


def _rows(database: Database, plan: _Merge) -> pa.Table:
    """The rows to merge, with their spans; without those of no listing."""
    sources = []
    if plan.takes_file:
        sources.append(f"SELECT * FROM {BY_SPAN[plan.family]} WHERE table_key = {plan.table_key}")
    with database.reading() as cursor:
        if (numbered := database.segments.numbered_sql(plan.family, plan.segments)) is not None:
            sources.append(f"SELECT * EXCLUDE (rid) FROM {numbered}")
        union = " UNION ALL ".join(sources)
        return query(cursor, f"SELECT * EXCLUDE (table_key) FROM ({union}) WHERE from_pos < to_pos")


def _commit(
    connection: Connection, database: Database, plan: _Merge, written: Written | None, ends: npt.NDArray[np.int64]
) -> None:
    key = plan.table_key
    if database.versions.generation(key) != plan.version or database.is_touched(key):
        raise _Changed
    if plan.takes_file:
        connection.execute(f"DELETE FROM {BY_SPAN[plan.family]} WHERE table_key = ?", [key])
    segments = database.segments
    if plan.segments:
        segments.remove(connection, [segment.segment for segment in plan.segments])
    if written is None:
        return
    now = time.time_ns() // 1000
    (number,) = segments.add(connection, key, plan.family, [written], (None, OPEN_END), 0, now)
    for end in np.unique(ends[ends != OPEN_END]).tolist():
        segments.end(connection, segments.row_ids(number, np.flatnonzero(ends == end)), end)
