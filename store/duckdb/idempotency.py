"""Answers of puts by their idempotency keys, which are remembered for a day."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from store.duckdb.layout import Connection
from store.model.errors import Conflict
from store.model.puts import Counts

IDEMPOTENCY_SECONDS: Final = 86_400


def is_known(connection: Connection, key: str) -> bool:
    """True if a put with this key was answered."""
    return bool(connection.execute("SELECT 1 FROM idempotency WHERE key = ?", [key]).fetchall())


def answer_of(connection: Connection, key: str, content: str) -> Counts | None:
    """The answer of the put that had this key; None if there was none.

    Args:
        content: `digest` of the puts.

    Raises:
        Conflict: That put had other content.
    """
    replies = connection.execute("SELECT content_hash, answer FROM idempotency WHERE key = ?", [key]).fetchall()
    if not replies:
        return None
    if replies[0][0] != content:
        raise Conflict(
            "this idempotency_key was used before with other content",
            hint="send the same rows and mode again, or use a new key",
        )
    return Counts(**json.loads(replies[0][1]))


def remember(connection: Connection, key: str, content: str, counts: Counts) -> None:
    """Stores the answer of a put, and forgets those that are older than a day."""
    now = datetime.now(UTC)
    connection.execute(
        "DELETE FROM idempotency WHERE epoch(?::TIMESTAMPTZ) - epoch(stored_at) > ?", [now, IDEMPOTENCY_SECONDS]
    )
    answer = json.dumps(counts._asdict())
    connection.execute("INSERT INTO idempotency VALUES (?, ?, ?, ?)", [key, content, answer, now])
