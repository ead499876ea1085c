"""Commands about what tables mean: describe."""

from __future__ import annotations

from typing import Annotated

import typer

from flight_server.commands.common import (
    SERVER,
    Answer,
    AnswerFormat,
    Server,
    TableName,
    TlsRoots,
    Token,
    connect,
    find_table,
    known_name,
    names_of,
)
from flight_server.commands.output import say, tell, tell_json


def describe(
    table: TableName,
    owner: Annotated[str | None, typer.Option(metavar="WHO", help="Who is responsible; '' for nobody.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="All its tags; '' for none.")] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="What to know of it; '' for nothing.")] = None,
    format: AnswerFormat = Answer.TEXT,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Say whose a table is and what to know of it; without options, show what is said."""
    known_name(table)
    tags = [] if tag and not any(tag) else names_of(tag)
    with connect(server, token, tls_roots) as client:
        said = client.describe(find_table(client, table), owner=owner, tags=tags, notes=note)
    if format is Answer.JSON:
        tell_json([said])
        return
    shown = {**said, "tags": ", ".join(said["tags"] or ())}
    for name, value in shown.items():
        if value and name != "table":
            tell(f"{name}: {value}")
    if not any(value for name, value in shown.items() if name != "table"):
        say(f"{said['table']}: nothing is said of it; --owner, --tag and --note do")
