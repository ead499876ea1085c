"""Entries of the catalog: a table, a snapshot, and all tables by name and key."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from store.model.names import join_name

EXTERNAL: Final = "external"  # format of tables that are known from puts only, not from a connector
UNPLACED: Final = -(2**62)  # ordinal of a snapshot whose place in history is unknown until the lake is inspected


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table.

    Attributes:
        current_snapshot_id: None while it has no snapshot.
        last_error: Why its last inspection failed, so that its current snapshot may be an old one.
        capture_error: Why its last capture could not read it: a data file of the current snapshot is gone.
        max_snapshots_behind: Number of snapshots by which an inherited distribution may be behind; None for any.
    """

    table_key: int
    table_catalog: str
    table_schema: str
    table_name: str
    table_id: str
    format: str
    location: str | None = None
    current_snapshot_id: int | None = None
    dropped: bool = False
    last_error: str | None = None
    capture_error: str | None = None
    max_snapshots_behind: int | None = None

    @property
    def name(self) -> tuple[str, str, str]:
        """Catalog, schema and table."""
        return self.table_catalog, self.table_schema, self.table_name

    @property
    def failing(self) -> bool:
        """True if the table cannot be inspected or read, so that no statistic is sure to be of what it has now."""
        return self.last_error is not None or self.capture_error is not None

    @property
    def full_name(self) -> str:
        """The dotted name, parts quoted where needed."""
        return join_name(*self.name)


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A stored snapshot. `ordinal` is its place in the table's history, from 0."""

    snapshot_id: int
    ordinal: int
    schema_hash: str | None
    is_live: bool | None  # None: registered by a put, not yet seen in the lake


def is_another_table(
    known: tuple[int, str], identities: Mapping[int, str], live: Collection[int], current: int | None
) -> bool:
    """True if a table is not the one that was known under its name: a snapshot has another identity, or history ends
    before it, because the table was created again, restored from a backup, or rolled back. What follows reuses ids.

    Args:
        known: Id and identity of the snapshot that was the current one, in a format whose ids ascend.
        identities: Snapshot id → identity, as found now.
        live: Ids of the snapshots that the table has now.
        current: Id of its current snapshot; None if it has none.
    """
    snapshot_id, identity = known
    if identities.get(snapshot_id, identity) != identity:
        return True
    return snapshot_id not in live and (current is None or current < snapshot_id)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a snapshot in its table's history.

    Attributes:
        ordinal: Increases along history; `UNPLACED` if unknown.
        schema_hash: None if unknown.
        is_newest: True for the current snapshot of a table without an age limit, whose rows need no others to be known.
    """

    ordinal: int
    schema_hash: str | None
    is_newest: bool = False

    def schema_key(self, snapshot_id: int) -> int:
        """The schema key of the snapshot, of 64 bits: snapshots with the same one have the same schema."""
        text = f"snapshot {snapshot_id}" if self.schema_hash is None or self.ordinal == UNPLACED else self.schema_hash
        return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[8:], "little")


@dataclass
class Entries:
    """Tables by full name, without dropped ones, and by key; immutable once published to readers."""

    by_name: dict[tuple[str, str, str], TableEntry] = field(default_factory=dict)
    by_key: dict[int, TableEntry] = field(default_factory=dict)

    @cached_property
    def current(self) -> Mapping[int, int]:
        """Table key → current snapshot id."""
        return {t.table_key: t.current_snapshot_id for t in self.by_name.values() if t.current_snapshot_id is not None}

    @cached_property
    def failing(self) -> frozenset[int]:
        """Keys of the tables that cannot be inspected or read."""
        return frozenset(key for key, table in self.by_key.items() if table.failing)

    @cached_property
    def is_limited(self) -> bool:
        """True if some table has a `max_snapshots_behind`."""
        return any(table.max_snapshots_behind is not None for table in self.by_key.values())

    @cached_property
    def any_dropped(self) -> bool:
        """True if some table is dropped."""
        return len(self.by_name) < len(self.by_key)


def new_column_ids(
    known: Mapping[str, int], names: Iterable[str], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Ids to assign: the given id if it differs from the known one, the next free id to a new name without one.

    Args:
        known: Name → id of the existing columns.
        names: Names that need an id; new ids are assigned in this order.
        given: Name → id by the lake.

    Returns:
        Name → id, without names that keep their id.
    """
    new: dict[str, int] = {}
    next_id = max(known.values(), default=0) + 1
    for name in names:
        wanted = given.get(name) if given else None
        if (name in known and wanted in (None, known[name])) or name in new:
            continue
        new[name] = wanted if wanted is not None else next_id
        next_id = max(next_id, new[name] + 1)
    return new
