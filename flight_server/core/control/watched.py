"""What the watch knows of a table that it looks at."""

from __future__ import annotations

from typing import NamedTuple

TableName = tuple[str, str]
"""Schema and name, within a lake."""


class Watched(NamedTuple):
    """A table to look at: its key, schema and name, when it was looked at and when it was last read or changed, both in
    seconds since 1970, or None."""

    key: int
    name: TableName
    checked_at: float | None = None
    used_at: float | None = None
