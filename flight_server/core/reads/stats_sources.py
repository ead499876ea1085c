"""The sources of the stored `stats.*` flights: for each kind of scope, SQL of the applicable rows and their freshness.

SQL text consists of constants of this file, column names of the schema, and what the catalog says of a single table;
values of a request are parameters.
`s` is the row, `t` its table.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.reads.scope import FlightSource, ReadScope, limited_to, pins_of
from store.duckdb.arrow_sql import quoted
from store.duckdb.layout import (
    BY_SNAPSHOT,
    BY_SPAN,
    GROUPED,
    SPAN,
    STORED,
    parts,
    record_columns,
    stored_columns,
)
from store.history.spans import holds_sql, schema_sql
from store.model.columns import COUNTS, DERIVED, DISTRIBUTION
from store.model.flight import Flight
from store.model.freshness import (
    EXACT,
    INHERITED,
    PLANNING,
    STALE,
    USABLE_COLUMNS,
    distribution_freshness_sql,
    freshness_sql,
    group_rank_sql,
    has_sql,
    held_arrow,
    held_sql,
    oldest_sql,
    rank_sql,
    stored_freshness_sql,
    usable_for_arrow,
    usable_for_sql,
)
from store.model.puts import IDENTITY
from store.model.schemas import FLIGHTS
from store.model.sketches import is_partial_sql
from store.model.statistics import PER_VALUE

_NOT_DROPPED: Final = "s.table_key NOT IN (SELECT table_key FROM tables WHERE dropped)"
_SKETCHES: Final = "stats.sketches"
_JOIN_TABLES: Final = " JOIN tables t ON t.table_key = s.table_key"
TABLE_COLUMNS: Final = {name: f't."{name}"' for name in ("table_catalog", "table_schema", "table_name", "table_id")}


def stats_source(flight: Flight, scope: ReadScope, used: Set[str] | None = None) -> FlightSource:
    """The source of a stored `stats.*` flight, with the freshness of each row for the scope.

    Args:
        flight: A flight of `STORED`.
        used: The columns used by the query; None for all.
    """
    source = _stats_source(flight, scope, None if scope.overdue else used)
    source = _without_trust(source, scope) if scope.failing else source
    return _without_exactness(source, scope) if scope.overdue else source


def _without_exactness(source: FlightSource, scope: ReadScope) -> FlightSource:
    """The source with EXACT rows of tables that may have changed since the last look as INHERITED: what they would be
    if there was a newer snapshot."""
    overdue = f"s.table_key IN ({', '.join(map(str, sorted(scope.overdue)))})"
    columns = {
        name: f"CASE WHEN {overdue} AND {sql} = '{EXACT}' THEN '{INHERITED}' ELSE {sql} END"
        for name, sql in source.columns.items()
        if name in ("freshness", "distribution_freshness")
    }
    if (usable := source.columns.get("usable_for")) is not None:
        columns["usable_for"] = f"CASE WHEN {overdue} THEN '{PLANNING}' ELSE {usable} END"
    source.columns = dict(source.columns) | columns
    return source


def _without_trust(source: FlightSource, scope: ReadScope) -> FlightSource:
    """The source with the current rows of tables that cannot be inspected or read as STALE."""
    failing = f"s.table_key IN ({', '.join(map(str, sorted(scope.failing)))})"
    if not (scope.allow_stale or scope.is_stored):
        source.where = f"({source.where}) AND NOT {failing}"
        return source
    labels = {"freshness": STALE, "usable_for": PLANNING, "distribution_freshness": STALE}
    source.columns = dict(source.columns) | {
        name: f"CASE WHEN {failing} AND {sql} IS NOT NULL THEN '{labels[name]}' ELSE {sql} END"
        for name, sql in source.columns.items()
        if name in labels
    }
    return source


def _stats_source(flight: Flight, scope: ReadScope, used: Set[str] | None) -> FlightSource:
    name = flight.name
    if name == _SKETCHES:
        return _sketches(flight, scope)
    if scope.is_stored or not scope.allow_stale:
        return _plain(flight, scope, used)
    inner, parameters = (_by_snapshot if name in BY_SNAPSHOT else _by_span)(name, scope)
    source = _named(flight, inner, parameters, scope)
    source.columns = dict(source.columns) | {
        "usable_for": usable_for_sql(f"s.freshness = '{EXACT}'", "s", flight.schema.names)
    }
    if name in GROUPED:
        source.columns |= _INHERITED_DISTRIBUTION
    source.order = _order(name, "s")
    return source


# Distributions, which may be another record's than the counts.


def _exactness(is_exact: str) -> str:
    return f"CASE WHEN s.ndv_exact THEN {is_exact} ELSE s.ndv_exact END"


_OWN: Final = f"s.distribution_freshness = '{EXACT}'"
_MOST: Final = "s.row_count - coalesce(s.null_count, 0)"
_INHERITED_DISTRIBUTION: Final = {"ndv_exact": _exactness(_OWN)} | {
    name: f"CASE WHEN NOT ({_OWN}) AND s.{name} > {_MOST} THEN {_MOST} ELSE s.{name} END" for name in PER_VALUE
}
"""SQL of the columns of a distribution that may be inherited: then it is not exact, and has no more distinct values
than there are values in the row `s`."""


def _order(name: str, with_snapshot: str) -> str:
    return ", ".join(["s.table_key", f"{with_snapshot}.snapshot_id", *(f's."{column}"' for column in IDENTITY[name])])


LABELS: Final = frozenset({*DERIVED, "distribution_freshness", "ndv_exact"})
"""The columns that depend on whether a row's snapshot is the requested one."""
_OF_TABLE: Final = frozenset(TABLE_COLUMNS)
IN_PARTS: Final = tuple(name for name in BY_SNAPSHOT if name != _SKETCHES)
"""The flights whose rows are those of their two tables; `stats.sketches` has those of files besides."""
_SPANNED: Final = ("table_key", "snapshot_id", *SPAN)  # read from both tables of a flight besides its own columns


