"""The action that says whose a table is, and what to know of it."""

from __future__ import annotations

from typing import Final

from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import check_table_name, parse_body
from flight_server.wire.scan_request import of_json
from store.model.errors import InvalidField

_SAID: Final = {"owner": str, "tags": list, "notes": str}
LONGEST: Final = 10_000  # characters of the notes, or of all tags


@action('{"table", "owner"?, "tags"?, "notes"?}', "Sets owner, tags and notes of a table; all that is said of it")
def describe(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"table": str}, _SAID)
    check_table_name(fields["table"])
    said = {name: fields[name] for name in _SAID if fields.get(name) is not None}
    for name, value in said.items():
        if name == "tags" and not all(isinstance(tag, str) and tag for tag in value):
            raise InvalidField(name, "has an item that is no tag", expected="texts that are not empty", actual=value)
        if sum(map(len, value)) > LONGEST:
            expected = f"at most {LONGEST} characters"
            raise InvalidField(name, "is too long", expected=expected, actual=f"{sum(map(len, value))} characters")
    may_write = call.principal.may("admin") and not call.principal.may("stats.write")
    scope = "stats.read" if not said else "admin" if may_write else "stats.write"
    table = call.app.access.table(fields["table"], call.principal, scope)
    if said:
        call.app.database.write(lambda connection: call.app.catalog.annotate(connection, table, said))
    of_table = zip(("table_catalog", "table_schema", "table_name"), table.name, strict=True)
    predicates = [{"column": column, "op": "EQ", "values": [value]} for column, value in of_table]
    request = of_json({"table": "sys.tables", "columns": ["description", *_SAID], "predicates": predicates})
    yield {"table": table.full_name, **call.app.scanner.table(request, call.principal).to_pylist()[0]}
