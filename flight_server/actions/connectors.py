"""Actions on connectors: connect, validate, discover, drop."""

from __future__ import annotations

from capture.publishers import check_home_options
from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import parse_body
from store.model.errors import InvalidField


@action('{"catalog", "format", "uri", "options"?, "replace"?, "discover"?}',
         "Registers a connector once its lake can be reached; with discover its tables too")  # fmt: skip
def register_connector(call: Call, body: bytes) -> Results:
    config = parse_body(
        body, {"catalog": str, "format": str, "uri": str}, {"options": dict, "replace": bool, "discover": bool}
    )
    options = config.get("options") or {}
    if "." in config["catalog"] or not config["catalog"].strip():
        raise InvalidField("catalog", "is not a name", expected="a name without dots", actual=config["catalog"])
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidField(f"options.{name}", "must be a string", expected="text", actual=value)
    check_home_options(options)
    call.app.access.require_catalog(call.principal, config["catalog"])
    lake = {name: config[name] for name in ("catalog", "format", "uri")} | {"options": options}
    yield call.app.lakes.register(
        lake, call.is_cancelled, replace=config.get("replace") or False, discover=config.get("discover") or False
    )


@action('{"catalog"}', "Looks whether a connector can be reached")
def validate_connector(call: Call, body: bytes) -> Results:
    catalog = parse_body(body, {"catalog": str})["catalog"]
    call.app.access.connector(catalog, call.principal)
    config = call.app.lakes.config(catalog)
    lake = call.app.lakes.inspect("validate", config, call.is_cancelled)
    yield {"catalog": catalog, "state": "ACTIVE", "namespaces": lake.get("namespaces", [])}


@action('{"catalog"}', "Forgets a connector and its tables")
def drop_connector(call: Call, body: bytes) -> Results:
    catalog = parse_body(body, {"catalog": str})["catalog"]
    call.app.access.connector(catalog, call.principal)
    call.app.lakes.drop(catalog)
    yield {"catalog": catalog, "state": "DROPPED"}


@action('{"catalog", "table"?, "full_rescan"?, "snapshots"?}', "Finds tables and snapshots; one result per table")
def discover(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"catalog": str}, {"table": str, "full_rescan": bool, "snapshots": list})
    snapshots = fields.get("snapshots")
    if snapshots is not None and not fields.get("table"):
        raise InvalidField("snapshots", "needs a table", expected="the table that has them", actual=None)
    for at, snapshot in enumerate(snapshots or ()):
        if isinstance(snapshot, bool) or not isinstance(snapshot, int):
            raise InvalidField(f"snapshots[{at}]", "is not a snapshot", expected="an id", actual=snapshot)
    call.app.access.connector(fields["catalog"], call.principal)
    tables = call.app.lakes.discover(
        fields["catalog"], fields.get("table"), fields.get("full_rescan") or False, call.is_cancelled, snapshots
    )
    yield from tables
