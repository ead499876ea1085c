"""Commands that read: show, query, diff, jobs, report."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from flight_server.client import full_name
from flight_server.commands.common import (
    SERVER,
    CommandError,
    Server,
    TlsRoots,
    Token,
    connect,
    misuse,
    names_of,
    say,
    snapshot_of,
    table_name,
)
from flight_server.present import render, shapes, table_facts
from flight_server.present.render import Format

_Format = Annotated[Format, typer.Option("--format", "-f", help="How rows are written.")]
_TableName = Annotated[str, typer.Argument(metavar="TABLE", help="catalog.schema.table")]
SHAPE_BINS = 10
WATCH_SECONDS = 1.0
ACTIVE = frozenset({"QUEUED", "RUNNING", "WAITING", "CANCELLING"})


def show(
    table: _TableName,
    snapshot: Annotated[str, typer.Option(help="An id, or 'current'.")] = "current",
    format: _Format = Format.TABLE,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """The statistics of a table, one line for each column."""
    name, at = table_name(table), snapshot_of(snapshot, "current")
    with connect(server, token, tls_roots) as client:
        known = table_facts.gather(client, name, at, allow_stale=at == "current", shapes=format is Format.TABLE)
    if format is not Format.TABLE:
        render.write(known.columns, format)
        return
    if not known.known:
        say(f"{name}: nothing captured yet; run: statflight capture {name}")
    elif known.table is not None and sys.stdout.isatty():
        say(_headline(known))
    headers = ("column", "type", "null %", "distinct", "min", "max", "avg bytes", "shape", "freshness")
    render.write_text(headers, [_line(row, known) for row in known.rows], right=[False, False, True, True])


def _headline(known: table_facts.Facts) -> str:
    table = known.table or {}
    return (
        f"{known.name} at snapshot {table['snapshot_id']}: {table_facts.count(table['row_count']) or '?'} rows, "
        f"{table_facts.count(table['data_file_count']) or '?'} files, "
        f"{table_facts.size(table['total_size_bytes']) or '?'}"
    )


def _line(row: table_facts.Row, known: table_facts.Facts) -> list[str]:
    kind = row["logical_type"] or ""
    width = row["avg_width_bytes"]
    return [
        row["column_name"] or f"#{row['column_id']}",
        kind,
        table_facts.percent_null(row),
        table_facts.distinct(row),
        table_facts.bound(row["min"], row["min_is_exact"], "≥"),
        table_facts.bound(row["max"], row["max_is_exact"], "≤"),
        "" if width is None else f"{width:.1f}",
        shapes.sparkline([bar.rows for bar in known.bars(row, SHAPE_BINS)]),
        table_facts.freshness(row),
    ]


def query(
    flight: Annotated[str, typer.Argument(metavar="FLIGHT", help="Such as stats.columns; sys.flights lists them.")],
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Columns, in this order.")] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="A condition, such as \"ndv > 100\".")] = None,
    snapshot: Annotated[str | None, typer.Option(help="stats.* only: an id, or 'current'; all when absent.")] = None,
    allow_stale: Annotated[bool, typer.Option("--allow-stale", help="With --snapshot: older rows too.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    format: _Format = Format.TABLE,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:  # fmt: skip
    """The rows of any flight."""
    at = None if snapshot is None else snapshot_of(snapshot, "current")
    if allow_stale and at is None:
        misuse("--allow-stale needs --snapshot")
    tree = None
    if where is not None:
        from flight_server.conditions.sql import parse_where
        from store.errors import StatflightError

        try:
            tree = parse_where(where)
        except (StatflightError, ValueError) as error:
            misuse(f"--where: {error}")
    with connect(server, token, tls_roots) as client:
        # Positional: `stream` decides the type of what read answers.
        rows = client.read(flight, names_of(columns), tree, at, allow_stale, limit, stream=True)
        render.write(rows, format)


def diff(
    table: _TableName,
    snapshot_a: Annotated[str, typer.Argument(metavar="SNAP_A", help="An id, or 'current'.")],
    snapshot_b: Annotated[str, typer.Argument(metavar="SNAP_B", help="An id, or 'current'.")],
    format: _Format = Format.TABLE,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """What changed between two snapshots: rows, files, bytes, and each column's statistics."""
    name = table_name(table)
    ids = [snapshot_of(text, "current") for text in (snapshot_a, snapshot_b)]
    with connect(server, token, tls_roots) as client:
        before, after = (table_facts.gather(client, name, at) for at in ids)
    for at, known in zip(ids, (before, after), strict=True):
        if not known.known:
            raise CommandError(
                f"{name}: nothing captured at snapshot {at}; run: statflight capture {name} --snapshot {at}"
            )
        _tell_inherited(at, known)
    changes = _changes(before, after)
    if not changes:
        say(f"{name}: the statistics of {ids[0]} and {ids[1]} are the same")
    schema = pa.schema([(word, pa.string()) for word in ("of", "statistic", "before", "after", "change")])
    render.write(pa.Table.from_pylist(changes, schema), format)


