"""Connectors: they come, are looked at, find tables, and go."""

from __future__ import annotations

from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import parse_body
from store.errors import InvalidField


@action('{"catalog", "format", "uri", "options"?}', "Registers a connector once its namespaces can be listed")
def register_connector(call: Call, body: bytes) -> Results:
    config = parse_body(body, {"catalog": str, "format": str, "uri": str}, {"options": dict})
    options = config.get("options") or {}
    if "." in config["catalog"] or not config["catalog"].strip():
        raise InvalidField("catalog", "is no name", expected="a name without dots", actual=config["catalog"])
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidField(f"options.{name}", "is no text", expected="text", actual=value)
    call.service.require_catalog(call.principal, config["catalog"])
    yield call.service.register_connector(config | {"options": options}, call.is_cancelled)


@action('{"catalog"}', "Looks whether a connector can be reached")
def validate_connector(call: Call, body: bytes) -> Results:
    catalog = parse_body(body, {"catalog": str})["catalog"]
    call.service.connector(catalog, call.principal)
    config = call.service.config(catalog)
    found = call.service.control("validate", config, call.is_cancelled)
    yield {"catalog": catalog, "state": "ACTIVE", "namespaces": found.get("namespaces", [])}


@action('{"catalog"}', "Forgets a connector and its tables")
def drop_connector(call: Call, body: bytes) -> Results:
    catalog = parse_body(body, {"catalog": str})["catalog"]
    service = call.service
    service.connector(catalog, call.principal)
    service.database.write(lambda connection: service.catalog.drop_connector(connection, catalog))
    service.vault.drop(catalog)
    yield {"catalog": catalog, "state": "DROPPED"}


@action('{"catalog", "table"?, "full_rescan"?}', "Finds tables and snapshots; one result per table")
def discover(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"catalog": str}, {"table": str, "full_rescan": bool})
    call.service.connector(asked["catalog"], call.principal)
    found = call.service.discover(
        asked["catalog"], asked.get("table"), asked.get("full_rescan") or False, call.is_cancelled
    )
    yield from found
