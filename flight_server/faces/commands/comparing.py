"""Commands that compare snapshots: diff."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa

from flight_server.core.views import numbers, table_summary
from flight_server.core.views.reader import Reader
from flight_server.core.views.snapshot_words import CURRENT, FIRST, PREVIOUS, find, rows_of, snapshot_at
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions
from flight_server.faces.commands.output import (
    CommandError,
    misuse,
    say,
    say_left_out,
    tell_json,
    until_the_reader_leaves,
    warn,
)
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.reach import FLIGHTS_ALONE, Keep, reach
from flight_server.faces.commands.reading import FormatOption
from flight_server.faces.commands.targets import TableName, check_targets, find_table, snapshot_of
from flight_server.faces.present import render, text
from flight_server.faces.present.comparison import Change, changes
from flight_server.faces.present.render import Format
from flight_server.insight import evaluate, rules
from flight_server.insight.results import State
from store.model.errors import InvalidArgument
from store.model.statistics import PER_VALUE


def diff(
    table: TableName,
    snapshot_a: Annotated[
        str | None, argument(metavar="SNAP_A", help="An id, 'current', 'previous' or 'first'; 'previous' when absent.")
    ] = None,
    snapshot_b: Annotated[str | None, argument(metavar="SNAP_B", help="The same; 'current' when absent.")] = None,
    fail_on: Annotated[
        list[str] | None,
        option(metavar="RULE", help="Exit with 1 on such a change: 'row_count < -10%'. Repeatable."),
    ] = None,
    db: Keep = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Show the differences between two snapshots: rows, files, bytes, and each column's statistics."""
    targets, words = check_targets([table], paths=True), _pair(snapshot_a, snapshot_b)
    gates = _gates(fail_on or ())
    with reach(connection, targets, words, db, FLIGHTS_ALONE) as (client, (target,), failed):
        name = find_table(client, target)
        ids = [snapshot_at(client, name, word) for word in words]
        before, after = (table_summary.gather(client, name, at) for at in ids)
        are_one = _are_one(client, name, ids)
        known = before.known and after.known
        caught = evaluate.compare(client, gates, before, ids[0], after, ids[1]) if known else []
    for at, summary in zip(ids, (before, after), strict=True):
        if not summary.known:
            raise CommandError(
                f"{name}: nothing captured at snapshot {at}; run: statflight capture {name} --snapshot {at}"
            )
        _tell_inherited(at, summary)
    differences = changes(before, after)
    if not differences:
        say(_alike(name, words, ids, are_one))
    with until_the_reader_leaves():  # who reads less is told the status all the same
        _write(differences, format)
    caught = [result for result in caught if result.state is State.PASSED]
    for result in caught:
        warn(f"statflight: {result.column or 'table'}: {result.rule}: {result.detail or result.value}")
    if caught or failed:
        sys.exit(1)


def _are_one(reader: Reader, name: str, ids: Sequence[str | int]) -> bool:
    """True if both snapshots are one."""
    if CURRENT not in ids:
        return ids[0] == ids[1]
    current = find(rows_of(reader, name), CURRENT, captured=False)
    return all(at in (CURRENT, current) for at in ids)


def _alike(name: str, words: Sequence[str | int], ids: Sequence[str | int], are_one: bool) -> str:
    """The remark on two snapshots without a difference."""
    if not are_one:
        return f"{name}: the statistics of {ids[0]} and {ids[1]} are the same"
    one = f"{name}: {words[0]} and {words[1]} are one snapshot"
    if FIRST not in words:
        return one
    return f"{one}, for no earlier one is captured; run: statflight capture {name} --snapshot first"


def _pair(snapshot_a: str | None, snapshot_b: str | None) -> list[str | int]:
    """The snapshots that are compared: the previous and the current one unless both are given."""
    if snapshot_a is None:
        return [PREVIOUS, CURRENT]
    if snapshot_b is None:
        misuse(f"{snapshot_a}: name both snapshots, such as {snapshot_a} current, or none for previous and current")
    return [snapshot_of(snapshot_a), snapshot_of(snapshot_b)]


def _gates(texts: Sequence[str]) -> list[rules.Rule]:
    """Parses the rules of `--fail-on`."""
    try:
        return [rules.parse(text, of_change=True) for text in texts]
    except InvalidArgument as error:
        misuse(f"--fail-on: {error}")


def _write(differences: list[Change], format: Format) -> None:
    if format is Format.JSON:
        tell_json(render.plain(change.to_json()) for change in differences)
    elif format is not Format.TABLE:
        render.write(pa.Table.from_pylist(list(map(_row, differences)), _SCHEMA), format)
    elif differences:
        headers = ["of", "statistic", "before", "after", "change", "%"]
        lines = [[change.of, change.statistic, *_worded(change)] for change in differences]
        right = [False, False, True, True, True, True]
        if not all(change.certain for change in differences):
            headers, right = [*headers, "note"], [*right, False]
            for line, change in zip(lines, differences, strict=True):
                line.append("" if change.certain else "within the error")
        unsure = [place for place, change in enumerate(differences) if not change.certain]
        say_left_out(text.write_text(headers, lines, right=right, whole=("statistic",), spare=("change",), dim=unsure))


_SCHEMA = pa.schema(
    {
        "of": pa.string(),
        "statistic": pa.string(),
        "before": pa.string(),
        "after": pa.string(),
        "change": pa.float64(),
        "change_percent": pa.float64(),
        "certain": pa.bool_(),
    }
)


def _row(change: Change) -> dict[str, Any]:
    """A change with its values as text, in the form of the flights."""
    row = change.to_json()
    values = {name: str(render.plain(row[name])) for name in ("before", "after") if row[name] is not None}
    return row | values


def _worded(change: Change) -> tuple[str, str, str, str]:
    """Before, after, difference and percentage for people."""
    before, after, difference = change.before, change.after, change.change
    if change.statistic in PER_VALUE:  # an estimate of a count, which is whole everywhere
        before, after = (value if value is None else round(value) for value in (before, after))
        difference = None if before is None or after is None else after - before
    told = "" if difference is None else _number(difference, "+")
    return _number(before), _number(after), told, _percent(change.change_percent)


def _percent(share: float | None) -> str:
    """A change to three significant digits; `-100%` only if nothing is left."""
    if share is None:
        return ""
    if -100 < share < -99.95:
        return "<-99.9%"
    return f"{numbers.number(share, 3, sign='+')}%"


def _number(value: Any, sign: str = "") -> str:
    """A value; a number with few digits."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return numbers.number(value, sign=sign) if is_number else render.text_of(value)


def _tell_inherited(at: str | int, summary: table_summary.TableSummary) -> None:
    """Reports how many rows of a side are inherited: no difference means little if both sides show the same record."""
    rows = [*summary.rows, *([] if summary.table is None else [summary.table])]
    older = {row["snapshot_id"] for row in rows if row["freshness"] == "INHERITED"}
    if older:
        count = sum(row["snapshot_id"] in older for row in rows)
        of = ", ".join(map(str, sorted(older)))
        say(f"{summary.name}: at snapshot {at}, {count} of {len(rows)} records are inherited (from {of}), not its own")