def _tell_inherited(at: str | int, known: table_facts.Facts) -> None:
    """That nothing differs means little where one side answers for the other."""
    rows = [*known.rows, *([] if known.table is None else [known.table])]
    older = {row["snapshot_id"] for row in rows if row["freshness"] == "INHERITED"}
    if older:
        count = sum(row["snapshot_id"] in older for row in rows)
        of = ", ".join(map(str, sorted(older)))
        say(f"{known.name}: at snapshot {at}, {count} of {len(rows)} records are inherited (of {of}), not its own")


_OF_TABLE = ("row_count", "data_file_count", "total_size_bytes")
_OF_COLUMN = ("logical_type", "null_count", "nan_count", "ndv", "min", "max", "avg_width_bytes")


def _changes(before: table_facts.Facts, after: table_facts.Facts) -> list[dict[str, str]]:
    found = []

    def compare(of: str, names: tuple[str, ...], old: table_facts.Row, new: table_facts.Row) -> None:
        for statistic in names:
            was, now = old.get(statistic), new.get(statistic)
            if was != now:
                values = {"before": render.text_of(was), "after": render.text_of(now), "change": _delta(was, now)}
                found.append({"of": of, "statistic": statistic, **values})

    compare("table", _OF_TABLE, before.table or {}, after.table or {})
    # By id: a renamed column is the same one.
    olds, news = ({row["column_id"]: row for row in known.rows} for known in (before, after))
    for column in sorted(olds.keys() | news.keys()):
        old, new = olds.get(column), news.get(column)
        label = str((new or old or {}).get("column_name") or f"#{column}")
        if old is None or new is None:
            word = "added" if old is None else "dropped"
            found.append({"of": label, "statistic": word, "before": "", "after": "", "change": ""})
        if old is not None and new is not None:
            compare(label, ("column_name", *_OF_COLUMN), old, new)
    return found


def _delta(was: Any, now: Any) -> str:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (was, now))
    return f"{now - was:+,.10g}" if numbers else ""


def jobs(
    watch: Annotated[bool, typer.Option("--watch", help="Show them again every second, until Ctrl-C.")] = False,
    active: Annotated[bool, typer.Option("--active", help="Only those that are not finished.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
    format: _Format = Format.TABLE,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Capture jobs, the newest first."""
    if watch and format is not Format.TABLE:
        misuse("--watch writes tables only")
    with connect(server, token, tls_roots) as client, contextlib.suppress(KeyboardInterrupt):
        while True:
            table = client.read("sys.capture_jobs").sort_by([("queued_at", "descending")])
            if active:
                table = table.filter(pa.array([state in ACTIVE for state in table["state"].to_pylist()], pa.bool_()))
            table = table.slice(0, limit)
            if format is Format.TABLE:
                if watch and sys.stdout.isatty():
                    sys.stdout.write("\x1b[2J\x1b[H")  # clear, so that the table stays in place
                    sys.stdout.flush()
                _write_jobs(table)
            else:
                render.write(table, format)
            if not watch:
                return
            time.sleep(WATCH_SECONDS)


def _write_jobs(table: pa.Table) -> None:
    headers = ("job", "state", "table", "snapshot", "progress", "attempts", "queued", "message")
    rows = [
        [
            job["job_id"],
            (job["state"] or "") + (" (degraded)" if job["degraded"] else ""),
            full_name({key: job[key] or "" for key in ("table_catalog", "table_schema", "table_name")}),
            render.text_of(job["snapshot"]),
            "" if job["progress"] is None else f"{job['progress']:.0%}",
            render.text_of(job["attempts"]),
            _moment(job["queued_at"]),
            job["message"] or "",
        ]
        for job in table.to_pylist()
    ]
    # Never folded to the width of a window: a job id is there to be copied.
    render.write_text(headers, rows, sys.stdout.buffer)


def _moment(value: Any) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}Z"


def report(
    table: _TableName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page to write.")],
    snapshot: Annotated[str, typer.Option(help="An id, or 'current'.")] = "current",
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """A page about a table that needs nothing but a browser."""
    from flight_server.present.report import page

    name, at = table_name(table), snapshot_of(snapshot, "current")
    with connect(server, token, tls_roots) as client:
        text = page(client, name, at)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from None
    say(f"wrote {output}")
