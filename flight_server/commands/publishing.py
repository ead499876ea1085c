"""Commands that publish statistics to other engines: publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flight_server.commands.common import (
    SERVER,
    Server,
    TableNames,
    TlsRoots,
    Token,
    check_targets,
    connect,
    expand,
    for_each,
    snapshot_of,
)
from flight_server.commands.output import misuse, note, tell


def publish(
    tables: TableNames,
    to: Annotated[
        str, typer.Option("--to", metavar="HOME", help="iceberg, spark, trino, paimon, lance, glue or hive.")
    ],
    snapshot: Annotated[str, typer.Option(metavar="SNAPSHOT", help="An id, or 'current'.")] = "current",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    allow_inherited: Annotated[
        bool,
        typer.Option("--allow-inherited", help="Allow an earlier snapshot of the same schema."),
    ] = False,
    option: Annotated[
        list[str] | None, typer.Option("-o", "--option", metavar="KEY=VALUE", help="Option of the home. Repeatable.")
    ] = None,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Publish the statistics of each table that the targets match."""
    targets, at = check_targets(tables), snapshot_of(snapshot, "current")
    more: dict[str, Any] = {"dry_run": True} if dry_run else {}
    more |= {"allow_inherited": True} if allow_inherited else {}
    more |= {"options": dict(map(_pair, option))} if option else {}
    with connect(server, token, tls_roots) as client:

        def write(name: str) -> None:
            for written in client.actions.call("publish", {"table": name, "snapshot": at, "to": to} | more):
                tell(_told(written))

        names, missing = expand(client, targets)
        if for_each(names, write) or missing:
            raise typer.Exit(1)


def _told(written: Mapping[str, Any]) -> str:
    """The line about a publication or dry run, with its location; with `--verbose` also its columns."""
    columns = list(written["columns"] or ())
    how = "would be published" if written["state"] == "DRY_RUN" else "published"
    parts = f"{len(columns)} column{'' if len(columns) == 1 else 's'} of snapshot {written['snapshot_id']}"
    note(f"columns: {', '.join(columns)}")
    line = f"{written['table']}: {parts} {how} to {written['to']}: {written['location']}"
    return f"{line}; {written['detail']}" if written.get("detail") else line


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        misuse(f"-o {text!r}: must be KEY=VALUE")
    return key.strip(), value
