"""Floecat's protobuf commands over a socket."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.flight_server.core.wire.test_floecat import command, field


def test_floecat_command_reads_the_selected_columns_and_rows(live_client):
    data = command(
        "sys.flights", ("NAME", "writable", "no such"), (("name", 7, "stats.columns", "sys.flights"),), "q-1"
    )
    found = live_client.read(data, x_query_id="q-1")
    assert found.column_names == ["name", "writable"]
    assert sorted(found.to_pylist(), key=lambda row: row["name"]) == [
        {"name": "stats.columns", "writable": True},
        {"name": "sys.flights", "writable": False},
    ]
    json_command = {"table": "sys.flights", "columns": ["name", "writable"]}
    assert live_client.info(data).schema == live_client.info(json_command).schema


@pytest.mark.parametrize(
    "data", [command(query_id=""), command(predicates=(("c", 42),)), field(4, "q"), bytes(range(256))]
)
def test_invalid_floecat_command_is_rejected(live_client, data):
    with pytest.raises(pa.ArrowInvalid) as refusal:
        live_client.info(data)
    assert str(refusal.value).startswith("[INVALID_ARGUMENT] ")
    assert "Traceback" not in str(refusal.value)


def test_floecat_command_for_an_unknown_flight_is_rejected(live_client):
    with pytest.raises(pa.ArrowKeyError, match="UNKNOWN_FLIGHT"):
        live_client.info(command("pg_catalog.pg_class"))
