"""The tools for agents: what each takes, and what it tells. They only read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from flight_server.client import StatsClient
from flight_server.client.table_names import full_name
from flight_server.core.views import catalog_summary, relationships, table_summary
from flight_server.core.views import history as histories
from flight_server.core.views.reader import Forwarding, rows_of
from flight_server.faces.mcp.values import WITHHELD, told, without_values
from flight_server.insight import rules
from flight_server.insight.evaluate import check
from flight_server.planning import answer_request
from store.model.errors import InvalidArgument, Unimplemented
from store.model.names import is_pattern, matcher
from store.model.statistics import SCALARS
from store.model.structs import Struct, Table, Text, read

MOST_ROWS: Final = 200  # tables, or joins, of one answer


class OnlyReads(Forwarding):
    """A reader of statistics that has no column of a table read: that would be work for a worker."""

    def unique(self, table: str, column_id: int, snapshot: str | int) -> bool:
        """Refuses to read a column.

        Raises:
            Unimplemented: Always.
        """
        raise Unimplemented(f"agents have no column read: #{column_id} of {table} at {snapshot}")


@dataclass(frozen=True)
class Desk:
    """What a call of a tool has at hand.

    Attributes:
        client: Reads with the permissions of the agent's token.
        values: True if values of the data are told.
    """

    client: StatsClient
    values: bool

    @property
    def reader(self) -> OnlyReads:
        """The reader of statistics."""
        return OnlyReads(self.client)

    @property
    def note(self) -> dict[str, str]:
        """Says that values are withheld, if they are."""
        return {} if self.values else {"withheld": WITHHELD}


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        arguments: The struct of its arguments.
        run: What it tells, an object of JSON once `render.plain` has made it one.
    """

    name: str
    description: str
    arguments: type[Struct]
    run: Callable[[Desk, Any], dict[str, Any]]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        described = msgspec.json.schema(self.arguments, schema_hook=lambda _: {"type": "string"})
        schema: dict[str, Any] = described["$defs"][self.arguments.__name__]
        return schema

    def call(self, desk: Desk, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the arguments and runs the tool.

        Raises:
            InvalidArgument: They are not those of its schema.
            StatflightError, pa.ArrowException, flight.FlightError: What is asked for cannot be told.
        """
        return self.run(desk, read(dict(arguments), self.arguments, "the arguments"))


_TABLE = Annotated[Table, Meta(description="Full name: catalog.schema.table. find_tables lists them.")]
_PATTERN = Annotated[
    str | None, Meta(description="Part of a name, or a pattern such as 'lake.sales.*'; all tables when absent.")
]


class _Find(Struct):
    pattern: _PATTERN = None


class _Describe(Struct):
    table: _TABLE


class _Estimate(Struct):
    table: _TABLE
    where: Annotated[str | None, Meta(description="An SQL condition, such as \"day >= '2026-01-01' AND id = 5\".")] = (
        None
    )
    columns: Annotated[list[Text] | None, Meta(description="Names of the columns to read; all when absent.")] = None


class _Answer(Struct):
    sql: Annotated[
        Text,
        Meta(description="SELECT count(*), count(a), min(a), max(a) FROM catalog.schema.table WHERE condition"),
    ]


class _Check(Struct):
    table: _TABLE
    rules: Annotated[
        list[Text],
        Meta(
            min_length=1,
            description="Rules such as 'row_count >= 1000', 'id: distinct_fraction = 1' or 'name: null_fraction < 1%'.",
        ),
    ]


class _History(Struct):
    table: _TABLE
    column: Annotated[Text, Meta(description="Name of a column.")]


def _matches(pattern: str | None) -> Callable[[str], bool]:
    """The test of full names that a pattern stands for: a pattern of names, or a part of one in any case."""
    if not pattern:
        return lambda _: True
    if is_pattern(pattern):
        fits = matcher((pattern,))
        return lambda name: bool(fits.fullmatch(name))
    return lambda name: pattern.casefold() in name.casefold()


def _cut(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first rows under a name, and how many are left out."""
    left_out = len(rows) - MOST_ROWS
    return {name: list(rows[:MOST_ROWS])} | ({"left_out": left_out} if left_out > 0 else {})


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what is unknown or empty."""
    return {name: value for name, value in row.items() if value not in (None, [], "")}


_OF_TABLE: Final = (
    *("format", "row_count", "data_file_count", "total_size_bytes", "snapshot_id"),
    *("freshness", "completeness", "captured_at", "state", "last_error", "owner"),
)
_ABOUT: Final = ("format", "location", "partition_keys", "description", "owner", "tags", "notes", "last_error")
_OF_COLUMN: Final = (
    *("column_name", "logical_type", "freshness", "snapshot_id"),
    *(each.name for each in SCALARS),
)


def find_tables(desk: Desk, asked: _Find) -> dict[str, Any]:
    """The tables that a pattern matches, with their sizes and how fresh their statistics are."""
    fits = _matches(asked.pattern)
    rows = [row for row in catalog_summary.rows(desk.reader) if fits(full_name(row))]
    return _cut("tables", [{"table": full_name(row)} | _known({name: row[name] for name in _OF_TABLE}) for row in rows])


def describe_table(desk: Desk, asked: _Describe) -> dict[str, Any]:
    """The statistics of a table and each of its columns."""
    reader, name = desk.reader, str(asked.table)
    summary = table_summary.gather(reader, name, "current", allow_stale=True, shapes=desk.values)
    about = next(iter(rows_of(reader, "sys.tables", name)), {})
    comments = {row["column_id"]: row["comment"] for row in rows_of(reader, "sys.columns", name)}
    lacking = [row["column_name"] for row in table_summary.uncaptured(reader, summary)]
    table = {} if summary.table is None else {key: summary.table.get(key) for key in _OF_TABLE}
    columns = []
    for row in summary.rows:
        column = {key: row.get(key) for key in _OF_COLUMN} | {"comment": comments.get(row["column_id"])}
        columns.append(_known(column | _shape(summary, row["column_id"]) if desk.values else without_values(column)))
    return (
        {"table": name}
        | _known({key: about.get(key) for key in _ABOUT} | {key: value for key, value in table.items() if value})
        | {"columns": columns}
        | ({"not_read": "quantiles and common values, for the columns are too many"} if summary.is_wide else {})
        | _known({"columns_not_captured": lacking, "remark": table_summary.remark(reader, name)})
        | desk.note
    )


def _shape(summary: table_summary.TableSummary, column_id: int) -> dict[str, Any]:
    """The quantiles and common values of a column."""
    quantiles = summary.quantiles.get(column_id, {})
    common = summary.common_values.get(column_id, [])
    return {
        "quantiles": {str(rank): value for rank, value in quantiles.items()} or None,
        "common_values": [{"value": row["value"], "count": row["count"]} for row in common] or None,
    }


def find_joins(desk: Desk, asked: _Find) -> dict[str, Any]:
    """The foreign keys of and to the tables that a pattern matches, declared or told by the values."""
    return _cut("joins", list(map(_known, relationships.among(desk.reader, _matches(asked.pattern)))))


def estimate(desk: Desk, asked: _Estimate) -> dict[str, Any]:
    """What a condition leaves of a table."""
    return desk.client.estimate(str(asked.table), asked.where, columns=asked.columns)


def answer(desk: Desk, asked: _Answer) -> dict[str, Any]:
    """The answer of a query that statistics know exactly, or why they do not."""
    items = answer_request.of_sql(asked.sql).items
    (found,) = desk.client.act("answer", {"sql": asked.sql})
    if desk.values or not found["exact"]:
        return dict(found)
    counts = {item.name for item in items if item.function == "count"}
    results = [result if result["name"] in counts else {"name": result["name"]} for result in found["results"]]
    return found | {"results": results} | ({} if len(counts) == len(items) else desk.note)


def check_rules(desk: Desk, asked: _Check) -> dict[str, Any]:
    """Whether rules hold: passed, failed or unknown."""
    parsed = [rules.parse(text) for text in asked.rules]
    by_text = {rule.text: rule for rule in parsed}
    name = str(asked.table)
    table_summary.require(desk.reader, name)
    results = check(desk.reader, name, parsed, rules.PREVIOUS)
    return {"table": name, "results": [_known(told(one, by_text, values=desk.values)) for one in results]}


def history(desk: Desk, asked: _History) -> dict[str, Any]:
    """A column's statistics at each captured snapshot."""
    rows = histories.column_rows(desk.reader, str(asked.table), asked.column)
    if not rows:
        raise InvalidArgument(f'nothing is captured of "{asked.column}"')
    shown = ["committed_at", *_OF_COLUMN]
    told_rows = [_known({key: row.get(key) for key in shown}) for row in rows]
    snapshots = told_rows if desk.values else list(map(without_values, told_rows))
    return {"table": str(asked.table), "column": asked.column, "snapshots": snapshots} | desk.note


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool(
            "find_tables",
            "Find tables of the connected lakes by name, with rows, files, bytes, and how fresh their statistics are.",
            _Find,
            find_tables,
        ),
        Tool(
            "describe_table",
            "Describe a table: its columns with types, nulls, distinct values, and how far each number can be trusted"
            " (EXACT: of the current snapshot; INHERITED or STALE: of an earlier one).",
            _Describe,
            describe_table,
        ),
        Tool(
            "find_joins",
            "Find columns by which tables join: declared foreign keys, and those that the values tell.",
            _Find,
            find_joins,
        ),
        Tool(
            "estimate",
            "Estimate what a query reads and returns before it runs: files, bytes, rows and distinct values that a"
            " condition leaves. low and high of row_count are certain.",
            _Estimate,
            estimate,
        ),
        Tool(
            "answer",
            "Answer count, min and max of a table exactly, without reading it; says so where that is not possible.",
            _Answer,
            answer,
        ),
        Tool(
            "check",
            "Check rules about the data of a table: each is PASSED, FAILED or UNKNOWN by what the statistics know.",
            _Check,
            check_rules,
        ),
        Tool(
            "history",
            "Show how a column's statistics changed over the captured snapshots of its table, oldest first.",
            _History,
            history,
        ),
    )
}