def _plain(flight: Flight, scope: ReadScope, used: Set[str] | None) -> FlightSource:
    """A source without ranking: all stored records, or the rows that hold at the requested snapshots. It has no
    subquery but these snapshots, and only the joins that the used columns need."""
    parameters: list[Any] = []
    base, at, requested = _plain_rows(flight.name, scope, parameters, used)
    columns = {name: f's."{name}"' for name in flight.schema.names} | {"snapshot_id": f"{at}.snapshot_id"}
    columns |= _stored_labels(flight, at) if scope.is_stored else _labels(flight, at, requested)
    needed = {*LABELS, "distribution_snapshot_id"} if requested.startswith("t.") else set[str]()
    needed |= _OF_TABLE if scope.only is None else set()
    columns |= _table_columns(scope)
    conditions = (limited_to("s", scope, parameters), _seen(scope))
    join = _JOIN_TABLES if used is None or used & needed else ""
    where = " AND ".join(condition for condition in conditions if condition != "true") or "true"
    order = _order(flight.name, at)
    return FlightSource(base + join, parameters, columns, order, where, pins_of(scope), base)


def _plain_rows(name: str, scope: ReadScope, parameters: list[Any], used: Set[str] | None) -> tuple[str, str, str]:
    """The FROM clause of the rows `s` of a stored flight, whose parameters are appended; the alias that has their
    snapshot ids; and SQL of the id of the requested snapshot."""
    current = "t.current_snapshot_id" if scope.snapshot is None else str(int(scope.snapshot))
    base, at = f"{STORED[name]} s", "s"
    if name in BY_SPAN:
        at = "c"
        base += (
            f" JOIN file_snapshots c ON c.family = '{name}' AND c.table_key = s.table_key"
            " AND c.pos >= s.from_pos AND c.pos < s.to_pos"
        )
    elif scope.current:
        return f"{parts(name)[0]} s", at, current
    elif not scope.is_stored:
        named = used and {*IDENTITY[name], *used, *(label_columns(FLIGHTS[name]) if used & LABELS else ())}
        given = [f'"{column}"' for column in stored_columns(name) if named is None or column in named]
        given += [*_SPANNED, *(["distribution_snapshot_id"] if name in GROUPED else [])]
        base = " UNION ALL ".join(f"SELECT {', '.join(given)} FROM {table}" for table in parts(name))
        base = f"({base}) s"
    if scope.is_stored:
        return base, at, "t.current_snapshot_id"
    base += _requested(scope, parameters, f"a.table_key = {at}.table_key AND {holds_sql(at, 'a')}")
    return base, at, "a.snapshot_id" if scope.snapshot is None else current


