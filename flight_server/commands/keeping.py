"""Commands about the database: backup, expire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flight_server.commands.common import SERVER, Server, TlsRoots, Token, complete_table, connect, table_name
from flight_server.commands.output import say, tell


def backup(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A new file, on the server's machine.")],
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Copy the database to a file while the server serves; `serve --db` opens the copy."""
    # relative to the directory in which the command is called
    target = str(path.expanduser().absolute())
    with connect(server, token, tls_roots) as client:
        (written,) = client.actions.call("backup", {"path": target})
    say(f"{target}: {written['bytes'] / 1e6:.1f} MB in {written['elapsed_ms'] / 1000:.1f} s")


def expire(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Only this one.", autocompletion=complete_table)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Only list what would be deleted.")] = True,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Delete statistics of snapshots that the lake itself has expired."""
    body: dict[str, Any] = {"dry_run": dry_run} | ({} if table is None else {"table": table_name(table)})
    with connect(server, token, tls_roots) as client:
        for gone in client.actions.call("expire", body):
            tell("  ".join(f"{key}={value}" for key, value in gone.items() if value is not None))
    if dry_run:
        say("nothing was deleted; --no-dry-run deletes")
