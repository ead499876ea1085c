"""Commands that write statistics where other engines find them: publish."""

from __future__ import annotations

from typing import Annotated

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
from flight_server.commands.output import tell
from flight_server.commands.wording import line_of


def publish(
    tables: TableNames,
    to: Annotated[str, typer.Option("--to", help="iceberg (Puffin), paimon, lance or spark.")],
    snapshot: Annotated[str, typer.Option(help="An id, or 'current'.")] = "current",
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Publish the statistics of each table that the targets stand for."""
    targets, at = check_targets(tables), snapshot_of(snapshot, "current")
    with connect(server, token, tls_roots) as client:

        def write(name: str) -> None:
            for written in client.actions.call("publish", {"table": name, "snapshot": at, "to": to}):
                tell(line_of(written))

        names, missing = expand(client, targets)
        if for_each(names, write) or missing:
            raise typer.Exit(1)
