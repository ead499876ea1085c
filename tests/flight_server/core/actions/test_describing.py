"""The action `describe`, and what survives an inspection."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.inspection import look_at_table
from flight_server.core.actions import ACTIONS, Call
from flight_server.core.auth.principal import ALL_SCOPES, Principal
from store.catalog.discovery import Discovery
from store.model.errors import InvalidField, NotFound, PermissionDenied
from tests.flight_server.serving import app_in, command, put, read

KEY = {"table_catalog": "lake", "table_schema": "default", "table_name": "t", "snapshot_id": 1}


@pytest.fixture
def app():
    with app_in() as app:
        yield app


def describe(app, *scopes: str, **body: Any) -> dict[str, Any]:
    call = Call(app, Principal("p", frozenset(scopes) or ALL_SCOPES), "", lambda: False)
    (said,) = ACTIONS["describe"].run(call, json.dumps({"table": "lake.default.t"} | body).encode())
    return said


def discover(app, lake) -> None:
    connector = open_connector(ConnectorConfig("lake", "delta", str(lake)))
    found = look_at_table(connector, "default", "t", full=True)
    connector.close()
    app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found], {("default", "t")}))


def test_what_is_said_survives_inspections_and_the_format_may_change_its_own(app, tmp_path):
    from deltalake import DeltaTable, Field, write_deltalake
    from deltalake.schema import PrimitiveType

    lake = tmp_path / "lake"
    write_deltalake(lake / "t", pa.table({"id": [1, 2]}), description="people")
    discover(app, lake)
    assert describe(app) == {
        "table": "lake.default.t",
        "description": "people",
        "owner": None,
        "tags": None,
        "notes": None,
    }
    describe(app, owner="ann", tags=["gold", "pii"])
    describe(app, notes="loaded at six")
    table = DeltaTable(lake / "t")
    table.alter.set_table_description("all people")
    table.alter.add_columns([Field("since", PrimitiveType("date"), metadata={"comment": "first seen"})])
    discover(app, lake)
    said = {"description": "all people", "owner": "ann", "tags": ["gold", "pii"], "notes": "loaded at six"}
    assert describe(app) == {"table": "lake.default.t"} | said
    (row,) = read(app, command(flight="sys.tables")).to_pylist()
    assert {name: row[name] for name in said} == said
    comments = read(app, command(flight="sys.columns")).to_pylist()
    assert [(row["column_name"], row["comment"]) for row in comments] == [("id", None), ("since", "first seen")]
    assert describe(app, owner="", tags=[])["owner"] is describe(app)["tags"] is None


def test_only_those_who_may_write_say_something(app):
    put(app, [KEY | {"row_count": 1}], "stats.tables")
    for scope in ("stats.write", "admin"):
        assert describe(app, scope, "stats.read", owner=scope)["owner"] == scope
    assert describe(app, "stats.read")["owner"] == "admin"
    with pytest.raises(PermissionDenied, match=r"stats\.write"):
        describe(app, "stats.read", owner="me")
    with pytest.raises(NotFound):
        describe(app, table="lake.default.u", owner="me")


@pytest.mark.parametrize("said", [{"tags": ["a", ""]}, {"tags": [1]}, {"notes": "x" * 10_001}, {"owner": 3}])
def test_what_is_not_text_or_too_long_is_refused(app, said):
    put(app, [KEY | {"row_count": 1}], "stats.tables")
    with pytest.raises(InvalidField):
        describe(app, **said)


def test_table_that_is_dropped_meanwhile_is_unknown(app, monkeypatch):
    put(app, [KEY | {"row_count": 1}], "stats.tables")
    drop = app.catalog.change
    monkeypatch.setattr(app.catalog, "annotate", lambda c, table, _: drop(c, {table.table_key: {"dropped": True}}))
    with pytest.raises(NotFound, match=r'"lake\.default\.t" was dropped meanwhile'):
        describe(app, owner="ann")
