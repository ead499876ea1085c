"""Incremental file listings: a capture puts only the files that differ from a base listing; the rest is carried over.

A capture gives its listing a mark, a digest of everything it reports about the table's files. The mark of the newest
listing is stored until rows of that listing are deleted or replaced as a whole; single rows may be replaced, because
they are about the same file content. A later capture that starts from a marked listing puts only the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from store.duckdb.arrow_sql import among, execute
from store.duckdb.layout import BY_SPAN, OPEN_END, Connection, insert_rows
from store.history.file_spans import positions
from store.model.errors import UpstreamError

FAMILIES: Final = ("stats.files", "stats.file_columns")


class ListingChanged(UpstreamError):
    """Another write has changed the base of a listing, or removed its staged rows; a retry may succeed."""

    def __init__(self) -> None:
        super().__init__("the files of the table were changed by somebody else meanwhile", code="LISTING_CHANGED")


@dataclass(frozen=True, slots=True)
class Listing:
    """The file listing of a put: all files of a snapshot, or changes to a base listing and the `removed` paths."""

    snapshot_id: int
    mark: str
    base_snapshot_id: int | None = None
    base_mark: str = ""
    removed: tuple[str, ...] = ()


def can_continue(connection: Connection, table_key: int, listing: Listing) -> bool:
    """True if the base is the newest listing, still has its mark, and the snapshot has no listing of its own.

    Args:
        connection: Any connection.
        table_key: Key of the table.
        listing: The listing to be put.
    """
    base = listing.base_snapshot_id
    marks = connection.execute("SELECT snapshot_id, mark FROM file_marks WHERE table_key = ?", [table_key]).fetchall()
    if base is None or marks != [(base, listing.base_mark)]:
        return False
    for family in FAMILIES:
        listed = positions(connection, table_key, family)
        if not _is_newest(base, listed) or (listing.snapshot_id != base and listing.snapshot_id in listed):
            return False
    return True


def _is_newest(snapshot_id: int, listed: dict[int, int]) -> bool:
    return snapshot_id in listed and listed[snapshot_id] == max(listed.values())


def continue_listing(
    connection: Connection, table_key: int, listing: Listing, families: Sequence[str] = FAMILIES
) -> None:
    """Gives the snapshot the listing of its base without the removed files; its other rows are put after that.

    Args:
        connection: The writer's.
        table_key: Key of the table.
        listing: The listing, with a base.
        families: Those of `FAMILIES` whose rows are not staged.

    Raises:
        ListingChanged: `can_continue` is false, because the listings changed meanwhile.
    """
    if not can_continue(connection, table_key, listing):
        raise ListingChanged
    if listing.snapshot_id == listing.base_snapshot_id:
        return
    removed = pa.table({"path": pa.array(listing.removed, pa.string())})
    for family in families:
        pos = max(positions(connection, table_key, family).values()) + 1
        if listing.removed:
            execute(
                connection, f"UPDATE {BY_SPAN[family]} SET to_pos = {pos} WHERE table_key = {table_key}"
                f" AND to_pos = {OPEN_END} AND file_path IN (SELECT path FROM {{removed}})", removed=removed,
            )  # fmt: skip
        connection.execute("INSERT INTO file_snapshots (table_key, family, snapshot_id, pos) VALUES (?, ?, ?, ?)",
                           [table_key, family, listing.snapshot_id, pos])  # fmt: skip


def mark_listings(connection: Connection, listings: Sequence[tuple[int, Listing]]) -> None:
    """Stores the marks of listings, given with their table keys, that are now the newest of their table."""
    if not listings:
        return
    marks = {(table_key, listing.snapshot_id): listing.mark for table_key, listing in listings}  # the last one wins
    keys = list({table_key for table_key, _ in marks})
    forget_marks(connection, keys)
    newest: dict[int, list[int]] = {}  # table key → newest snapshot id of each family
    for table_key, snapshot_id in execute(
        connection, "SELECT table_key, arg_max(snapshot_id, pos) FROM file_snapshots"
        f" WHERE family IN {FAMILIES} AND {among('table_key', keys)} GROUP BY table_key, family",
        moved=pa.table({"key": pa.array(keys, pa.int64())}),
    ):  # fmt: skip
        newest.setdefault(table_key, []).append(snapshot_id)
    insert_rows(connection, "file_marks", [
        [*place, mark] for place, mark in marks.items() if newest.get(place[0]) == [place[1]] * len(FAMILIES)
    ])  # fmt: skip


def forget_mark(connection: Connection, table_key: int, snapshot_id: int | None = None) -> None:
    """Deletes the mark of a table; must be called when rows of files are deleted or replaced as a whole.

    Args:
        connection: The writer's.
        table_key: Key of the table.
        snapshot_id: Snapshot of these rows; None for all.
    """
    connection.execute(
        "DELETE FROM file_marks WHERE table_key = ? AND (snapshot_id = ? OR ?)",
        [table_key, snapshot_id, snapshot_id is None],
    )


def forget_marks(connection: Connection, table_keys: Sequence[int]) -> None:
    """`forget_mark` for all snapshots of many tables."""
    execute(connection, f"DELETE FROM file_marks WHERE {among('table_key', table_keys)}",
            moved=pa.table({"key": pa.array(table_keys, pa.int64())}))  # fmt: skip
