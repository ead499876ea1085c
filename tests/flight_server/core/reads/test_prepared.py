"""Statements are prepared once for each cursor, and cursors are pooled."""

from __future__ import annotations

import duckdb
import pytest

from flight_server.core.reads.prepared import Prepared
from store.duckdb.database import Database
from store.duckdb.opening import MEMORY
from store.model.errors import ShuttingDown

SQL = "SELECT $1::BIGINT + $2::BIGINT, current_setting('threads') > 0"


def test_statements_run_again_and_beside_others(database):
    prepared = Prepared(database)
    for number in (1, 2, 2**62):
        assert prepared.rows("sum", SQL, number, -1) == [(number - 1, True)]
        assert prepared.rows("other", "SELECT $1::BIGINT", number) == [(number,)]
    prepared.close()
    assert prepared.rows("sum", SQL, 3, 4) == [(7, True)]  # on a new cursor
    prepared.close()


def test_cursor_of_a_statement_that_fails_is_not_used_again(database):
    prepared = Prepared(database)
    assert prepared.rows("fails", "SELECT error('no') WHERE $1::BIGINT = 1", 0) == []
    with pytest.raises(duckdb.Error, match="no"):
        prepared.rows("fails", "SELECT error('no') WHERE $1::BIGINT = 1", 1)
    assert prepared.rows("fails", "SELECT error('no') WHERE $1::BIGINT = 1", 0) == []
    prepared.close()


def test_closed_database_says_so():
    database = Database(MEMORY)
    prepared = Prepared(database)
    prepared.rows("sum", SQL, 1, 2)
    prepared.close()
    database.close()
    with pytest.raises(ShuttingDown):
        prepared.rows("sum", SQL, 1, 2)
