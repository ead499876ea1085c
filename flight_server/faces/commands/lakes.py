"""Commands about lakes: connect, discover, disconnect."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flight_server.client.table_names import full_name
from flight_server.faces.commands.common import Answer, AnswerFormat, pairs_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import say, tell, tell_json, warn
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.progress import while_looking
from flight_server.faces.commands.targets import table_name

if TYPE_CHECKING:
    from flight_server.client import StatsClient

_Catalog = Annotated[str, argument(metavar="CATALOG", help="Catalog name for the lake.")]


def connect_lake(
    catalog: _Catalog,
    format: Annotated[str, argument(metavar="FORMAT", help="delta, iceberg, lance, parquet or paimon.")],
    uri: Annotated[str, argument(metavar="URI", help="A table, a directory of tables, or a catalog.")],
    option: Annotated[
        list[str] | None, option("-o", "--option", metavar="KEY=VALUE", help="Such as secret=NAME. Repeatable.")
    ] = None,
    replace: Annotated[bool, option("--replace", help="Replace the lake of a connected catalog.")] = False,
    answer: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Connect a lake and list its tables. When interrupted or failed, it leaves the catalog unchanged."""
    options = pairs_of(option)
    _warn_of_secrets(catalog, uri, options)
    with connect(connection) as client:
        body = {"catalog": catalog, "format": format, "uri": _absolute(uri), "options": options, "discover": True}
        body |= {"replace": True} if replace else {}
        (lake,) = while_looking(client, catalog, lambda: client.actions.call("register_connector", body))
        for pattern in lake.get("unmatched", ()):
            warn(f'statflight: {catalog}: no table matches "{pattern}" of include or exclude')
        _tell_tables(client, catalog, lake["tables"], answer)


def _warn_of_secrets(catalog: str, uri: str, options: Mapping[str, str]) -> None:
    """Warns of secrets given directly, and says where the server keeps them."""
    from capture.connectors.storage.secrets import is_secret, mask_uri

    given = sorted(name for name, value in options.items() if value and is_secret(name))
    given += ["the password in the address"] if mask_uri(uri) != uri else []
    if given:
        warn(
            f"statflight: the server keeps {', '.join(given)} of {catalog} in clear in the .secrets file beside its "
            "database; a named secret (-o secret=NAME) is kept by the worker's environment alone"
        )


def _absolute(uri: str) -> str:
    """Makes an existing local path absolute: the server may run in another directory."""
    return str(Path(uri).resolve()) if "://" not in uri and Path(uri).exists() else uri


def _tell_tables(client: StatsClient, catalog: str, tables: list[Any], answer: Answer = Answer.TEXT) -> None:
    """Prints the catalog's tables; unreadable ones go to standard error and make the exit status 1."""
    entries = [entry for entry in tables if isinstance(entry, dict)]  # others are names alone
    unreadable = [entry for entry in entries if entry.get("error")]
    failing = {entry.get("table") for entry in unreadable}
    names = sorted({full_name(row) for row in client.tables(catalog).to_pylist()} - failing)
    if answer is Answer.JSON:
        tell_json([*({"table": name} for name in names), *unreadable])
    else:
        for name in names:
            tell(name)
    _warn_of(catalog, entries)
    if not names and not unreadable:
        say(f"{catalog}: no tables found")
    if unreadable:
        sys.exit(1)


def _warn_of(catalog: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Prints the errors of tables on standard error, and after them the remarks."""
    for entry in entries:
        if entry.get("error"):
            warn(f"statflight: {entry.get('table', catalog)}: {entry['error']}")
    for entry in entries:
        if entry.get("remark"):
            warn(f"statflight: {entry['table']}: {entry['remark']}")


def discover(
    catalog: _Catalog,
    table: Annotated[str | None, argument(metavar="TABLE", help="Only this one.")] = None,
    full_rescan: Annotated[bool, option("--full-rescan", help="Read known snapshots again.")] = False,
    snapshot: Annotated[
        list[int] | None, option(metavar="ID", help="Read only this one, and the current one. Repeatable.")
    ] = None,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Look for new tables and snapshots of a connected lake."""
    body: dict[str, Any] = {"catalog": catalog} | ({"full_rescan": True} if full_rescan else {})
    if snapshot is not None:
        body["snapshots"] = snapshot
    if table is not None:
        body["table"] = table_name(table)
    with connect(connection) as client:
        tables = while_looking(client, catalog, lambda: client.actions.call("discover", body))
        _tell_tables(client, catalog, tables)


def disconnect(catalog: _Catalog, connection: ConnectionOptions = CONNECTION) -> None:
    """Forget a connected lake and its tables."""
    with connect(connection) as client:
        client.actions.drop_connector(catalog=catalog)
    say(f"{catalog}: disconnected")
