"""Freshness of one record, in Python: the model that tests compare the SQL with."""

from __future__ import annotations

from dataclasses import dataclass

from store.model.freshness import EXACT, INHERITED, STALE


@dataclass(frozen=True, slots=True)
class At:
    """A snapshot, or a record's place in history; `ordinal` increases along history, an unknown hash is None."""

    snapshot_id: int
    ordinal: int
    schema_hash: str | None = None


def freshness(record: At, requested: At) -> str | None:
    """The freshness of a record for a requested snapshot; None if the record is newer and does not apply.

    Args:
        record: Snapshot at which the record was captured, with the record's own schema hash if it has one.
    """
    if record.snapshot_id == requested.snapshot_id:
        return EXACT
    if record.ordinal >= requested.ordinal:
        return None
    same = record.schema_hash is not None and record.schema_hash == requested.schema_hash
    return INHERITED if same else STALE


def rank(record: At, requested: At) -> tuple[bool, bool, int]:
    """Sort key of the records of one target that apply to a requested snapshot; the greatest is used."""
    label = freshness(record, requested)
    same = record.schema_hash is not None and record.schema_hash == requested.schema_hash
    return label == EXACT, same, record.ordinal
