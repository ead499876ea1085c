"""Commands that compare snapshots: diff."""

from __future__ import annotations

import json
from typing import Annotated

import pyarrow as pa
import typer

from flight_server.commands.common import SERVER, Server, TableName, TlsRoots, Token, connect, snapshot_of, table_name
from flight_server.commands.output import CommandError, misuse, say, tell, warn
from flight_server.commands.reading import FormatOption
from flight_server.present import render, table_summary
from flight_server.present.comparison import Change, changes, parse_gate
from flight_server.present.render import Format


def diff(
    table: TableName,
    snapshot_a: Annotated[str, typer.Argument(metavar="SNAP_A", help="An id, or 'current'.")],
    snapshot_b: Annotated[str, typer.Argument(metavar="SNAP_B", help="An id, or 'current'.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="Exit with 1 on such a change: 'row_count < -10%'. Repeatable."),
    ] = None,
    format: FormatOption = Format.TABLE,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """The differences between two snapshots: rows, files, bytes, and each column's statistics."""
    name = table_name(table)
    ids = [snapshot_of(text, "current") for text in (snapshot_a, snapshot_b)]
    try:
        gates = [parse_gate(text) for text in fail_on or ()]
    except ValueError as error:
        misuse(f"--fail-on {error}")
    with connect(server, token, tls_roots) as client:
        before, after = (table_summary.gather(client, name, at) for at in ids)
    for at, summary in zip(ids, (before, after), strict=True):
        if not summary.known:
            raise CommandError(
                f"{name}: nothing captured at snapshot {at}; run: statflight capture {name} --snapshot {at}"
            )
        _tell_inherited(at, summary)
    differences = changes(before, after)
    if not differences:
        say(f"{name}: the statistics of {ids[0]} and {ids[1]} are the same")
    if format is Format.JSON:
        rows = (render.plain(change.to_json()) for change in differences)
        tell("[" + ",".join("\n" + json.dumps(row, ensure_ascii=False) for row in rows) + "\n]")
    else:
        schema = pa.schema([(word, pa.string()) for word in ("of", "statistic", "before", "after", "change", "%")])
        render.write(pa.Table.from_pylist(list(map(_worded, differences)), schema), format)
    caught = [(gate, change) for gate in gates for change in gate.caught(differences)]
    for gate, change in caught:
        line = _worded(change)
        by = line["%"] or line["change"]
        warn(f"statflight: {change.of}: {gate.text}: {line['before']} → {line['after']} ({by})")
    if caught:
        raise typer.Exit(1)


def _worded(change: Change) -> dict[str, str]:
    return {
        "of": change.of,
        "statistic": change.statistic,
        "before": render.text_of(change.before),
        "after": render.text_of(change.after),
        "change": "" if change.change is None else f"{change.change:+,.10g}",
        "%": "" if change.change_percent is None else f"{change.change_percent:+.3g}%",
    }


def _tell_inherited(at: str | int, summary: table_summary.TableSummary) -> None:
    """Say how much of a side is inherited: that nothing differs means little where one side answers for the other."""
    rows = [*summary.rows, *([] if summary.table is None else [summary.table])]
    older = {row["snapshot_id"] for row in rows if row["freshness"] == "INHERITED"}
    if older:
        count = sum(row["snapshot_id"] in older for row in rows)
        of = ", ".join(map(str, sorted(older)))
        say(f"{summary.name}: at snapshot {at}, {count} of {len(rows)} records are inherited (from {of}), not its own")
