"""Tickets read the generation of the rows that they were made for, or are GONE."""

from __future__ import annotations

import json

import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.wire import tickets
from flight_server.core.wire.scan_request import of_command
from store.model.errors import NotFound
from tests.flight_server.serving import app_in, command, put, read, rows


@pytest.fixture
def app():
    with app_in() as app:
        put(app, rows("t", 1, range(1, 6)))
        yield app


def ticket_of(app, **more) -> bytes:
    pinned = app.scanner.pin(of_command(command("t", **({"snapshot": "current"} | more))), ANONYMOUS)
    return tickets.to_ticket(pinned).ticket


def counts(app, data: bytes) -> list[int]:
    return sorted(read(app, data)["row_count"].to_pylist())


FIRST = [101, 102, 103, 104, 105]


@pytest.mark.parametrize("snapshot", ["current", 1])
def test_ticket_reads_the_same_after_an_upsert(app, snapshot):
    ticket = ticket_of(app, snapshot=snapshot)
    put(app, rows("t", 1, range(1, 8), row_count=50))
    assert counts(app, ticket) == FIRST
    assert counts(app, ticket_of(app)) == [50] * 7


@pytest.mark.parametrize(
    "change",
    [
        lambda app: put(app, rows("t", 1, [1], row_count=50)),
        lambda app: put(app, rows("t", 1, [9])),
        lambda app: put(app, rows("t", 1, [1]), mode="replace_snapshot"),
        lambda app: app.store.delete(app.catalog.get("lake.s.t"), 1, None),
    ],
)
def test_ticket_whose_rows_are_not_kept_is_gone_after_a_change(change):
    with app_in(cache_bytes=0) as app:
        put(app, rows("t", 1, range(1, 6)))
        ticket = ticket_of(app)
        assert counts(app, ticket) == FIRST
        change(app)
        with pytest.raises(NotFound, match=r'stats\.columns of "lake\.s\.t" at snapshot 1') as raised:
            counts(app, ticket)
        assert raised.value.code == "GONE"


def test_ticket_is_not_gone_after_other_writes():
    with app_in(cache_bytes=0) as app:
        put(app, rows("t", 1, range(1, 6)))
        ticket = ticket_of(app)
        put(app, rows("t", 1, range(1, 6)))  # unchanged
        put(app, rows("t", 2, range(1, 6), row_count=50))  # a newer snapshot
        put(app, rows("u", 1, range(1, 6)))  # another table
        assert counts(app, ticket) == FIRST


def test_ticket_of_file_rows_is_checked_too(app):
    file = rows("t", 1, [1])[0]
    file = {k: file[k] for k in ("table_catalog", "table_schema", "table_name", "snapshot_id", "row_count")}
    put(app, [file | {"file_path": "a"}], "stats.files")
    pinned = app.scanner.pin(of_command(command("t", "stats.files", snapshot="current")), ANONYMOUS)
    ticket = tickets.to_ticket(pinned).ticket
    assert read(app, ticket).num_rows == 1
    put(app, [file | {"file_path": "a", "snapshot_id": 2}, file | {"file_path": "b", "snapshot_id": 2}], "stats.files")
    assert read(app, ticket).num_rows == 1
    put(app, [file | {"file_path": "a", "row_count": 9}], "stats.files")
    with pytest.raises(NotFound):
        read(app, ticket)


def test_ticket_survives_a_restart(tmp_path):
    with app_in(tmp_path) as app:
        put(app, rows("t", 1, range(1, 6)))
        ticket = ticket_of(app)
    from flight_server.core.app import App
    from flight_server.core.config import Settings

    again = App(Settings(db=tmp_path / "stats.duckdb"))
    try:
        assert counts(again, ticket) == FIRST
    finally:
        again.close()


def test_command_without_a_ticket_reads_the_newest(app):
    body = json.loads(command("t", snapshot="current"))
    assert of_command(json.dumps(body).encode()).generation is None
