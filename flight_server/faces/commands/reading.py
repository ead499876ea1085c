"""Commands that read: show, query."""

from __future__ import annotations

import sys
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import pyarrow as pa

from flight_server.client.table_names import COLUMNS, of_table
from flight_server.core.views import numbers, shapes, snapshot_words, table_summary
from flight_server.core.views.reader import Leaf, Reader, read_table
from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.faces.commands.common import names_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import misuse, say, say_left_out
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.reach import FLIGHTS_ALONE, Keep, reach
from flight_server.faces.commands.targets import Snapshot, TableNames, check_targets, each, expand, is_path, snapshot_of
from flight_server.faces.present import render, text
from flight_server.faces.present.column_labels import labels
from flight_server.faces.present.render import Format
from store.model.logical_types import FLOATING

if TYPE_CHECKING:
    from flight_server.client import StatsClient

FormatOption = Annotated[Format, option("--format", "-f", help="How rows are written.")]
SHAPE_BINS = 10


def show(
    tables: TableNames,
    snapshot: Snapshot = "current",
    db: Keep = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Show the statistics of each table that the targets match, a line for each column."""
    targets, wanted = check_targets(tables, paths=True), snapshot_of(snapshot)
    as_text, errors = format is Format.TABLE, dict[str, str]()
    with reach(connection, targets, [wanted], db, FLIGHTS_ALONE) as (client, found_targets, unread):
        names, failed = expand(client, found_targets)
        failed += unread

        def gather(reader: Reader, name: str) -> pa.Table:
            at = snapshot_at(reader, name, wanted)
            summary = table_summary.gather(reader, name, at, allow_stale=at == "current", shapes=as_text)
            if as_text:
                if not summary.known:
                    _say_why_unknown(reader, name)
                lacking = table_summary.uncaptured(reader, summary) if at == "current" and summary.rows else []
                _write(summary, lacking, several=len(names) > 1)
                if summary.is_wide:
                    columns = numbers.counted(len(summary.rows), "column")
                    say(f"{name}: no quantiles and shapes of {columns}; statflight query stats.quantiles has them")
                if remark := table_summary.remark(reader, name):
                    say(f"{name}: {remark}")
            return summary.columns

        if len(names) == 1 and not failed:
            found = iter([gather(client, names[0])])
        else:
            found = each(client, names, gather, errors)
        if as_text:
            deque(found, maxlen=0)
        elif (first := next(found, None)) is not None:
            batches = (batch for columns in chain([first], found) for batch in columns.to_batches())
            render.write(pa.RecordBatchReader.from_batches(first.schema, batches), format)
    if failed or errors:
        sys.exit(1)


def _say_why_unknown(reader: Reader, name: str) -> None:
    errors = read_table(reader, "sys.tables", name, ["last_error"])["last_error"].to_pylist()
    if error := next(filter(None, errors), None):
        say(f"{name}: nothing captured, for it cannot be read: {error}")
    else:
        say(f"{name}: nothing captured yet; run: statflight capture {name}")


def _write(summary: table_summary.TableSummary, lacking: list[table_summary.Row], several: bool) -> None:
    heading = _headline(summary) if several or (summary.table is not None and sys.stdout.isatty()) else ""
    names = labels([*summary.rows, *lacking])
    lines_of = {row["column_id"]: _line(row, summary) for row in summary.rows}
    empty = dict.fromkeys(HEADERS, "") | {"freshness": "not captured"}
    lines_of |= {row["column_id"]: empty | {"type": row["data_type"]} for row in lacking}
    lines = [line | {"column": names[column]} for column, line in sorted(lines_of.items())]
    # A statistic that no column has, such as the mean after a metadata capture, gets no column in the output.
    always = ALWAYS - {"shape"} if summary.is_wide else ALWAYS
    headers = [header for header in HEADERS if header in always or any(line[header] for line in lines)]
    rows = [[line[header] for header in headers] for line in lines]
    right = [header in NUMBERS for header in headers]
    is_all_current = all(line["freshness"] == table_summary.EXACT for line in lines)
    spare = [header for header in SPARE if is_all_current or header != "freshness"]
    say_left_out(text.write_text(headers, rows, right=right, heading=heading, spare=spare))
    if several:
        sys.stdout.write("\n")


def _headline(summary: table_summary.TableSummary) -> str:
    table = summary.table
    if table is None:
        return summary.name
    return (
        f"{summary.name} at snapshot {table['snapshot_id']}: {numbers.counted(table['row_count'], 'row')}, "
        f"{numbers.counted(table['data_file_count'], 'file')}, "
        f"{numbers.size(table['total_size_bytes']) or '?'}"
    )


QUARTILES = {"25 %": 0.25, "50 %": 0.5, "75 %": 0.75}
HEADERS = (
    *("column", "type", *table_summary.LABELS),
    *(*QUARTILES, *table_summary.WIDTH_LABELS, "shape", "freshness"),
)
ALWAYS = frozenset(HEADERS) - QUARTILES.keys() - table_summary.SOME_LABELS
NUMBERS = table_summary.NUMBER_LABELS | QUARTILES.keys()

SPARE = (
    "25 %",
    "75 %",
    "50 %",
    "stddev",
    "avg bytes",
    "mean",
    "freshness",
    "shape",
    "type",
)  # left out if narrow


def _line(row: table_summary.Row, summary: table_summary.TableSummary) -> dict[str, str]:
    quartiles = summary.quantiles.get(row["column_id"], {})
    return {
        "type": row["logical_type"] or "",
        **table_summary.texts(row),
        **{label: _quartile(row, quartiles.get(share)) for label, share in QUARTILES.items()},
        "shape": shapes.sparkline([bar.rows for bar in summary.bars(row, SHAPE_BINS)]),
        "freshness": table_summary.freshness(row, sampled=row["column_id"] in summary.sampled),
    }


def _quartile(row: table_summary.Row, value: str | None) -> str:
    """A value of the column as it is; a float, as the mean is, with six digits."""
    if value is None or row["logical_type"] not in FLOATING:
        return value or ""
    return numbers.known(float(value))


def query(
    flight: Annotated[str, argument(metavar="FLIGHT", help="Such as stats.columns; sys.flights lists them.")],
    path: Annotated[str | None, argument(metavar="PATH", help="A table by its path, which alone is read.")] = None,
    columns: Annotated[list[str] | None, option(metavar="A,B", help="Columns, in this order. Repeatable.")] = None,
    where: Annotated[str | None, option(metavar="SQL", help='A condition, such as "ndv > 100".')] = None,
    snapshot: Annotated[
        str | None,
        option(
            metavar="SNAPSHOT",
            help="stats.* only: an id, 'current', 'previous', 'first' or 'all'.",
            show_default="current; all if --where names snapshot_id",
        ),
    ] = None,
    allow_stale: Annotated[bool, option("--allow-stale", help="Of one snapshot: include stale rows.")] = False,
    limit: Annotated[int | None, option(min=0, help="Maximum number of rows.")] = None,
    db: Keep = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Print the rows of any flight."""
    if snapshot is None and flight.startswith("stats."):
        snapshot = "all" if where is not None and "snapshot_id" in where else "current"
    at = None if snapshot in (None, "all") else snapshot_of(snapshot, "all")
    if allow_stale and at is None:
        misuse("--allow-stale needs one snapshot of stats.*")
    chosen, tree = names_of(columns), None
    if where is not None:
        from flight_server.client.conditions.sql import parse_where

        try:
            tree = parse_where(where)
        except ValueError as error:
            misuse(f"--where: {str(error).removeprefix('[INVALID_ARGUMENT] condition: ')}")
    if path is not None and not is_path(path):
        misuse(f"{path}: not the path of a table; for one of a server, say --where \"table_name = '{path}'\"")
    if path is None:
        with connect(connection) as client:
            render.write(_rows(client, _Read(flight, chosen, tree, at, allow_stale, limit)), format)
        return
    with reach(connection, [path], ["current" if at is None else at], db) as (client, _, failed):
        render.write(_rows(client, _Read(flight, chosen, tree, at, allow_stale, limit)), format)
    if failed:
        sys.exit(1)


class _Read(NamedTuple):
    """A read of a flight as it was asked for.

    Attributes:
        where: The condition, as the client takes it; None for none.
        at: The snapshot: a word or an id; None for all.
    """

    flight: str
    columns: list[str] | None
    where: Any
    at: str | int | None
    allow_stale: bool
    limit: int | None

    def of(self, client: StatsClient, at: str | int | None, *more: Leaf) -> pa.RecordBatchReader:
        """The rows at a snapshot, of what further conditions select."""
        where = self.where if not more else [*more, *_conjuncts(self.where)]
        # Positional: `stream` decides the return type of `read`.
        return client.read(self.flight, self.columns, where, at, self.allow_stale, self.limit, stream=True)


def _rows(client: StatsClient, read: _Read) -> pa.RecordBatchReader:
    """The rows of a read. Where a word means another snapshot for each table, these are read one after the other."""
    if read.at not in (snapshot_words.PREVIOUS, snapshot_words.FIRST):
        return read.of(client, read.at)
    about = [leaf for leaf in _conjuncts(read.where) if leaf.get("column") in COLUMNS]
    places = snapshot_words.snapshots_at(client, about, str(read.at))
    parts = [read.of(client, at, *of_table(name)) for name, at in places.items()]
    schema = parts[0].schema
    rows = pa.RecordBatchReader.from_batches(schema, (batch for part in parts for batch in part))
    return rows if read.limit is None else rows.read_all().slice(0, read.limit).to_reader()


def _conjuncts(where: Any) -> list[Any]:
    """The conditions of a tree that are combined by AND."""
    if where is None:
        return []
    return list(where) if isinstance(where, list) else [where]
