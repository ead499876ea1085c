"""Kept tables: equal rows, and dropped after their last reference."""

import pyarrow as pa
import pytest

from flight_server.sql import sandbox as sandboxes
from flight_server.sql.sandbox import Sandbox

ROWS = pa.table({
    "few": pa.array(["b", None, "a", "é", "b", "", None, "a"] * 4), "many": [f"text {i}" for i in range(32)],
    "id": pa.array(range(32), pa.int64()), "ids": [[1, 2], None] * 16, "nothing": pa.nulls(32, pa.string()),
    "at": pa.array([None, 1] * 16, pa.timestamp("us")), "exact": [True, None] * 16,
})  # fmt: skip


@pytest.fixture
def cursor():
    sandbox = Sandbox()
    cursor = sandbox.cursor()
    yield cursor, sandbox
    cursor.close()
    sandbox.close()


def test_kept_table_has_equal_rows_and_enum_types(cursor):
    cursor, sandbox = cursor
    kept = sandbox.keep(ROWS)
    assert cursor.sql(kept.query(())).to_arrow_table().equals(ROWS)
    types = {
        name: str(type_) for name, type_, *_ in cursor.execute(f"DESCRIBE {kept.query(ROWS.column_names)}").fetchall()
    }
    assert types.pop("few") == "ENUM('', 'a', 'b', 'é')"
    assert types["many"] == types["nothing"] == "VARCHAR" and types["ids"] == "BIGINT[]"
    assert kept.nbytes > 32 * 40


def test_empty_table_can_be_kept(cursor):
    cursor, sandbox = cursor
    kept = sandbox.keep(ROWS.schema.empty_table())
    assert cursor.sql(kept.query(["few"])).to_arrow_table().equals(ROWS.schema.empty_table())


def test_kept_table_without_a_reference_is_dropped_by_the_next_statement(cursor):
    cursor, sandbox = cursor
    kept, other = sandbox.keep(ROWS), sandbox.keep(ROWS)
    cursor.execute(f"CREATE TEMP VIEW v AS {kept.query(())}")
    assert cursor.execute("SELECT count(*) FROM v").fetchall() == [(32,)]
    del kept
    sandbox.cursor().close()
    tables, types = (
        "SELECT count(*) FROM duckdb_tables()",
        "SELECT count(*) FROM duckdb_types() WHERE schema_name LIKE 'kept%'",
    )
    assert [cursor.execute(sql).fetchall() for sql in (tables, types)] == [[(1,)], [(1,)]]
    assert cursor.sql(other.query(())).to_arrow_table().equals(ROWS)


def test_table_beyond_the_memory_limit_is_not_kept(monkeypatch):
    monkeypatch.setitem(sandboxes._SETTINGS, "memory_limit", "3MiB")
    sandbox = Sandbox()
    assert sandbox.keep(pa.table({"id": pa.array(range(2_000_000), pa.int64())})) is None
    assert sandbox.keep(pa.table({"id": [1]})).num_rows == 1
    sandbox.close()
