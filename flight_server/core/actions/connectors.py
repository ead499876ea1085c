"""Actions on connectors: connect, validate, discover, drop."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from capture import policy
from capture.connectors.options import requests_per_day
from capture.homes import check_home_options
from flight_server.core.actions.registry import Call, action
from flight_server.core.part import Results
from store.model.errors import InvalidField
from store.model.structs import Options, Struct, Text, Truth


class _NewConnector(Struct):
    catalog: Annotated[str, Meta(pattern=r"^(?!\s*$)[^.]+$", title="is not a name", description="a name without dots")]
    format: Text
    uri: Text
    options: Options | None = None
    replace: Truth | None = None
    discover: Truth | None = None


@action(_NewConnector, "Registers a connector once its lake can be reached; with discover its tables too")
def register_connector(call: Call, new: _NewConnector) -> Results:
    options = new.options or {}
    check_home_options(options)
    requests_per_day(options)
    policy.parse(str(options.get("policy", "")))
    call.app.access.require_catalog(call.principal, new.catalog)
    lake = {"catalog": new.catalog, "format": new.format, "uri": new.uri, "options": options}
    yield call.app.lakes.register(lake, call.is_cancelled, replace=bool(new.replace), discover=bool(new.discover))


class _NamedConnector(Struct):
    catalog: Text


@action(_NamedConnector, "Looks whether a connector can be reached")
def validate_connector(call: Call, named: _NamedConnector) -> Results:
    call.app.access.connector(named.catalog, call.principal)
    config = call.app.lakes.config(named.catalog)
    lake = call.app.lakes.inspect("validate", config, call.is_cancelled)
    yield {"catalog": named.catalog, "state": "ACTIVE", "namespaces": lake.get("namespaces", [])}


@action(_NamedConnector, "Forgets a connector and its tables")
def drop_connector(call: Call, named: _NamedConnector) -> Results:
    call.app.access.connector(named.catalog, call.principal)
    call.app.lakes.drop(named.catalog)
    yield {"catalog": named.catalog, "state": "DROPPED"}


class _Discovery(_NamedConnector):
    table: str | None = None
    full_rescan: Truth | None = None
    snapshots: list[Annotated[int, Meta(title="is not a snapshot", description="an id")]] | None = None


@action(_Discovery, "Finds tables and snapshots; one result per table")
def discover(call: Call, wanted: _Discovery) -> Results:
    if wanted.snapshots is not None and not wanted.table:
        raise InvalidField("snapshots", "needs a table", expected="the table that has them", actual=None)
    call.app.access.connector(wanted.catalog, call.principal)
    yield from call.app.lakes.discover(
        wanted.catalog, wanted.table, bool(wanted.full_rescan), call.is_cancelled, wanted.snapshots
    )
