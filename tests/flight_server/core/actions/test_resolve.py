"""`resolve` for a planner: budgets, sketches, constraints and a ticket in one call; tables by id."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from flight_server.core.actions import ACTIONS, Call
from flight_server.core.auth.principal import ALL_SCOPES, Principal
from store.model import sketches
from store.model.columns import THETA
from store.model.errors import InvalidArgument, NotFound, PermissionDenied
from store.model.sketches import murmur3
from store.model.targets import Target
from tests.flight_server.serving import app_in, put, read, rows

ALL = Principal("p", ALL_SCOPES)


def with_table(app):
    put(app, rows("t", 1, range(1, 6)))


@pytest.fixture
def app():
    with app_in(fill=with_table) as app:
        yield app


def column(number: int, **more: Any) -> dict[str, Any]:
    return {"table": "lake.s.t", "target": {"kind": "COLUMN", "column_id": number}, "latency_budget_ms": 0} | more


def resolve(app, *requests: dict[str, Any], principal: Principal = ALL, **body: Any) -> list[dict[str, Any]]:
    data = json.dumps({"requests": requests} | body).encode()
    results = ACTIONS["resolve"].run(Call(app, principal, "", lambda: False), data)
    return [json.loads(result) if isinstance(result, bytes) else result for result in results]


def test_targets_beyond_the_budget_are_omitted_in_order(app):
    requests = column(1), column(2, kinds=["NDV"]), column(1, kinds=["NDV"]), column(3), column(2)
    answers = resolve(app, *requests, max_targets=2)
    assert [answer["outcome"] for answer in answers] == ["HIT", "HIT", "HIT", "OMITTED_BY_BUDGET", "HIT"]
    assert answers[3] == {"outcome": "OMITTED_BY_BUDGET", "detail": "max_targets", "record": None}


def test_budgets_of_zero_leave_room_for_nothing(app):
    assert {a["outcome"] for a in resolve(app, column(1), column(2), max_targets=0)} == {"OMITTED_BY_BUDGET"}
    assert {a["outcome"] for a in resolve(app, column(1), column(2), max_bytes=0)} == {"OMITTED_BY_BUDGET"}


def test_kinds_are_left_out_by_priority(app):
    (whole,) = resolve(app, column(2, kinds=["NDV", "ROW_COUNT"]))
    size = len(json.dumps(whole["record"]).encode())
    (answer,) = resolve(app, column(2, kinds=["NDV", "ROW_COUNT"]), max_bytes=size - 20)
    assert answer["record"]["ndv"] == whole["record"]["ndv"] and answer["record"]["row_count"] == 102
    assert answer["omitted"]


@pytest.mark.parametrize("body", [{"max_bytes": -1}, {"max_targets": True}, {"max_bytes": 1.5}, {"max_target": 1}])
def test_wrong_budget_is_refused(app, body):
    with pytest.raises(InvalidArgument, match="max_"):
        resolve(app, column(1), **body)


def test_sketches_come_along_on_demand(app):
    data = sketches.theta(np.unique(murmur3.hash_longs(np.arange(3, dtype=np.int64))))
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    sketch = {"target_kind": "COLUMN", "storage_id": Target.column(1).storage_id, "column_id": 1, "role": "NDV"}
    put(app, [key | sketch | {"sketch_type": THETA, "data": data}], "stats.sketches")
    (answer,) = resolve(app, column(1, sketches=True))
    (found,) = answer["sketches"]
    assert base64.b64decode(found["data"]) == data and found["role"] == "NDV"
    (answer,) = resolve(app, column(1, sketches=True, kinds=["NULL_COUNT", "ROW_COUNT"]))
    assert answer.get("sketches", []) == []
    assert "sketches" not in resolve(app, column(1))[0]
    with pytest.raises(InvalidArgument, match=r"requests\[0\]\.sketches"):
        resolve(app, column(1, sketches=True, target={"kind": "FILE", "file_path": "a"}))


def test_constraints_come_along_on_demand(app):
    key = app.catalog.get("lake.s.t").table_key
    app.database.write(
        lambda c: c.execute(
            "INSERT INTO table_constraints VALUES (?, 'PRIMARY KEY', 'pk', 2, 'b', NULL),"
            " (?, 'PRIMARY KEY', 'pk', 1, 'a', NULL), (?, 'CHECK', 'positive', 1, NULL, 'a > 0')",
            [key, key, key],
        )
    )
    (answer,) = resolve(app, column(1, constraints=True))
    assert answer["constraints"] == [
        {"kind": "PRIMARY KEY", "name": "pk", "columns": ["a", "b"], "clause": None},
        {"kind": "CHECK", "name": "positive", "columns": [], "clause": "a > 0"},
    ]


def test_foreign_key_names_only_a_table_that_the_caller_sees(app):
    key = app.catalog.get("lake.s.t").table_key
    clause = '["hr", "people", ["id"]]'
    row = [key, "FOREIGN KEY", "fk", 1, "a", clause]
    app.database.write(lambda c: c.execute("INSERT INTO table_constraints VALUES (?, ?, ?, ?, ?, ?)", row))
    for tables, expected in (("lake.*", clause), ("lake.s.*", None)):
        (answer,) = resolve(app, column(1, constraints=True), principal=Principal("p", ALL_SCOPES, (tables,)))
        (found,) = answer["constraints"]
        assert found == {"kind": "FOREIGN KEY", "name": "fk", "columns": ["a"], "clause": expected}


def test_ticket_reads_the_numbers_of_the_answer_after_an_upsert(app):
    (answer,) = resolve(app, column(1, ticket=True))
    put(app, rows("t", 1, [1], row_count=50))
    read_again = read(app, base64.b64decode(answer["ticket"])).to_pylist()
    assert [row["row_count"] for row in read_again if row["column_id"] == 1] == [answer["record"]["row_count"]]


def test_table_may_be_named_by_its_id(app):
    table_id = app.catalog.get("lake.s.t").table_id
    by_id = {key: value for key, value in column(1).items() if key != "table"} | {"table_id": table_id}
    assert resolve(app, by_id) == resolve(app, column(1))
    with pytest.raises(NotFound, match='no table has the id "unknown"'):
        resolve(app, by_id | {"table_id": "unknown"})
    with pytest.raises(NotFound):
        resolve(app, by_id, principal=Principal("limited", ALL_SCOPES, ("other.*",)))
    with pytest.raises(InvalidArgument, match="table_id: is not a table"):
        resolve(app, by_id | {"table": "lake.s.t"})


def test_id_of_several_tables_is_ambiguous(app):
    app.database.write(lambda c: app.catalog.register(c, ("other", "s", "t"), app.catalog.get("lake.s.t").table_id))
    with pytest.raises(InvalidArgument, match=r"name one: lake\.s\.t or other\.s\.t") as raised:
        resolve(app, {"table_id": app.catalog.get("lake.s.t").table_id})
    assert raised.value.code == "AMBIGUOUS_TABLE"


# What a condition leaves.


def with_listed_files(app):
    """Two files of a table: x is below 50 in the first, from 50 in the second."""
    with_table(app)
    listed = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    files = [listed | {"file_path": f"f{i}", "row_count": 51, "completeness": "COMPLETE"} for i in range(2)]
    put(app, [file | {"file_content": "DATA", "size_bytes": 100} for file in files], "stats.files")
    of_x = {"column_id": 2, "column_name": "c2", "logical_type": "INT", "null_count": 1}
    bounds = [{"min": str(50 * i), "max": str(50 * i + 49)} for i in range(2)]
    put(app, [file | of_x | limits for file, limits in zip(files, bounds, strict=True)], "stats.file_columns")


@pytest.fixture
def listed():
    with app_in(fill=with_listed_files) as app:
        yield app


def estimate(app, **body: Any) -> dict[str, Any]:
    run = app.parts.actions["estimate"].run
    (found,) = run(Call(app, ALL, "", lambda: False), json.dumps({"table": "lake.s.t"} | body).encode())
    return found


def test_a_condition_gets_an_estimate_beside_the_record(listed):
    of_table = {"table": "lake.s.t", "latency_budget_ms": 0}
    where = "c2 >= 60"
    table, column_2, whole = resolve(listed, of_table | {"where": where}, column(2, where=where), column(2))
    assert "estimate" not in whole and column_2["record"] == whole["record"]
    assert column_2["estimate"] == estimate(listed, where=where, columns=["c2"])
    assert column_2["estimate"]["columns"]["c2"]["null_count"] == {"estimate": 1, "low": 1, "high": 1}
    assert table["estimate"] == estimate(listed, where=where) | {"columns": {}}
    assert (table["estimate"]["files"], table["estimate"]["row_count"]["high"]) == (1, 50)
    (limited,) = resolve(listed, column(2, where=where), max_bytes=0)
    assert limited == {"outcome": "OMITTED_BY_BUDGET", "detail": "max_bytes", "record": None}


def test_each_request_has_its_own_condition(listed):
    tree = {"column": "c2", "op": "LT", "values": [10]}
    answers = resolve(listed, column(2, where="c2 < 10"), column(2, where=tree), column(2, where="c2 > 1000"))
    first, same, none = (answer["estimate"] for answer in answers)
    assert first == same and first["files"] == 1
    assert none["row_count"] == {"estimate": 0, "low": 0, "high": 0}


def test_an_estimate_is_null_where_files_are_not_known(app):
    (answer,) = resolve(app, column(2, where="c2 = 1"))
    assert answer["outcome"] == "HIT" and answer["record"] is not None and answer["estimate"] is None
    assert answer["detail"].startswith("[NOT_CAPTURED]")


@pytest.mark.parametrize("where", ["c2 =", "nothing = 1", "c2 = 'x'", 5, {"op": "EQ"}])
def test_a_condition_that_does_not_suit_the_table_fails_the_call(listed, where):
    with pytest.raises(InvalidArgument):
        resolve(listed, column(2, where=where))


def test_conditions_are_of_tables_and_columns_and_need_the_scope_to_read(listed):
    with pytest.raises(InvalidArgument, match=r"requests\[0\]\.where: is of tables and columns"):
        resolve(listed, {"table": "lake.s.t", "target": {"kind": "FILE", "file_path": "f0"}, "where": "c2 = 1"})
    with pytest.raises(PermissionDenied):
        resolve(listed, column(2, where="c2 = 1"), principal=Principal("captures", frozenset({"capture.run"})))
