"""Tools for agents, on tables in this process: what they tell, and what they withhold."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from flight_server.core.views import table_summary
from flight_server.faces.local.tables import LocalTables
from flight_server.faces.mcp.tools import TOOLS, Desk
from flight_server.faces.mcp.values import WITHHELD
from flight_server.faces.present.render import plain
from store.model.errors import InvalidArgument, StatflightError, Unimplemented

HUSH = ("hush", "4711")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """`told(tool, values=False, **arguments)`: the answer, as JSON and back."""
    path = tmp_path_factory.mktemp("lake") / "orders"
    for start in (0, 10):
        ids = list(range(start, start + 10))
        rows = {"id": ids, "name": [f"hush-{i}" for i in ids], "amount": [4711.0 + i for i in ids]}
        write_deltalake(path, pa.table(rows), mode="append")
    tables = LocalTables(None, lambda _: None)
    name = tables.add(str(path), ["newest"])

    def call(tool, *, values=False, **arguments):
        if "table" in TOOLS[tool].arguments.__struct_fields__:
            arguments.setdefault("table", name)
        return json.loads(json.dumps(plain(TOOLS[tool].call(Desk(tables.client, values), arguments))))

    call.table = name
    yield call
    tables.close()


def test_schemas_name_what_a_tool_takes():
    schema = TOOLS["estimate"].schema
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["required"] == ["table"] and set(schema["properties"]) == {"table", "where", "columns"}
    assert all(tool.description and "$ref" not in json.dumps(tool.schema) for tool in TOOLS.values())


def test_tables_are_found_by_parts_of_names_and_patterns(told):
    for pattern in (None, "ORDER", told.table.replace("orders", "*"), "*.orders"):
        (found,) = told("find_tables", pattern=pattern)["tables"]
        assert found["table"] == told.table and found["row_count"] == 20 and found["snapshot_id"] == "1"
    assert told("find_tables", pattern="nosuch") == {"tables": []}


def test_values_are_told_only_where_they_may_be(told):
    questions = {
        "describe_table": {},
        "history": {"column": "name"},
        "check": {"rules": ["amount: max < 1", "(SELECT max(max) FROM stats.columns) = 'x'", "amount: mean > 0"]},
        "answer": {"sql": f"SELECT min(name), count(*) FROM {told.table}"},
    }
    for tool, arguments in questions.items():
        text = json.dumps(told(tool, **arguments))
        assert not any(value in text for value in HUSH) and WITHHELD in text, tool
        text = json.dumps(told(tool, values=True, **arguments))
        assert any(value in text for value in HUSH) and "withheld" not in text, tool


def test_description_of_a_wide_table_says_what_it_lacks(told, monkeypatch):
    monkeypatch.setattr(table_summary, "SHAPED", 1)
    wide = told("describe_table", values=True)
    assert "too many" in wide["not_read"] and "quantiles" not in wide["columns"][0]
    assert "not_read" not in told("describe_table")


def test_description_has_shapes_where_values_are_told(told):
    columns = {column["column_name"]: column for column in told("describe_table", values=True)["columns"]}
    assert columns["amount"]["quantiles"]["0.5"] and columns["name"]["common_values"][0]["count"] == 1
    columns = {column["column_name"]: column for column in told("describe_table")["columns"]}
    assert columns["amount"]["ndv"] == 20 and columns["amount"]["freshness"] == "EXACT"


def test_counts_are_told_always(told):
    rules = ["row_count >= 20", "row_count >= 21", "id: null_fraction = 0", "id: ndv < 3"]
    found = told("check", rules=rules)["results"]
    assert [one["state"] for one in found] == ["PASSED", "FAILED", "PASSED", "FAILED"]
    assert [one["value"] for one in found] == [20, 20, 0, 20]
    assert told("answer", sql=f"SELECT count(*) FROM {told.table}")["results"][0]["value"] == 20
    assert [row["row_count"] for row in told("history", column="id")["snapshots"]] == [10, 20]


def test_limit_that_is_another_columns_value_is_withheld(told):
    (found,) = told("check", rules=["id: ndv < max of amount"])["results"]
    assert "withheld" in found and "value" not in found and "detail" not in found


def test_no_column_is_read_for_a_rule():
    with pytest.raises(Unimplemented, match=r"#1 of a\.b\.c"):
        Desk(None, False).reader.unique("a.b.c", 1, "current")


def test_estimate_is_that_of_the_client(told):
    found = told("estimate", where="id < 10", columns=["id"])
    assert found["row_count"]["low"] <= 10 <= found["row_count"]["high"] and set(found["columns"]) == {"id"}


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("describe_table", {"table": 7}, "table"),
        ("describe_table", {"nosuch": 1}, "nosuch"),
        ("check", {"rules": []}, "rules"),
        ("check", {"rules": ["no rule"]}, "no rule"),
        ("answer", {"sql": "DROP TABLE x"}, "SELECT"),
        ("history", {"column": "nosuch"}, "nosuch"),
        ("estimate", {"where": "nosuch = 1"}, "nosuch"),
    ],
)
def test_mistakes_are_refused(told, tool, arguments, message):
    with pytest.raises((StatflightError, pa.ArrowException, pa.ArrowKeyError), match=message):
        told(tool, **arguments)


def test_arguments_are_needed():
    with pytest.raises(InvalidArgument, match="table"):
        TOOLS["describe_table"].call(Desk(None, False), {})