def _labels(flight: Flight, at: str, requested: str) -> dict[str, str]:
    """SQL of the labels of rows that hold at a requested snapshot, and of what depends on them.

    Args:
        at: Alias that has the row's snapshot id.
        requested: SQL of the requested one.
    """
    is_exact = f"{at}.snapshot_id = {requested}"
    columns = {
        "freshness": held_sql(is_exact),
        "usable_for": usable_for_sql(is_exact, "s", flight.schema.names),
    }
    if flight.name in GROUPED:
        is_exact = f"s.distribution_snapshot_id = {requested}"
        columns["distribution_freshness"] = held_sql(is_exact, "s.distribution_snapshot_id IS NOT NULL")
        columns["ndv_exact"] = _exactness(is_exact)
    return columns


def current_sql(flight: Flight) -> str:
    """SQL of the current rows of one table in a flight of `IN_PARTS`, with its columns but those of `TABLE_COLUMNS`;
    instants are microseconds. Parameters: the table's key, and the id of its current snapshot."""
    sql = {name: f's."{name}"' for name in flight.schema.names} | _labels(flight, "s", "$2::BIGINT")
    shown = (
        f"epoch_us({sql[field.name]})" if pa.types.is_timestamp(field.type) else sql[field.name]
        for field in flight.schema
        if field.name not in TABLE_COLUMNS
    )
    order = (
        f" ORDER BY {_order(flight.name, 's')}" if flight.name == "stats.column_groups" else ""
    )  # Arrow sorts no lists
    return f"SELECT {', '.join(shown)} FROM {parts(flight.name)[0]} s WHERE s.table_key = $1::BIGINT{order}"


def with_labels(rows: pa.Table, requested: pa.Array | int) -> pa.Table:
    """Adds `LABELS` to rows of a flight of `IN_PARTS`, in Arrow, as `_labels` computes them.

    Args:
        rows: The rows with the columns `label_columns`.
        requested: Id of the requested snapshot of the table of each row (int64), or of all.
    """
    is_exact = pc.equal(rows["snapshot_id"], requested)
    label = held_arrow(is_exact)
    labels = {"freshness": label, "usable_for": usable_for_arrow(label, rows)}
    if "ndv_exact" in rows.column_names:
        has_exact = pc.equal(rows["distribution_snapshot_id"], requested)
        labels["distribution_freshness"] = held_arrow(has_exact, pc.is_valid(has_exact))
        labels["ndv_exact"] = pc.if_else(rows["ndv_exact"], has_exact, rows["ndv_exact"])
        rows = rows.drop_columns(["ndv_exact"])
    for name, values in labels.items():
        rows = rows.append_column(name, values)
    return rows


def label_columns(flight: Flight) -> list[str]:
    """The stored columns of a flight of `IN_PARTS` that `with_labels` needs."""
    names = ["snapshot_id", *(name for name in USABLE_COLUMNS if name in flight.schema.names)]
    return [*names, *(["distribution_snapshot_id", "ndv_exact"] if flight.name in GROUPED else [])]


def _stored_labels(flight: Flight, at: str) -> dict[str, str]:
    """SQL of the labels of records that are read without a requested snapshot; see `_labels`."""
    label = stored_freshness_sql(f"{at}.snapshot_id", "t.current_snapshot_id")
    columns = {
        "freshness": label,
        "usable_for": usable_for_sql(f"{label} = '{EXACT}'", "s", flight.schema.names),
    }
    if flight.name in GROUPED:
        has = has_sql("s", DISTRIBUTION)
        own = {"distribution_snapshot_id": "s.snapshot_id", "distribution_freshness": label}
        columns |= {name: f"CASE WHEN {has} THEN {sql} END" for name, sql in own.items()}
    return columns


def _named(flight: Flight, inner: str, parameters: list[Any], scope: ReadScope) -> FlightSource:
    """The rows `s` of a subquery with the names of their tables."""
    columns = {name: f's."{name}"' for name in flight.schema.names}
    columns |= _table_columns(scope)
    base = f"({inner}) s"
    join = _JOIN_TABLES if scope.only is None else ""
    return FlightSource(base + join, parameters, columns, "", _seen(scope), pins_of(scope), base)


def _table_columns(scope: ReadScope) -> dict[str, str]:
    """SQL of the columns that name the table: constants if the scope has only one, which saves a join."""
    only = scope.only
    return TABLE_COLUMNS if only is None else {name: quoted(getattr(only, name)) for name in TABLE_COLUMNS}


