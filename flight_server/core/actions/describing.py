"""The action that says whose a table is, and what to know of it."""

from __future__ import annotations

from typing import Final

from flight_server.core.actions.registry import Call, action
from flight_server.core.part import Results
from flight_server.core.views.reader import read_table
from store.model.errors import InvalidField, NotFound
from store.model.structs import Struct, Table, Text

LONGEST: Final = 10_000  # characters of the notes, or of all tags


class _Description(Struct):
    table: Table
    owner: str | None = None
    tags: list[Text] | None = None
    notes: str | None = None


@action(_Description, "Sets owner, tags and notes of a table; all that is said of it")
def describe(call: Call, body: _Description) -> Results:
    given = {"owner": body.owner, "tags": body.tags, "notes": body.notes}
    said = {name: value for name, value in given.items() if value is not None}
    for name, value in said.items():
        if sum(map(len, value)) > LONGEST:
            expected = f"at most {LONGEST} characters"
            raise InvalidField(name, "is too long", expected=expected, actual=f"{sum(map(len, value))} characters")
    may_write = call.principal.may("admin") and not call.principal.may("stats.write")
    scope = "stats.read" if not said else "admin" if may_write else "stats.write"
    table = call.app.access.table(body.table, call.principal, scope)
    if said:
        call.app.database.write(lambda connection: call.app.catalog.annotate(connection, table, said))
    rows = read_table(call.reader, "sys.tables", table.full_name, ["description", *given]).to_pylist()
    if not rows:
        raise NotFound(f'"{table.full_name}" was dropped meanwhile', code="UNKNOWN_TABLE")
    yield {"table": table.full_name, **rows[0]}
