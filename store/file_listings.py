"""Listings of files that continue one before: what a capture does not put again is carried over.

A capture names what it says of a table's files by a mark. The mark of the newest listing is kept, until rows of that
listing are deleted or replaced as a whole; rows that are put over them one by one are about the same file content, and
as good for the next listing. A later capture that starts from a marked listing puts only what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from store.arrow_sql import among, execute, within
from store.errors import UpstreamError
from store.file_spans import positions
from store.layout import BY_SPAN, OPEN_END, Connection

FAMILIES: Final = ("stats.files", "stats.file_columns")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that a put has of a snapshot: all, or the changes to those of a base, less `removed` paths."""

    snapshot_id: int
    mark: str
    base_snapshot_id: int | None = None
    base_mark: str = ""
    removed: tuple[str, ...] = ()


def can_continue(connection: Connection, table_key: int, listing: Listing) -> bool:
    """True if the base is the newest listing, still has its mark, and the snapshot has no listing of its own.

    Args:
        listing: The listing to be put.
    """
    base = listing.base_snapshot_id
    found = connection.execute("SELECT snapshot_id, mark FROM file_marks WHERE table_key = ?", [table_key]).fetchall()
    if base is None or found != [(base, listing.base_mark)]:
        return False
    for family in FAMILIES:
        listed = positions(connection, table_key, family)
        if not _is_newest(base, listed) or (listing.snapshot_id != base and listing.snapshot_id in listed):
            return False
    return True


def _is_newest(snapshot_id: int, listed: dict[int, int]) -> bool:
    return snapshot_id in listed and listed[snapshot_id] == max(listed.values())


def continue_listing(connection: Connection, table_key: int, listing: Listing) -> None:
    """Gives the snapshot the listing of its base without the removed files; what is new is put after that.

    Args:
        connection: The writer's.
        listing: The listing; its base must be what `can_continue` accepts.

    Raises:
        UpstreamError: The base is not what it was; another try starts anew.
    """
    if not can_continue(connection, table_key, listing):
        raise UpstreamError("the files of the table were changed by somebody else meanwhile", code="LISTING_CHANGED")
    if listing.snapshot_id == listing.base_snapshot_id:
        return
    removed = pa.table({"path": pa.array(listing.removed, pa.string())})
    for family in FAMILIES:
        pos = max(positions(connection, table_key, family).values()) + 1
        if listing.removed:
            execute(
                connection, f"UPDATE {BY_SPAN[family]} SET to_pos = {pos} WHERE table_key = {table_key}"
                f" AND to_pos = {OPEN_END} AND file_path IN (SELECT path FROM {{removed}})", removed=removed,
            )  # fmt: skip
        connection.execute("INSERT INTO file_snapshots (table_key, family, snapshot_id, pos) VALUES (?, ?, ?, ?)",
                           [table_key, family, listing.snapshot_id, pos])  # fmt: skip


def mark_listings(connection: Connection, listings: Sequence[tuple[int, Listing]]) -> None:
    """Keeps the marks of listings that were put, each with its table key, of those that are the newest."""
    if not listings:
        return
    forget_marks(connection, list({table_key for table_key, _ in listings}))
    marks = {(table_key, listing.snapshot_id): listing.mark for table_key, listing in listings}  # the last one holds
    newest_marks = pa.table({
        "table_key": pa.array([key for key, _ in marks], pa.int64()),
        "snapshot_id": pa.array([snapshot_id for _, snapshot_id in marks], pa.int64()),
        "mark": pa.array(list(marks.values()), pa.string()),
    })  # fmt: skip
    execute(
        connection, "INSERT INTO file_marks SELECT l.table_key, l.snapshot_id, any_value(l.mark) FROM {marks} l JOIN"
        " (SELECT table_key, family, arg_max(snapshot_id, pos) AS newest FROM file_snapshots"
        f" WHERE family IN {FAMILIES} AND {within('table_key', newest_marks['table_key'])} GROUP BY ALL) f"
        " ON f.table_key = l.table_key AND f.newest = l.snapshot_id"
        f" GROUP BY l.table_key, l.snapshot_id HAVING count(*) = {len(FAMILIES)}", marks=newest_marks,
    )  # fmt: skip


def forget_mark(connection: Connection, table_key: int, snapshot_id: int | None = None) -> None:
    """To be called whenever rows of files are deleted, or replaced as a whole; of one snapshot or of all (None)."""
    connection.execute(
        "DELETE FROM file_marks WHERE table_key = ? AND (snapshot_id = ? OR ?)",
        [table_key, snapshot_id, snapshot_id is None],
    )


def forget_marks(connection: Connection, table_keys: Sequence[int]) -> None:
    """`forget_mark` of all snapshots of many tables."""
    execute(connection, f"DELETE FROM file_marks WHERE {among('table_key', table_keys)}",
            moved=pa.table({"key": pa.array(table_keys, pa.int64())}))  # fmt: skip
