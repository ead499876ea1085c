"""Words that name snapshots of a table: `current`, `previous` and `first`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flight_server.client.table_names import COLUMNS, full_name
from flight_server.core.views.reader import Leaf, Reader, read_table
from store.model.errors import NotFound

CURRENT, PREVIOUS, FIRST = "current", "previous", "first"
WORDS: Final = (CURRENT, PREVIOUS, FIRST)
_FACTS: Final = ("snapshot_id", "parent_snapshot_id", "is_current", "captured")

Row = Mapping[str, Any]


def snapshot_at(reader: Reader, name: str, at: str | int, *, captured: bool = True) -> str | int:
    """The snapshot of a table that a word names.

    Args:
        name: Full name of the table.
        at: A word, or an id, which is returned as it is; so is `current`.
        captured: Go by the snapshots that are captured; False goes by all that are known, for a capture of one.

    Raises:
        NotFound: The table has no such snapshot.
    """
    if at not in (PREVIOUS, FIRST):
        return at
    rows = rows_of(reader, name)
    if (found := find(rows, str(at), captured=captured)) is None:
        raise _none(name, str(at), captured)
    return found


def rows_of(reader: Reader, name: str) -> list[Row]:
    """The rows of `sys.snapshots` about a table, the oldest first."""
    rows: list[Row] = read_table(reader, "sys.snapshots", name, _FACTS).to_pylist()
    return rows


def snapshots_at(reader: Reader, conditions: Sequence[Leaf], at: str) -> dict[str, int]:
    """Full name of each table that has a captured snapshot of this word → its id.

    Args:
        conditions: Conditions on the names of the tables, combined by AND.

    Raises:
        NotFound: No table has one.
    """
    rows = reader.read("sys.snapshots", [*COLUMNS, *_FACTS], list(conditions)).to_pylist()
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault(full_name(row), []).append(row)
    found = {name: place for name, of in tables.items() if (place := find(of, at)) is not None}
    if not found:
        names = [full_name(row) for row in rows[:1]] if len(tables) == 1 else []
        raise _none(names[0] if names else "the tables", at, True)
    return found


def find(rows: Sequence[Row], word: str, *, captured: bool = True) -> int | None:
    """The id of the snapshot that a word names; None if there is none.

    Args:
        rows: Rows of `sys.snapshots` about one table, the oldest first.
        word: `current`, `previous` or `first`.
        captured: See `snapshot_at`.
    """
    place = next((at for at, row in enumerate(rows) if row["is_current"]), None)
    if word == FIRST:
        return next((row["snapshot_id"] for row in rows if row["captured"] or not captured), None)
    if place is None:
        return None
    if word == CURRENT:
        return int(rows[place]["snapshot_id"])
    return next((row["snapshot_id"] for row in before(rows, place) if row["captured"] or not captured), None)


def before(rows: Sequence[Row], place: int) -> list[Row]:
    """The snapshots that came before one, the newest first: its ancestors where the format has parents, so that
    branches and what a rollback has left are not among them. Where an ancestor is not known any more, the snapshots
    before the oldest known one stand for those before it.

    Args:
        rows: Rows of `sys.snapshots` about one table, the oldest first.
        place: The snapshot's place among them.
    """
    if all(row["parent_snapshot_id"] is None for row in rows):
        return list(rows[:place][::-1])
    places = {row["snapshot_id"]: at for at, row in enumerate(rows)}
    del places[rows[place]["snapshot_id"]]  # parents may go round in a circle
    ancestors: list[Row] = []
    parent, oldest = rows[place]["parent_snapshot_id"], place
    while (at := places.pop(parent, None)) is not None:
        ancestors.append(rows[at])
        parent, oldest = rows[at]["parent_snapshot_id"], min(at, oldest)
    if parent is None or any(parent == row["snapshot_id"] for row in rows):
        return ancestors
    return [*ancestors, *(row for row in rows[:oldest][::-1] if row["snapshot_id"] in places)]


def _none(name: str, word: str, captured: bool) -> NotFound:
    verb = "captured" if captured else "known"
    which = "before the current one" if word == PREVIOUS else "at all"
    hint = f"run: statflight capture {name} --snapshot {word}" if captured else ""
    return NotFound(f"{name} has no {word} snapshot: none {which} is {verb}", code="UNKNOWN_SNAPSHOT", hint=hint)
