"""Commands that publish statistics to other engines, and remove them there: publish, withdraw."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from flight_server.core.views import numbers
from flight_server.core.views.reader import Reader, read_table
from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.faces.commands.common import Answer, AnswerFormat, pairs_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import note, say, tell, tell_json
from flight_server.faces.commands.parameters import option
from flight_server.faces.commands.targets import TableNames, check_targets, for_each, snapshot_of

_HOMES = "iceberg, spark, trino, paimon, lance, ducklake, glue or hive."
Options = Annotated[
    list[str] | None, option("-o", "--option", metavar="KEY=VALUE", help="Option of the home. Repeatable.")
]


def publish(
    tables: TableNames,
    to: Annotated[str, option("--to", metavar="HOME", help=_HOMES)],
    snapshot: Annotated[str, option(metavar="SNAPSHOT", help="An id, or 'current'.")] = "current",
    dry_run: Annotated[bool, option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    allow_inherited: Annotated[
        bool,
        option("--allow-inherited", help="Allow an earlier snapshot of the same schema."),
    ] = False,
    option: Options = None,
    format: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Publish the statistics of each table that the targets match."""
    targets, at = check_targets(tables), snapshot_of(snapshot)
    more: dict[str, Any] = {"dry_run": True} if dry_run else {}
    more |= {"allow_inherited": True} if allow_inherited else {}
    more |= _options(option)
    rows: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    with connect(connection) as client:

        def write(reader: Reader, name: str) -> None:
            snapshot_id = snapshot_at(reader, name, at)
            if _reads_data(to):
                say(f"{name}: {to} takes no sketches of other engines: reading {_data_of(reader, name, snapshot_id)}")
            for written in client.actions.call("publish", {"table": name, "snapshot": snapshot_id, "to": to} | more):
                rows.append(written)
                if format is Answer.TEXT:
                    tell(_line(written))

        failed = for_each(client, targets, write, errors)
        if format is Answer.JSON:
            tell_json([*rows, *({"table": name, "error": words} for name, words in errors.items())])
        if failed:
            sys.exit(1)


def _reads_data(home: str) -> bool:
    """True for a home whose statistics are made of the table's data; false for one that is not known here."""
    from capture.homes import HOMES
    from store.model.errors import InvalidArgument

    try:
        return bool(HOMES.load(home).reads_data)
    except InvalidArgument:
        return False  # the server says what is wrong with it


def _data_of(reader: Reader, name: str, snapshot: str | int) -> str:
    """The size of what a publication reads: `3 files, 987.4 KiB`."""
    facts = ["data_file_count", "total_size_bytes"]
    rows = read_table(reader, "stats.tables", name, facts, snapshot=snapshot).to_pylist()
    if not rows or rows[0]["data_file_count"] is None:
        return "the data files"
    return f"{numbers.counted(rows[0]['data_file_count'], 'file')}, {numbers.size(rows[0]['total_size_bytes']) or '?'}"


def withdraw(
    tables: TableNames,
    home: Annotated[str, option("--from", metavar="HOME", help=_HOMES)],
    option: Options = None,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Remove published statistics of each table that the targets match from a home."""
    targets, more = check_targets(tables), _options(option)
    with connect(connection) as client:

        def remove(_: object, name: str) -> None:
            for answer in client.actions.call("withdraw", {"table": name, "to": home} | more):
                done = "statistics removed from" if answer["withdrawn"] else "no statistics in"
                tell(f"{answer['table']}: {done} {home}")

        if for_each(client, targets, remove):
            sys.exit(1)


def _options(pairs: list[str] | None) -> dict[str, Any]:
    """The field `options` of the actions' bodies, if there are any."""
    return {"options": pairs_of(pairs)} if pairs else {}


def _line(written: Mapping[str, Any]) -> str:
    """The line about a publication or dry run, with its location; with `--verbose` also its columns."""
    columns = list(written["columns"] or ())
    how = "would be published" if written["state"] == "DRY_RUN" else "published"
    parts = f"{len(columns)} column{'' if len(columns) == 1 else 's'} of snapshot {written['snapshot_id']}"
    note(f"columns: {', '.join(columns)}")
    line = f"{written['table']}: {parts} {how} to {written['to']}: {written['location']}"
    return f"{line}; {written['detail']}" if written.get("detail") else line
