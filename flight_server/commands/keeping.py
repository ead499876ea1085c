"""Commands that keep what the server has: backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flight_server.commands.common import SERVER, Server, TlsRoots, Token, connect, say


def backup(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A new file, on the server's machine.")],
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Copy the database to a file while the server serves; `serve --db` opens the copy."""
    # relative to where the command is called, which is where its user looks for it
    target = str(path.expanduser().absolute())
    with connect(server, token, tls_roots) as client:
        (written,) = client.actions.call("backup", {"path": target})
    say(f"{target}: {written['bytes'] / 1e6:.1f} MB in {written['elapsed_ms'] / 1000:.1f} s")