def _seen(scope: ReadScope) -> str:
    """SQL of the condition that the table of `s` is not dropped; a single table is not."""
    return _NOT_DROPPED if scope.any_dropped and scope.only is None else "true"


def _requested(scope: ReadScope, parameters: list[Any], condition: str) -> str:
    """SQL of a join with `a`, the rows of `snapshots` that are requested, by a condition; appends its parameters."""
    condition = f"{limited_to('a', scope, parameters)} AND {condition}"
    if scope.snapshot is not None:
        return f" JOIN snapshots a ON a.snapshot_id = {int(scope.snapshot)} AND {condition}"
    pins, snapshot = ("tables", "current_snapshot_id") if scope.current else ("pins", "snapshot_id")
    same = f"a.table_key = p.table_key AND a.snapshot_id = p.{snapshot}"
    return f" JOIN ({pins} p JOIN snapshots a ON {same}) ON {condition}"


# Ranking of versions, for readers that allow STALE rows.


def _choice(row: str, own_hash: str) -> tuple[str, str, str, str]:
    """SQL of the freshness, of that of a distribution with a limit of age, of the condition that the row applies, and
    of the order with the best row first.

    Args:
        row: Alias of the row; that of its snapshot is `n`, that of the requested one `a`, that of `oldest_sql` `b`.
        own_hash: SQL of the row's own schema hash.
    """
    words = row, schema_sql(own_hash, "n"), "n.ordinal", "a"
    label = freshness_sql(*words)
    return label, distribution_freshness_sql(*words, "b.oldest"), f"({label}) IS NOT NULL", rank_sql(*words)


def _best_rows(name: str, scope: ReadScope, parameters: list[Any], records: str) -> str:
    """SQL of the best applicable row of each target, with its freshness; appends its parameters. Rows of `GROUPED` have
    the best distribution, with its labels. `records` is the table of the rows."""
    own_hash = "r.schema_hash" if "schema_hash" in stored_columns(name) else "NULL"
    label, of_limited, valid, best = _choice("r", own_hash)
    of_distribution, limits = label, ""
    requested = _requested(scope, parameters, "a.table_key = r.table_key")
    if scope.is_limited and name != "stats.tables":
        of_distribution = of_limited
        before = _requested(scope, parameters, "a.table_key = k.table_key AND a.ordinal >= k.ordinal")
        limits = f" LEFT JOIN {oldest_sql(before)} b ON b.table_key = r.table_key"
    if name == _SKETCHES:  # a distribution
        label = of_distribution
    by = ", ".join(["r.table_key", *(f'r."{column}"' for column in IDENTITY[name])])
    rows = (
        f" FROM {records} r{requested} JOIN snapshots n ON n.table_key = r.table_key AND n.snapshot_id = r.snapshot_id"
        f"{limits} WHERE {limited_to('r', scope, parameters)} AND {valid}"
        f" QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY "
    )
    if name not in GROUPED:
        if name == _SKETCHES:
            best = group_rank_sql(label, f"NOT {is_partial_sql('r')}", best)
        return f"SELECT r.*, {label} AS freshness{rows}{best}) = 1"
    has = f"({has_sql('r', DISTRIBUTION)} AND ({of_distribution}) IS NOT NULL)"
    fields = ", ".join(f"{column} := r.{column}" for column in DISTRIBUTION)
    fields += f", snapshot_id := r.snapshot_id, label := {of_distribution}"
    order = f"NOT {has}, {group_rank_sql(of_distribution, 'r.ndv IS NOT NULL', best)}"
    values = ", ".join(f"d.{column} AS {column}" for column in DISTRIBUTION)
    return (
        f"SELECT * EXCLUDE (d) REPLACE ({values}), d.snapshot_id AS distribution_snapshot_id,"
        f" d.label AS distribution_freshness FROM (SELECT r.*, {label} AS freshness,"
        f" first_value(CASE WHEN {has} THEN struct_pack({fields}) END) OVER (PARTITION BY {by} ORDER BY {order}) AS d"
        f"{rows}{group_rank_sql(label, has_sql('r', COUNTS), best)}) = 1)"
    )


