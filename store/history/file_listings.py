"""Incremental file listings: a capture puts only the files that differ from a base listing; the rest is carried over.

A capture gives its listing a mark, a digest of everything it reports about the table's files. It is stored with the
listings of both families until rows of one of them are deleted or replaced as a whole; single rows may be replaced,
because they are about the same file content. A later capture that starts from the newest listing, with this mark, puts
only the differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from store.duckdb.arrow_sql import execute, query
from store.duckdb.layout import BY_SPAN, OPEN_END, Connection
from store.history.file_spans import positions
from store.model.errors import UpstreamError
from store.model.puts import Listing

FAMILIES: Final = ("stats.files", "stats.file_columns")

Marks: TypeAlias = Mapping[tuple[int, int], str]
"""(table key, snapshot id) → mark of a listing."""


class ListingChanged(UpstreamError):
    """Another write has changed the base of a listing, or removed its staged rows; a retry may succeed."""

    def __init__(self) -> None:
        super().__init__("the files of the table were changed by somebody else meanwhile", code="LISTING_CHANGED")


def can_continue(connection: Connection, table_key: int, listing: Listing) -> bool:
    """True if the base is the newest listing, still has its mark, and the snapshot has no listing of its own."""
    base = listing.base_snapshot_id
    if base is None:
        return False
    listed: dict[str, dict[int, tuple[int, str | None]]] = {family: {} for family in FAMILIES}
    for family, snapshot_id, pos, mark in connection.execute(
        f"SELECT family, snapshot_id, pos, mark FROM file_snapshots WHERE table_key = ? AND family IN {FAMILIES}",
        [table_key],
    ).fetchall():
        listed[family][snapshot_id] = pos, mark
    return all(
        base in of and of[base] == (max(of.values())[0], listing.base_mark)
        and (listing.snapshot_id == base or listing.snapshot_id not in of) for of in listed.values()
    )  # fmt: skip


def continue_listing(
    connection: Connection, table_key: int, listing: Listing, families: Sequence[str] = FAMILIES
) -> None:
    """Gives the snapshot the listing of its base without the removed files; its other rows are put after that.

    Args:
        listing: The listing, with a base.
        families: Those of `FAMILIES` whose rows are not staged.

    Raises:
        ListingChanged: `can_continue` is false, because the listings changed meanwhile.
    """
    if not can_continue(connection, table_key, listing):
        raise ListingChanged
    if listing.snapshot_id == listing.base_snapshot_id:
        connection.execute(
            f"UPDATE file_snapshots SET mark = ? WHERE table_key = ? AND snapshot_id = ? AND family IN {FAMILIES}",
            [listing.mark, table_key, listing.snapshot_id],
        )
        return
    removed = pa.table({"path": pa.array(listing.removed, pa.string())})
    for family in families:
        pos = max(positions(connection, table_key, family).values()) + 1
        if listing.removed:
            execute(
                connection, f"UPDATE {BY_SPAN[family]} SET to_pos = {pos} WHERE table_key = {table_key}"
                f" AND to_pos = {OPEN_END} AND file_path IN (SELECT path FROM {{removed}})", removed=removed,
            )  # fmt: skip
        connection.execute(
            "INSERT INTO file_snapshots (table_key, family, snapshot_id, pos, mark) VALUES (?, ?, ?, ?, ?)",
            [table_key, family, listing.snapshot_id, pos, listing.mark],
        )


def list_nothing(connection: Connection, marks: Marks) -> list[int]:
    """Gives snapshots with marks an empty listing of each family of which no rows were put: the table has no files, or
    its metadata nothing about their columns. Those of an earlier snapshot no longer apply.

    Returns:
        The keys of the tables that got one.
    """
    if not marks:
        return []
    places = pa.table({
        "table_key": pa.array([key for key, _ in marks], pa.int64()),
        "snapshot_id": pa.array([snapshot_id for _, snapshot_id in marks], pa.int64()),
        "mark": pa.array(marks.values(), pa.string()),
    })  # fmt: skip
    new = query(
        connection, "SELECT table_key, family, snapshot_id,"
        " newest + row_number() OVER (PARTITION BY table_key, family ORDER BY snapshot_id) AS pos, mark FROM ("
        "SELECT p.*, f.family, coalesce(max(l.pos), -1) AS newest FROM {places} p"
        f" CROSS JOIN (SELECT unnest({list(FAMILIES)}) AS family) f"
        " LEFT JOIN file_snapshots l ON l.table_key = p.table_key AND l.family = f.family GROUP BY ALL"
        " HAVING NOT coalesce(bool_or(l.snapshot_id = p.snapshot_id), false))", places=places,
    )  # fmt: skip
    if not new.num_rows:
        return []
    for family in FAMILIES:
        execute(
            connection, f"UPDATE {BY_SPAN[family]} SET to_pos = n.pos FROM (SELECT table_key, min(pos) AS pos FROM"
            f" {{new}} WHERE family = '{family}' GROUP BY 1) n WHERE {BY_SPAN[family]}.table_key = n.table_key"
            f" AND to_pos = {OPEN_END}", new=new,
        )  # fmt: skip
    execute(connection, "INSERT INTO file_snapshots (table_key, family, snapshot_id, pos, mark) FROM {new}", new=new)
    keys: list[int] = new["table_key"].unique().to_pylist()
    return keys


def forget_mark(connection: Connection, table_key: int, snapshot_id: int | None = None) -> None:
    """Deletes the marks of a table's listings; must be called when rows of files are deleted.

    Args:
        snapshot_id: Snapshot of these rows; None for all.
    """
    connection.execute(
        "UPDATE file_snapshots SET mark = NULL WHERE table_key = ? AND (snapshot_id = ? OR ?) AND mark IS NOT NULL",
        [table_key, snapshot_id, snapshot_id is None],
    )
