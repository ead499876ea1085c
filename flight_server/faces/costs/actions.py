"""Actions about changes of lakes, and about the requests that they cost."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, to_builtins

from flight_server.core.actions.registry import Call, offered
from flight_server.core.part import Results
from store.model.structs import Struct, Table, Text

_Amount = Annotated[int, Meta(ge=0, title="must not be negative", description="a number")]


class Changed(Struct):
    """Full names of the tables that changed."""

    tables: list[Table]


@offered(Changed, "Looks at tables at once, because they changed; returns when the looks are done")
def changed(call: Call, body: Changed) -> Results:
    access = call.app.access
    tables = [access.table(name, call.principal, "capture.run") for name in body.tables]
    access.require(call.principal, "capture.run")
    yield from call.app.lakes.changed(tables, call.is_cancelled)


class _Cost(Struct):
    catalog: Text
    operation: Text
    reason: Literal["watch", "capture", "publish", "plan"]
    requests: _Amount
    bytes: _Amount


class _Costs(Struct):
    costs: list[_Cost]


@offered(_Costs, "For capture workers: adds the requests that they made to sys.costs")
def note_costs(call: Call, body: _Costs) -> Results:
    call.app.access.require_worker(call.principal)
    call.app.parts["costs"].ledger.add(to_builtins(body.costs))
    yield {"noted": len(body.costs)}
