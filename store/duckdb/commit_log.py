"""A log of commits that is written before the database file, and that others write too; by default there is none.

It may be asked for each transaction of the writer: to let it begin, to take what it has changed, and to hear how it
ended. What others have committed it applies to this database between two transactions (`Database.apply`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

import pyarrow as pa

from store.duckdb.layout import Connection


class Applied(NamedTuple):
    """Changes of others, in this database.

    Attributes:
        touched: Keys of tables whose rows changed for readers.
        outlived: Keys of tables that became other tables, so that what is being captured of them is not stored.
        rows: Table of the database → its new rows.
        keys: Table of the database → keys of the tables of lakes whose rows are new or gone.
        is_whole: True if all content was replaced; nothing else is said then.
    """

    touched: Set[int] = frozenset()
    outlived: Set[int] = frozenset()
    rows: Mapping[str, pa.Table] = {}
    keys: Mapping[str, Set[int]] = {}
    is_whole: bool = False


class CommitLog:
    """No log."""

    def begin(self, connection: Connection) -> Connection:
        """Called before each transaction, in the writer's thread.

        Returns:
            The connection that the writes of the transaction get.

        Raises:
            StatflightError: No write is taken now.
        """
        return connection

    def record(self, touched: Set[int], outlived: Set[int]) -> bool:  # noqa: ARG002
        """Takes what the transaction has changed; the last step before its commit.

        Args:
            touched: Keys of tables whose rows it has changed for readers.
            outlived: Keys of tables that it has made other tables.

        Returns:
            True if it is stored now, whatever becomes of the transaction.

        Raises:
            StatflightError: It cannot be stored, or whether it is stored is not known; the transaction is rolled back.
        """
        return False

    def ended(self, *, is_committed: bool) -> None:
        """Called after each transaction that has begun."""
