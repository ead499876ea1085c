"""Reads of flights by a statement: each one once, and together no more than the limit."""

import pytest

from flight_server.auth.principal import ANONYMOUS
from flight_server.sql import endpoint
from flight_server.sql.endpoint import SqlEndpoint
from flight_server.wire.flight_sql import write_any
from store.errors import ResourceExhausted
from tests.flight_server.serving import app_in, put, rows


@pytest.fixture
def app(tmp_path):
    with app_in(tmp_path) as app:
        put(app, rows("t", 1, range(1, 201)))
        yield app


@pytest.fixture
def sql(app):
    made = SqlEndpoint(app, "1")
    yield lambda text: made.get(write_any("CommandStatementQuery", (1, text.encode())), ANONYMOUS, lambda: False)[1]
    made.close()


def test_equal_readings_of_a_flight_are_one(app, sql, monkeypatch):
    reads, read = [], app.scanner.read
    monkeypatch.setattr(app.scanner, "read", lambda request, *more: (reads.append(request), read(request, *more))[1])
    text = "SELECT count(*) AS n FROM sys.flights a JOIN sys.flights b USING (name) WHERE a.name > 't'"
    assert sql(text).to_pylist() == [{"n": 0}]
    assert len(reads) == 2  # of one of them a condition is known
    reads.clear()
    some = "FROM stats_all.columns WHERE ndv > 1"
    text = f"SELECT max(ndv) AS n {some} UNION SELECT min(ndv) {some}"
    assert sorted(row["n"] for row in sql(text).to_pylist()) == [1.5, 88.5]
    assert len(reads) == 1


def test_all_readings_together_are_limited(sql, monkeypatch):
    one = "SELECT count(*) FROM stats_all.columns WHERE column_name LIKE 'c1%'"
    two = f"{one} UNION ALL SELECT count(*) FROM stats_all.columns WHERE column_name LIKE 'c%' AND ndv > 0"
    monkeypatch.setattr(endpoint, "MAX_SOURCE_BYTES", 3000)
    assert sql(one).num_rows == 1
    with pytest.raises(ResourceExhausted, match=r"from stats\.columns"):
        sql(two)
