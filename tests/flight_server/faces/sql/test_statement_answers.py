"""ANALYZE, SHOW, DESCRIBE and EXPLAIN, with captures that only note what they are asked."""

import json
from dataclasses import dataclass, field

import pytest

from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.wire.flight_sql import write_any
from flight_server.faces.sql.endpoint import SqlEndpoint
from store.model.errors import InvalidArgument, NotFound, PermissionDenied, StatflightError
from tests.flight_server.serving import app_in, put, rows


@dataclass
class Capturing:
    """The action `capture`: notes its requests, and answers them all with one outcome each."""

    outcomes: list[str] = field(default_factory=list)
    requests: list[dict] = field(default_factory=list)

    def __call__(self, body: bytes) -> list[dict]:
        asked = json.loads(body)["requests"]
        self.requests += asked
        given = self.outcomes or ["CAPTURED"] * len(asked)
        return [
            {"outcome": outcome, "engine_id": "native" if at == 0 else "local", "detail": f"{outcome} {at}"}
            for at, outcome in enumerate(given)
        ]


@pytest.fixture
def capture():
    return Capturing()


def with_table(app):
    put(app, rows("t", 1, range(1, 4)))
    put(
        app,
        [{"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "row_count": 103}],
        "stats.tables",
    )


@pytest.fixture
def app():
    with app_in(fill=with_table) as app:
        yield app


@pytest.fixture
def sql(app, capture):
    endpoint = SqlEndpoint(app, "1")

    def run(text, caller=ANONYMOUS):
        command = write_any("CommandStatementQuery", (1, text.encode()))
        schema = endpoint.schema(command, caller)
        shown, answer = endpoint.get(command, caller, lambda: False, capture)
        assert answer.schema == schema == shown
        return answer.to_pylist()

    yield run
    endpoint.close()


def test_analyze_captures_the_table_and_its_columns_in_one_request(sql, capture):
    (answer,) = sql("ANALYZE TABLE lake.S.T COMPUTE STATISTICS FOR COLUMNS C2, c1, c2")
    assert answer == {
        "table": "lake.s.t",
        "snapshot_id": 1,
        "columns": ["c2", "c1"],
        "rows": 103,
        "engine": "local",
        "outcome": "CAPTURED",
        "detail": "CAPTURED 0; CAPTURED 1; CAPTURED 2",
    }
    assert [request["target"] for request in capture.requests] == [
        {"kind": "TABLE"},
        {"kind": "COLUMN", "column_id": 2},
        {"kind": "COLUMN", "column_id": 1},
    ]
    assert {request["table"] for request in capture.requests} == {"lake.s.t"}


@pytest.mark.parametrize("form", ["ANALYZE lake.s.t", "ANALYZE TABLE lake.s.t COMPUTE STATISTICS FOR ALL COLUMNS"])
def test_analyze_of_all_columns(sql, form):
    assert sql(form)[0]["columns"] == ["c1", "c2", "c3"]


def test_analyze_reports_what_was_not_captured(sql, capture):
    capture.outcomes = ["CAPTURED", "CAPTURED", "DEGRADED", "UNCAPTURABLE"]
    (answer,) = sql("ANALYZE lake.s.t")
    assert (answer["outcome"], answer["detail"]) == ("DEGRADED", "DEGRADED 2; UNCAPTURABLE 3")
    capture.outcomes = ["UNCAPTURABLE"]
    (answer,) = sql("ANALYZE TABLE lake.s.t COMPUTE STATISTICS NOSCAN")
    assert (answer["outcome"], answer["engine"], answer["columns"]) == ("UNCAPTURABLE", "native", [])


REFUSED = {
    "ANALYZE lake.s.u": (NotFound, 'no table "lake.s.u"; did you mean "lake.s.t"?'),
    'ANALYZE lake.s."T"': (NotFound, 'no table "lake.s.T"'),
    "ANALYZE t": (InvalidArgument, '"t" is not the full name of a table; a table of a lake is catalog.schema.table'),
    "ANALYZE stats.columns": (InvalidArgument, '"stats.columns" is a flight of this server, which has no statistics'),
    "SHOW STATS FOR statflight.sys.tables": (InvalidArgument, "is a flight of this server"),
    "SHOW TABLES IN lake.t": (NotFound, 'no schema "lake.t"; did you mean "lake.s"?'),
    "ANALYZE TABLE lake.s.t COMPUTE STATISTICS FOR COLUMNS c1, cc2": (
        InvalidArgument,
        '"lake.s.t" has no column "cc2"; did you mean "c2"?',
    ),
    'ANALYZE TABLE lake.s.t COMPUTE STATISTICS FOR COLUMNS "C1"': (InvalidArgument, 'has no column "C1"'),
    "EXPLAIN DROP TABLE x": (InvalidArgument, "DROP is not allowed"),
}


@pytest.mark.parametrize(
    "form", ["ANALYZE TABLES IN lake.s", "ANALYZE TABLES FROM LAKE", "ANALYZE TABLES", 'ANALYZE TABLES IN lake."s"']
)
def test_analyze_of_the_tables_of_a_schema(sql, capture, form):
    (answer,) = sql(f"{form} COMPUTE STATISTICS")
    assert (answer["table"], answer["columns"], len(capture.requests)) == ("lake.s.t", [], 1)


def test_words_without_effect_are_told(sql):
    (answer,) = sql("ANALYZE TABLE lake.s.t PARTITION (c1 = 1) COMPUTE STATISTICS FOR COLUMNS c1")
    assert answer["detail"].startswith("PARTITION (c1 = 1) is ignored: statistics of columns are of the whole table")


@pytest.mark.parametrize(("form", "count"), [("IN lake.s", 1), ("FROM Lake", 1), ("IN stats_all", 11), ("", 1)])
def test_tables_of_a_schema(sql, form, count):
    assert len(sql(f"SHOW TABLES {form}")) == count


def test_columns_of_a_flight(sql):
    rows = sql("DESCRIBE sys.flights")
    assert rows == sql("SHOW COLUMNS IN statflight.sys.flights")
    assert {row["column_name"]: row["data_type"] for row in rows} == {
        "name": "VARCHAR",
        "column_count": "BIGINT",
        "row_estimate": "BIGINT",
        "writable": "BOOLEAN",
        "description": "VARCHAR",
    }


@pytest.mark.parametrize("statement", REFUSED)
def test_refused_statements_capture_nothing(sql, capture, statement):
    kind, said = REFUSED[statement]
    with pytest.raises(kind) as refusal:
        sql(statement)
    assert said in str(refusal.value) and not capture.requests


def test_a_name_that_differs_only_by_case_must_be_quoted(app, sql):
    put(app, rows("T", 1, range(1, 2)))
    with pytest.raises(InvalidArgument, match=r"ambiguous; quote its parts: lake\.s\.t or lake\.s\.T") as refusal:
        sql("ANALYZE LAKE.s.t")
    assert refusal.value.code == "AMBIGUOUS_TABLE"
    assert sql("ANALYZE lake.s.T")[0]["table"] == "lake.s.T"
    assert sql('ANALYZE LAKE.s."t"')[0]["table"] == "lake.s.t"


def test_the_scope_is_needed_and_hidden_tables_stay_hidden(sql, capture):
    reader, stranger = Principal("r", frozenset({"stats.read"})), Principal("s", ANONYMOUS.scopes, ("other.*",))
    with pytest.raises(PermissionDenied, match=r"capture\.run"):
        sql("ANALYZE lake.s.t", reader)
    for statement in ("ANALYZE lake.s.t", "DESCRIBE lake.s.t", "SHOW STATS FOR LAKE.s.t"):
        with pytest.raises(StatflightError) as refusal:
            sql(statement, stranger)
        assert isinstance(refusal.value, PermissionDenied | NotFound)
    assert sql("SHOW TABLES", stranger) == [] and len(sql("DESCRIBE lake.s.t", reader)) == 3
    assert not capture.requests


def test_show_stats(sql):
    *columns, whole = sql("SHOW STATS FOR lake.s.t")
    assert [row["column_name"] for row in columns] == ["c1", "c2", "c3"]
    assert columns[0]["nulls_fraction"] == pytest.approx(1 / 101) and columns[0]["distinct_values_count"] == 1.5
    assert columns[2]["nulls_fraction"] is None
    assert (whole["column_name"], whole["row_count"]) == (None, 103.0)


def test_explain(sql):
    lines = [row["plan"] for row in sql("EXPLAIN SELECT column_name FROM stats.columns WHERE ndv > 10 AND ndv < ?")]
    assert lines == ["read stats.columns: column_name", "  where ndv GT '10' AND ndv LT ?1"]
    lines = [row["plan"] for row in sql("EXPLAIN SELECT count(*) FROM stats_all.tables WHERE row_count > 5 LIMIT 2")]
    assert lines[0] == "read stats_all.tables: row_count"
    assert lines[1].startswith("then in DuckDB: SELECT COUNT(*)") and "row_count > 5" in lines[1]
