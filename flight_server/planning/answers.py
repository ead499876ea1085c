"""Answers of queries by statistics alone: counts, minima and maxima that are known exactly, or why they are not.

A query with a condition is answered where every file that the plan of its scan keeps matches as a whole
(`planning/scan_plan.py`); then the counts and bounds of these files are those of the matching rows. A query without one
is answered by the record of the table too. Only what is labelled as exact counts: rows of this snapshot that are
PRUNING, known counts of nulls, and of the bounds the least one, which the file that has it must have as an exact bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flight_server.core.reads.stream import never
from flight_server.planning.answer_request import AnswerRequest, Item
from flight_server.planning.listings import Listing
from flight_server.planning.scan_plan import ScanPlanner
from flight_server.planning.scan_query import Query
from store.duckdb.database import Connection
from store.history.file_spans import listed_rows
from store.model.catalog_entries import TableEntry
from store.model.errors import NotCaptured
from store.model.freshness import CONTRADICTED, is_whole_sql, prunes_sql
from store.model.predicates.bounds import KEYS, kind_sql
from store.model.predicates.plain_conditions import Column

_AT_ONCE: Final = 32  # columns of a query, which DuckDB plans in the square of them
_SIDES = {"min": ("min", "low", "minimum"), "max": ("max", "high", "maximum")}


@dataclass(frozen=True)
class Answer:
    """The answer of a query.

    Attributes:
        columns: Ids of the columns that the query names.
        results: `name`, logical `type` and `value` (canonical text, a count as an integer, or None for null) of each
            item; None if statistics do not tell.
        reason: Why they do not; None if they do.
    """

    snapshot_id: int | None
    columns: tuple[int, ...]
    results: list[dict[str, Any]] | None
    reason: str | None


class _Unknown(Exception):
    """The reason why a value is not known."""


@dataclass(frozen=True)
class _Source:
    """Rows whose counts and bounds are those of the rows asked for.

    Attributes:
        kept: Query of `file_path`, `row_count`, `matches` (every row does) and `whole` (the count is of all rows).
        rows: Column id → FROM and WHERE clauses of the column's statistics `s`.
        on: Join of both, as `k` and `s`.
        what: Its rows, for messages.
    """

    kept: str
    parameters: Sequence[Any]
    rows: Callable[[int], str]
    on: str
    what: str


def answer(
    planner: ScanPlanner,
    table: TableEntry,
    request: AnswerRequest,
    snapshot: str | int,
    is_cancelled: Callable[[], bool] = never,
) -> Answer:
    """Answers a query by the statistics of a snapshot.

    Args:
        snapshot: "current" or an id.

    Raises:
        InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN; BAD_LITERAL: a literal cannot be read as its column's type.
        NotFound: UNKNOWN_SNAPSHOT.
    """
    try:
        return planner.listings.reading(
            table, snapshot, lambda cursor, listing: _answer(cursor, table, listing, request), is_cancelled
        )
    except NotCaptured as unknown:
        snapshot_id = snapshot if isinstance(snapshot, int) else table.current_snapshot_id
        return Answer(snapshot_id, (), None, unknown.message)


def _answer(cursor: Connection, table: TableEntry, listing: Listing, request: AnswerRequest) -> Answer:
    columns = {item.column: listing.columns.find(item.column) for item in request.items if item.column is not None}
    query = Query(cursor, table.table_key, listing, request.node)
    named = tuple(dict.fromkeys([*query.columns, *(column.id for column in columns.values())]))
    sources = [] if request.node is not None else [_of_table(table.table_key, listing)]
    reason = ""
    for source in [*sources, _of_files(table.table_key, listing, query)]:
        try:
            if source.what == "files":
                _check(listing)
            values = _values(cursor, source, request.items, columns)
            results = [_result(item, columns, value) for item, value in zip(request.items, values, strict=True)]
            return Answer(listing.snapshot_id, named, results, None)
        except _Unknown as unknown:
            reason = str(unknown)
    return Answer(listing.snapshot_id, named, None, reason)


def _result(item: Item, columns: Mapping[str, Column], value: Any) -> dict[str, Any]:
    type = "INT" if item.function == "count" or item.column is None else str(columns[item.column].type)
    return {"name": item.name, "type": type, "value": value}


def _check(listing: Listing) -> None:
    if listing.facts.merges_rows:
        raise _Unknown("readers merge the rows of several files")
    if not listing.whole:
        raise _Unknown("the number of the table's files is not known")


def _of_table(table_key: int, listing: Listing) -> _Source:
    where = f"s.table_key = {table_key} AND s.snapshot_id = {listing.snapshot_id}"
    kept = (
        "SELECT NULL::VARCHAR AS file_path, s.row_count, TRUE AS matches,"
        f" {is_whole_sql('s')} AND NOT {has_other_rows(table_key, listing)} AS whole"
        f" FROM stats_tables s WHERE {where} UNION ALL SELECT NULL, NULL, TRUE, FALSE"
        f" WHERE NOT EXISTS (FROM stats_tables s WHERE {where})"
    )
    return _Source(kept, (), lambda id: f"FROM stats_columns s WHERE {where} AND s.column_id = {id}", "TRUE", "records")


def has_other_rows(table_key: int, listing: Listing) -> str:
    """SQL that is true if data of the snapshot was found to have another number of rows than its metadata says."""
    where = f"table_key = {table_key} AND snapshot_id = {listing.snapshot_id}"
    doubted = f"{where} AND confidence_level = {CONTRADICTED}"
    count = f"(SELECT any_value(row_count) FROM stats_tables WHERE {where})"
    return (
        f"(EXISTS (FROM stats_tables WHERE {doubted})"
        f" OR EXISTS (FROM stats_columns WHERE {doubted} AND row_count IS DISTINCT FROM {count}))"
    )


def _of_files(table_key: int, listing: Listing, query: Query) -> _Source:
    matches, files, parameters = query.parts()
    whole = f"{is_whole_sql('f')} AND NOT {has_other_rows(table_key, listing)}"
    kept = f"SELECT f.file_path, f.row_count, {matches} AS matches, {whole} AS whole {files}"
    pos = listing.positions.get("stats.file_columns", -1)

    def rows(column_id: int) -> str:
        return listed_rows("stats.file_columns", table_key, pos, f"s.column_id = {column_id}")

    return _Source(kept, parameters, rows, "s.file_path = k.file_path", "files")


def _values(cursor: Connection, source: _Source, items: Sequence[Item], columns: Mapping[str, Column]) -> list[Any]:
    """The values of the items; raises `_Unknown` for the first that is not known."""
    named = list({column.id: column for column in columns.values()}.values())
    kept, of_columns = {}, {}  # type: dict[str, int], dict[int, Any]
    for start in range(0, max(1, len(named)), _AT_ONCE):
        some = named[start : start + _AT_ONCE]
        facts = "".join(f", {_facts(column, source)}" for column in some)
        sums = "".join(f", (FROM f{column.id})" for column in some)
        (row,) = cursor.execute(
            f"WITH kept AS MATERIALIZED ({source.kept}){facts} SELECT (SELECT {{'files': count(*),"
            " 'some': count(*) FILTER (NOT matches), 'unknown': count(*) FILTER (NOT whole OR row_count IS NULL),"
            f" 'rows': coalesce(sum(row_count), 0)}} FROM kept){sums}",
            list(source.parameters),
        ).fetchall()
        kept = row[0]
        of_columns |= zip((column.id for column in some), row[1:], strict=True)

    def need(count: int, what: str) -> None:
        if count:
            raise _Unknown(f"{count} of {kept['files']} {source.what} {what}")

    need(kept["some"], "have rows that may not match, as far as is known")
    need(kept["unknown"], "have no exact count of rows")
    values: list[Any] = []
    for item in items:
        if item.column is None:
            values.append(kept["rows"])
            continue
        column, found = columns[item.column], of_columns[columns[item.column].id]
        need(found["unknown"], f"have no exact statistics of {column.name}")
        if item.function == "count":
            need(found["no_nulls"], f"have no count of the nulls of {column.name}")
            values.append(found["values"])
            continue
        side, key, word = _SIDES[item.function]
        if column.type is None or column.type.kind not in KEYS:
            raise _Unknown(f"{column.name} has no order that statistics know")
        need(found["nans"], f"have a NaN in {column.name}, which readers order differently")
        need(found[f"no_{key}"], f"have no {word} of {column.name}")
        if found[side] is not None and not found[f"{key}_is_exact"]:
            raise _Unknown(f"the {word} of {column.name} is not exact: {found[side][:100]}")
        values.append(found[side])
    return values


def _facts(column: Column, source: _Source) -> str:
    """Common table expressions `c<id>`, the statistics of the kept rows with values, and `f<id>`, their sums."""
    known = f"{prunes_sql('s')} AND s.row_count = k.row_count"
    low = high = "NULL"
    if column.type is not None and column.type.kind in KEYS:
        known += f" AND {kind_sql(column.type.kind, 's.logical_type')}"
        low, high = (KEYS[column.type.kind].sql.format(f"s.{side}") for side in ("min", "max"))
    c = f"c{column.id}"
    sides = ", ".join(
        f"'no_{key}': count(*) FILTER ({key} IS NULL AND coalesce(null_count < row_count, TRUE)),"
        f" '{side}': arg_{side}(\"{side}\", {key}),"
        f" '{key}_is_exact': bool_or({key} = (SELECT {side}({key}) FROM {c}) AND coalesce({side}_is_exact, FALSE))"
        for side, key, _ in _SIDES.values()
    )
    return (
        f"{c} AS MATERIALIZED (SELECT k.row_count, coalesce({known}, FALSE) AS known, s.null_count, s.nan_count,"
        f' s."min", s."max", s.min_is_exact, s.max_is_exact, {low} AS low, {high} AS high FROM kept k'
        f" LEFT JOIN (SELECT s.* {source.rows(column.id)}) s ON {source.on} WHERE k.row_count <> 0),"
        f" f{column.id} AS (SELECT {{'unknown': count(*) FILTER (NOT known),"
        " 'no_nulls': count(*) FILTER (null_count IS NULL), 'nans': count(*) FILTER (nan_count > 0),"
        f" 'values': coalesce(sum(row_count - null_count), 0), {sides}}} FROM {c})"
    )