def _by_snapshot(name: str, scope: ReadScope) -> tuple[str, list[Any]]:
    """SQL of the best rows at requested snapshots. Current rows that lack no group of statistics are the best ones of
    their targets, so that only other targets are ranked."""
    parameters: list[Any] = []
    if not scope.current:
        return _best_rows(name, scope, parameters, BY_SNAPSHOT[name]), parameters
    (at, older), is_exact = parts(name), "r.snapshot_id = t.current_snapshot_id"
    whole, labels = "TRUE", {"freshness": held_sql(is_exact)}
    records = f"(SELECT {record_columns(name)} FROM {older} WHERE NOT is_copy)"
    if name in GROUPED:
        whole, is_exact = "r.distribution_snapshot_id IS NOT NULL", "r.distribution_snapshot_id = t.current_snapshot_id"
        records, labels["distribution_snapshot_id"] = BY_SNAPSHOT[name], "r.distribution_snapshot_id"
        labels["distribution_freshness"] = held_sql(is_exact)
    columns = ["r.table_key", "r.snapshot_id", *(f'r."{column}"' for column in stored_columns(name))]
    columns += [f"{sql} AS {label}" for label, sql in labels.items()]
    current = (
        f"SELECT {', '.join(columns)} FROM {at} r JOIN tables t ON t.table_key = r.table_key"
        f" WHERE {whole} AND {limited_to('r', scope, parameters)}"
    )
    same = " AND ".join(["c.table_key = r.table_key", *(f'c."{column}" = r."{column}"' for column in IDENTITY[name])])
    other = f"(FROM {records} r WHERE NOT EXISTS (FROM {at} c WHERE {whole.replace('r.', 'c.')} AND {same}))"
    return f"{current} UNION ALL BY NAME ({_best_rows(name, scope, parameters, other)})", parameters


def _by_span(name: str, scope: ReadScope) -> tuple[str, list[Any]]:
    """SQL of the rows of files in the best listing for the requested snapshot."""
    parameters: list[Any] = []
    label, _, valid, best = _choice("f", "NULL")
    listings = (
        f"SELECT f.table_key, f.snapshot_id, f.pos, {label} AS freshness"
        f" FROM file_snapshots f{_requested(scope, parameters, 'a.table_key = f.table_key')}"
        " JOIN snapshots n ON n.table_key = f.table_key AND n.snapshot_id = f.snapshot_id"
        f" WHERE f.family = '{name}' AND {valid}"
        f" QUALIFY row_number() OVER (PARTITION BY f.table_key ORDER BY {best}) = 1"
    )
    condition = limited_to("r", scope, parameters)
    columns = ", ".join(f'r."{column}"' for column in stored_columns(name))
    return (
        f"SELECT r.table_key, c.snapshot_id, c.freshness, {columns} FROM {BY_SPAN[name]} r JOIN ({listings}) c"
        " ON c.table_key = r.table_key AND c.pos >= r.from_pos AND c.pos < r.to_pos"
        f" WHERE {condition}",
        parameters,
    )


def _sketches(flight: Flight, scope: ReadScope) -> FlightSource:
    """Sketches of all targets: those stored by snapshot, and those of files."""
    selects, parameters = [], []  # type: list[str], list[Any]
    for family in (_SKETCHES, "file_sketches"):
        if scope.is_stored or not scope.allow_stale:
            inner, own = _plain_sketches(family, scope)
        else:
            inner, own = (_by_snapshot if family in BY_SNAPSHOT else _by_span)(family, scope)
        names = ", ".join(f'"{name}"' for name in stored_columns(family))
        selects.append(f"SELECT table_key, snapshot_id, freshness, {names} FROM ({inner})")
        parameters += own
    source = _named(flight, " UNION ALL ".join(selects), parameters, scope)
    source.order = "s.table_key, s.snapshot_id, s.target_kind = 'FILE' DESC, s.storage_id, s.column_id, s.role"
    return source


def _plain_sketches(family: str, scope: ReadScope) -> tuple[str, list[Any]]:
    """SQL of all stored sketches of a family, or of those that hold at the requested snapshots, with their
    freshness."""
    parameters: list[Any] = []
    base, at, requested = _plain_rows(family, scope, parameters, None)
    own = f"{at}.snapshot_id"
    label = stored_freshness_sql(own, requested) if scope.is_stored else held_sql(f"{own} = {requested}")
    join = _JOIN_TABLES if requested.startswith("t.") else ""
    columns = ", ".join(f's."{name}"' for name in stored_columns(family))
    return (
        f"SELECT s.table_key, {at}.snapshot_id, {label} AS freshness, {columns} FROM {base}{join}"
        f" WHERE {limited_to('s', scope, parameters)}",
        parameters,
    )
