"""Commands about what tables mean: describe, joins."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa

from flight_server.core.views import relationships
from flight_server.faces.commands.common import Answer, AnswerFormat, names_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import say, say_left_out, tell, tell_json
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.reading import FormatOption
from flight_server.faces.commands.targets import TableName, complete_table, find_table, known_name
from flight_server.faces.present import render, text
from flight_server.faces.present.render import Format
from store.model.names import is_pattern, matcher


def describe(
    table: TableName,
    owner: Annotated[str | None, option(metavar="WHO", help="Who is responsible; '' for nobody.")] = None,
    tag: Annotated[list[str] | None, option(metavar="TAG", help="All its tags; '' for none.")] = None,
    note: Annotated[str | None, option(metavar="TEXT", help="What to know of it; '' for nothing.")] = None,
    format: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Say whose a table is and what to know of it; without options, show what is said."""
    known_name(table)
    tags = [] if tag and not any(tag) else names_of(tag)
    with connect(connection) as client:
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


def joins(
    pattern: Annotated[
        str, argument(metavar="PATTERN", help="Such as 'lake.*', or a table.", shell_complete=complete_table)
    ] = "*",
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """List foreign keys of and to tables: declared ones, and those that the values of captured columns tell."""
    with connect(connection) as client:
        wanted = pattern if is_pattern(pattern) else find_table(client, pattern)
        rows = relationships.among(client, lambda name: bool(matcher((wanted,)).fullmatch(name)))
    if format is not Format.TABLE:
        render.write(pa.Table.from_pylist(rows), format)
        return
    if not rows:
        say("no foreign key is known; captures of columns find those that the values tell")
    headers = ("from", "columns", "to", "key", "contained", "cardinality", "kind")
    lines = [
        [
            row["from"],
            ", ".join(row["from_columns"]),
            row["to"],
            ", ".join(row["to_columns"]),
            relationships.contained(row),
            row["cardinality"] or "",
            row["kind"],
        ]
        for row in rows
    ]
    right = [header == "contained" for header in headers]
    say_left_out(text.write_text(headers, lines, right=right, whole=("from", "to"), spare=("cardinality", "kind")))
