"""Commands that browse the catalog: ls, history."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any

import pyarrow as pa

from flight_server.client.table_names import full_name, join_name, split_name
from flight_server.core.views import catalog_summary, numbers, shapes, table_summary
from flight_server.core.views import history as histories
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import CommandError, say, say_left_out
from flight_server.faces.commands.parameters import argument
from flight_server.faces.commands.reach import FLIGHTS_ALONE, Keep, reach
from flight_server.faces.commands.reading import FormatOption
from flight_server.faces.commands.targets import (
    TableName,
    check_targets,
    complete_column,
    complete_table,
    find_table,
)
from flight_server.faces.present import render, text
from flight_server.faces.present.render import Format
from store.model.names import is_pattern, matcher
from store.model.statistics import PER_VALUE


def ls(
    pattern: Annotated[
        str | None,
        argument(
            metavar="PATTERN",
            help="Such as 'lake.sales.*', or the name of a catalog, schema or table.",
            shell_complete=complete_table,
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """List tables with their rows, files, bytes, age and errors."""
    with connect(connection) as client:
        rows = catalog_summary.rows(client)
    if pattern is not None:
        rows = _matching(rows, pattern)
    if not rows:
        say("no tables yet; `statflight connect CATALOG FORMAT URI` connects a lake")
    if format is not Format.TABLE:
        render.write(pa.Table.from_pylist(rows, catalog_summary.SCHEMA), format)
        return
    _write_tables(rows)


def _matching(rows: list[dict[str, Any]], pattern: str) -> list[dict[str, Any]]:
    """The tables of the catalog, schema, table or pattern of this name, or else those whose names end with it.

    Raises:
        CommandError: There are none.
    """
    patterns = [pattern]
    if not is_pattern(pattern):  # `lake` is all of a catalog, `lake.sales` all of a schema, a full name one table
        patterns.append(f"{pattern}.*")
        with suppress(ValueError):
            patterns.append(join_name(*split_name(pattern)))  # parts may have quotes that they do not need
    matching = [row for row in rows if matcher(tuple(patterns)).fullmatch(full_name(row))]
    if not matching:
        matching = [row for row in rows if full_name(row).endswith(f".{pattern}")]
    if not matching:
        raise CommandError(f"no table matches '{pattern}'; there are {len(rows)}")
    return matching


def _write_tables(rows: list[dict[str, Any]]) -> None:
    """Writes tables for a terminal, without formats and troubles if there are none."""
    headers = ("table", "format", "rows", "files", "size", "captured", "freshness", "trouble")
    lines = [
        [
            name,
            row["format"] or "",
            numbers.count(row["row_count"]),
            numbers.count(row["data_file_count"]),
            numbers.size(row["total_size_bytes"]),
            table_summary.age(row["refreshed_at"] or row["captured_at"]),
            row["freshness"] or "not captured",
            row["last_error"] or "",
        ]
        for name, row in zip(text.short_names(list(map(full_name, rows))), rows, strict=True)
    ]
    kept = [
        place for place, name in enumerate(headers) if name not in ("format", "trouble") or any(r[place] for r in lines)
    ]
    right = [headers[place] in ("rows", "files", "size", "captured") for place in kept]
    left_out = text.write_text(
        [headers[place] for place in kept],
        [[line[place] for place in kept] for line in lines],
        right=right,
        whole=("table",),
        spare=("files", "format", "captured"),
    )
    say_left_out(left_out)


def history(
    table: TableName,
    column: Annotated[str, argument(metavar="COLUMN", help="Name of the column.", shell_complete=complete_column)],
    db: Keep = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Show a column's statistics at each captured snapshot, oldest first."""
    targets = check_targets([table], paths=True)
    with reach(connection, targets, ["newest"], db, FLIGHTS_ALONE) as (client, (target,), failed):
        name = find_table(client, target)
        rows = histories.column_rows(client, name, column)
    if not rows:
        say(f"{name}: nothing captured of {column}; run: statflight capture {name} --columns {column}")
    if format is not Format.TABLE:
        render.write(_history_table(rows), format)
        return
    headers = ("snapshot", "committed", "rows", *table_summary.LABELS)
    lines = [
        [str(row["snapshot_id"]), table_summary.moment(row["committed_at"]), numbers.count(row["row_count"])]
        + [texts[label] for label in table_summary.LABELS]
        for row in rows
        for texts in [table_summary.texts(row)]
    ]
    right = [header == "rows" or header in table_summary.NUMBER_LABELS for header in headers]
    say_left_out(
        text.write_text(headers, lines, right=right, whole=("snapshot", "committed"), spare=("stddev", "mean"))
    )
    for statistic in histories.NUMBERS:
        values = [row.get(statistic) for row in rows]
        known = [value for value in values if value is not None]
        if len(set(known)) > 1:
            is_count = statistic in PER_VALUE  # of distinct values: whole everywhere, though it may be an estimate
            ends = " → ".join(numbers.number(round(known[at]) if is_count else known[at]) for at in (0, -1))
            say(f"{statistic:<15} {shapes.sparkline(values)}  {ends}")
    if failed:
        sys.exit(1)


def _history_table(rows: list[dict[str, Any]]) -> pa.Table:
    from store.model.schemas import FLIGHTS

    schema = FLIGHTS["stats.columns"].schema
    names = ["snapshot_id", *(name for name in histories.STATISTICS if name in schema.names)]
    instant = pa.timestamp("us", "UTC")
    fields = [schema.field(name) for name in names]
    fields.insert(1, pa.field("committed_at", instant))
    return pa.Table.from_pylist(rows, pa.schema(fields))
