"""Incremental file listings: a capture puts only the files that differ from a base listing; the rest is carried over.

A capture gives its listing a mark, a digest of everything it reports about the table's files. It is stored with the
listings of both families until rows of one of them are deleted or replaced as a whole; single rows may be replaced,
because they are about the same file content. A later capture that starts from the newest listing, with this mark, puts
only the differences.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import among, execute, keys_table, query
from store.duckdb.layout import BY_SPAN, OPEN_END, Connection, insert_rows
from store.duckdb.segments import Segments
from store.model.errors import UpstreamError
from store.model.puts import Listing

FAMILIES: Final = ("stats.files", "stats.file_columns")

Marks: TypeAlias = Mapping[tuple[int, int], str]
"""(table key, snapshot id) → mark of a listing."""

_Listed: TypeAlias = dict[str, dict[int, tuple[int, str | None]]]
"""Family → snapshot id → position and mark of its listing."""


class ListingChanged(UpstreamError):
    """Another write has changed the base of a listing, or removed its staged rows; a retry may succeed."""

    def __init__(self) -> None:
        super().__init__("the files of the table were changed by somebody else meanwhile", code="LISTING_CHANGED")


def can_continue(connection: Connection, table_key: int, listing: Listing) -> bool:
    """True if the base is the newest listing, still has its mark, and the snapshot has no listing of its own."""
    return listing.base_snapshot_id is not None and _continues(listing, _listed(connection, [table_key])[table_key])


def _listed(connection: Connection, table_keys: Collection[int]) -> dict[int, _Listed]:
    """The listings of tables."""
    listed: dict[int, _Listed] = {key: {family: {} for family in FAMILIES} for key in table_keys}
    for key, family, snapshot_id, pos, mark in execute(
        connection,
        "SELECT table_key, family, snapshot_id, pos, mark FROM file_snapshots"
        f" WHERE {among('table_key', listed)} AND family IN {FAMILIES}",
        moved=keys_table(listed),
    ):
        listed[key][family][snapshot_id] = pos, mark
    return listed


def _continues(listing: Listing, listed: _Listed) -> bool:
    base = listing.base_snapshot_id
    return all(
        base in of
        and of[base] == (max(of.values())[0], listing.base_mark)
        and (listing.snapshot_id == base or listing.snapshot_id not in of)
        for of in listed.values()
    )


def continue_listings(
    connection: Connection, segments: Segments, listings: Sequence[tuple[int, Listing, Collection[str]]]
) -> None:
    """Gives snapshots the listings of their bases without the removed files; their other rows are put after that.

    Args:
        listings: Table key, listing with a base, and those of `FAMILIES` whose rows are not staged.

    Raises:
        ListingChanged: `can_continue` is false, because the listings changed meanwhile.
    """
    listed = _listed(connection, {key for key, _, _ in listings})
    new, again = [], []
    removed: dict[str, dict[tuple[int, str], int]] = {family: {} for family in FAMILIES}
    for key, listing, families in listings:
        if not _continues(listing, listed[key]):
            raise ListingChanged
        is_again = listing.snapshot_id == listing.base_snapshot_id
        if is_again:
            again.append((key, listing.snapshot_id, listing.mark))
        for family in FAMILIES if is_again else families:
            of = listed[key][family]
            pos = of[listing.snapshot_id][0] if is_again else max(of.values())[0] + 1
            of[listing.snapshot_id] = pos, listing.mark
            if not is_again:
                new.append((key, family, listing.snapshot_id, pos, listing.mark))
                for path in listing.removed:
                    removed[family].setdefault((key, path), pos)
    for family, ends in removed.items():
        if ends:
            _end_files(connection, segments, family, ends)
    if again:
        columns = dict(zip(("table_key", "snapshot_id", "mark"), zip(*again, strict=True), strict=True))
        execute(
            connection,
            "UPDATE file_snapshots SET mark = m.mark FROM {marks} m WHERE file_snapshots.table_key ="
            f" m.table_key AND file_snapshots.snapshot_id = m.snapshot_id AND family IN {FAMILIES}",
            marks=pa.table(columns),
        )
    insert_rows(connection, "file_snapshots (table_key, family, snapshot_id, pos, mark)", new)


def _end_files(connection: Connection, segments: Segments, family: str, ends: Mapping[tuple[int, str], int]) -> None:
    """Ends the rows of files that the newest listings have: (table key, path) → position."""
    physical, keys = BY_SPAN[family], {key for key, _ in ends}
    paths_of: dict[tuple[int, int], list[str]] = {}
    for (key, path), pos in ends.items():
        paths_of.setdefault((key, pos), []).append(path)
    for (key, pos), paths in paths_of.items():
        segments.end_files(connection, family, key, pa.table({"file": paths}), pos)
    execute(
        connection,
        f"UPDATE {physical} SET to_pos = r.pos FROM {{removed}} r"
        f" WHERE {among(f'{physical}.table_key', keys)} AND {physical}.table_key = r.table_key"
        f" AND {physical}.to_pos = {OPEN_END} AND {physical}.file_path = r.file_path",
        removed=pa.table(
            {
                "table_key": [key for key, _ in ends],
                "file_path": [path for _, path in ends],
                "pos": list(ends.values()),
            }
        ),
        moved=keys_table(keys),
    )


def list_nothing(connection: Connection, segments: Segments, marks: Marks) -> list[int]:
    """Gives snapshots with marks an empty listing of each family of which no rows were put: the table has no files, or
    its metadata nothing about their columns. Those of an earlier snapshot no longer apply.

    Returns:
        The keys of the tables that got one.
    """
    if not marks:
        return []
    places = pa.table(
        {
            "table_key": pa.array([key for key, _ in marks], pa.int64()),
            "snapshot_id": pa.array([snapshot_id for _, snapshot_id in marks], pa.int64()),
            "mark": pa.array(marks.values(), pa.string()),
        }
    )
    new = query(
        connection,
        "SELECT table_key, family, snapshot_id,"
        " newest + row_number() OVER (PARTITION BY table_key, family ORDER BY snapshot_id) AS pos, mark FROM ("
        "SELECT p.*, f.family, coalesce(max(l.pos), -1) AS newest FROM {places} p"
        f" CROSS JOIN (SELECT unnest({list(FAMILIES)}) AS family) f"
        " LEFT JOIN file_snapshots l ON l.table_key = p.table_key AND l.family = f.family GROUP BY ALL"
        " HAVING NOT coalesce(bool_or(l.snapshot_id = p.snapshot_id), false))",
        places=places,
    )
    if not new.num_rows:
        return []
    for family in FAMILIES:
        execute(
            connection,
            f"UPDATE {BY_SPAN[family]} SET to_pos = n.pos FROM (SELECT table_key, min(pos) AS pos FROM"
            f" {{new}} WHERE family = '{family}' GROUP BY 1) n WHERE {BY_SPAN[family]}.table_key = n.table_key"
            f" AND to_pos = {OPEN_END}",
            new=new,
        )
        of_family = new.filter(pc.equal(new["family"], family)).group_by("table_key").aggregate([("pos", "min")])
        ends = dict(zip(of_family["table_key"].to_pylist(), of_family["pos_min"].to_pylist(), strict=True))
        segments.end_open(connection, family, ends)
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
