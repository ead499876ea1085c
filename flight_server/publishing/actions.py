"""Actions that write a table's statistics where other engines look for them, and remove them again."""

from __future__ import annotations

from capture.homes import HOMES
from flight_server.core.actions.registry import Call, offered
from flight_server.core.part import Results
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import InvalidArgument
from store.model.structs import Options, Snapshot, Struct, Table, Text, Truth


class _Home(Struct):
    table: Table
    to: Text
    options: Options | None = None


class _Publish(_Home):
    snapshot: Snapshot | None = None
    dry_run: Truth | None = None
    allow_inherited: Truth | None = None


@offered(_Publish, "Writes statistics where other engines look for them")
def publish(call: Call, wanted: _Publish) -> Results:
    HOMES.check(wanted.to)
    app, publications = call.app, call.app.parts["publishing"].publications
    table = _table(call, wanted.table)
    snapshot_id = app.catalog.snapshot_id(table, wanted.snapshot)
    if not isinstance(wanted.snapshot, int):
        snapshot_id = publications.snapshot_of(table, snapshot_id)
    yield publications.publish(
        table,
        wanted.to,
        snapshot_id,
        dry_run=bool(wanted.dry_run),
        allow_inherited=bool(wanted.allow_inherited),
        options=wanted.options or {},
        is_cancelled=call.is_cancelled,
    )


@offered(_Home, "Removes published statistics from where `publish` has written them")
def withdraw(call: Call, home: _Home) -> Results:
    HOMES.check(home.to)
    table = _table(call, home.table)
    publications = call.app.parts["publishing"].publications
    withdrawn = publications.withdraw(table, home.to, options=home.options or {}, is_cancelled=call.is_cancelled)
    yield {"table": table.full_name, "to": home.to, "withdrawn": withdrawn}


def _table(call: Call, name: str) -> TableEntry:
    table = call.app.access.table(name, call.principal, "admin")
    if table.format == EXTERNAL:
        raise InvalidArgument(f'"{table.full_name}" has no connector: its statistics were put by a client')
    return table
