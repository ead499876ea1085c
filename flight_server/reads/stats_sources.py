"""The sources of the stored `stats.*` flights: for each kind of scope, SQL of the applicable rows and their freshness.

SQL text consists of constants of this file and column names of the schema; values of a request are parameters.
`s` is the row, `t` its table.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

from flight_server.reads.scope import FlightSource, ReadScope, limited_to, pins_of
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, GROUPED, PARTED, STORED, parts, stored_columns
from store.model.catalog_entries import TableEntry
from store.model.freshness import (
    EXACT,
    PLANNING,
    STALE,
    distribution_freshness_sql,
    freshness_sql,
    group_rank_sql,
    has_sql,
    oldest_sql,
    rank_sql,
    stored_freshness_sql,
    usable_for_sql,
)
from store.model.schemas import COUNTS, DISTRIBUTION, Flight
from store.stats_store import IDENTITY

_NOT_DROPPED: Final = "s.table_key NOT IN (SELECT table_key FROM tables WHERE dropped)"
TABLE_COLUMNS: Final = {name: f't."{name}"' for name in ("table_catalog", "table_schema", "table_name", "table_id")}


def stats_source(flight: Flight, scope: ReadScope, used: Set[str] | None = None) -> FlightSource:
    """The source of a stored `stats.*` flight, with the freshness of each row for the scope.

    Args:
        flight: A flight of `STORED`.
        scope: The tables and snapshots.
        used: The columns used by the query; a caller that gives them must apply the source's `names`. None for all.
    """
    source = _stats_source(flight, scope, used)
    return _without_trust(source, scope) if scope.failing else source


def _without_trust(source: FlightSource, scope: ReadScope) -> FlightSource:
    """The source with the current rows of tables that cannot be inspected or read as STALE."""
    failing = f"s.table_key IN ({', '.join(map(str, sorted(scope.failing)))})"
    if not scope.allow_stale:
        source.where = f"({source.where}) AND NOT {failing}"
        return source
    labels = {"freshness": STALE, "usable_for": PLANNING, "distribution_freshness": STALE}
    source.columns = dict(source.columns) | {
        name: f"CASE WHEN {failing} AND {sql} IS NOT NULL THEN '{labels[name]}' ELSE {sql} END"
        for name, sql in source.columns.items() if name in labels
    }  # fmt: skip
    return source


def _stats_source(flight: Flight, scope: ReadScope, used: Set[str] | None) -> FlightSource:
    name = flight.name
    if name == "stats.sketches":
        return _sketches(flight, scope)
    if scope.current and name in PARTED and not (scope.allow_stale and name in GROUPED):
        return _plain(flight, scope, used, f"{parts(name)[0]} s", labelled=True)
    if scope.is_stored or (scope.current and name not in GROUPED):
        return _plain(flight, scope, used, f"{STORED[name]} s", labelled=False)
    inner, parameters = (_by_snapshot if name in BY_SNAPSHOT else _by_span)(name, scope)
    source = _named(flight, inner, parameters, scope)
    source.columns = dict(source.columns) | {"usable_for": usable_for_sql("s.freshness", "s", flight.schema.names)}
    if name in GROUPED:
        source.columns |= _inherited_distribution("s.distribution_freshness")
    source.order = _order(name, "s")
    return source


# Distributions, which may be another record's than the counts.


def _inherited_distribution(label: str) -> dict[str, str]:
    """SQL of the columns of a distribution that may be inherited: then it is not exact, and has no more distinct values
    than there are values in the row `s`.

    Args:
        label: SQL of its freshness.
    """
    most = "s.row_count - coalesce(s.null_count, 0)"
    columns = {"ndv_exact": _exactness(label)}
    for name in ("ndv", "ndv_lower", "ndv_upper"):
        columns[name] = f"CASE WHEN {label} <> '{EXACT}' AND s.{name} > {most} THEN {most} ELSE s.{name} END"
    return columns


def _exactness(label: str) -> str:
    return f"CASE WHEN s.ndv_exact THEN {label} = '{EXACT}' ELSE s.ndv_exact END"


def _own_distribution(label: str) -> dict[str, str]:
    """SQL of the labels of a record's own distribution; `label` is SQL of the record's freshness."""
    has = has_sql("s", DISTRIBUTION)
    own = {"distribution_snapshot_id": "s.snapshot_id", "distribution_freshness": label}
    return {name: f"CASE WHEN {has} THEN {sql} END" for name, sql in own.items()}


def _order(name: str, with_snapshot: str) -> str:
    return ", ".join(["s.table_key", f"{with_snapshot}.snapshot_id", *(f's."{column}"' for column in IDENTITY[name])])


def _plain(flight: Flight, scope: ReadScope, used: Set[str] | None, base: str, *, labelled: bool) -> FlightSource:
    """A source without ranking: all stored rows, or current ones (`labelled` if the table has their labels). It has no
    subquery, and only the joins that the used columns need."""
    parameters: list[Any] = []
    conditions, at = [], "s"
    if flight.name in BY_SPAN:
        at = "c"
        base += (
            f" JOIN file_snapshots c ON c.family = '{flight.name}' AND c.table_key = s.table_key"
            " AND c.pos >= s.from_pos AND c.pos < s.to_pos"
        )
    if scope.current:
        conditions.append(f"{at}.freshness IS NOT NULL" if scope.allow_stale else f"{at}.freshness <> 'STALE'")
    columns = {name: f's."{name}"' for name in flight.schema.names} | {"snapshot_id": f"{at}.snapshot_id"}
    only = scope.only if used is not None else None
    current, names, join = "t.current_snapshot_id", (), ""  # type: str, tuple[str, ...], str
    labels = {"freshness", "usable_for", "distribution_freshness"} if not scope.current else set()
    if only is not None:
        current = _current_id(only)
        columns |= {name: f":t{number}" for number, name in enumerate(TABLE_COLUMNS)}
        names = (only.table_catalog, only.table_schema, only.table_name, only.table_id)
        conditions.append(f"s.table_key = {int(only.table_key)}")
    else:
        conditions.append(limited_to("s", scope, parameters))
        if scope.any_dropped:
            conditions.append(_NOT_DROPPED)
        if used is None or used & {*TABLE_COLUMNS, *labels}:
            join = " JOIN tables t ON t.table_key = s.table_key"
            columns |= TABLE_COLUMNS
    if not labelled:
        label = f"{at}.freshness" if scope.current else stored_freshness_sql(f"{at}.snapshot_id", current)
        columns |= {"freshness": label, "usable_for": usable_for_sql(label, "s", flight.schema.names)}
    if flight.name in GROUPED:
        exact = {"ndv_exact": _exactness("s.distribution_freshness")}
        columns |= exact if labelled else _own_distribution(columns["freshness"])
    where = " AND ".join(condition for condition in conditions if condition != "true") or "true"
    order = _order(flight.name, at)
    return FlightSource(base + join, parameters, columns, order, where, names=names, base=base if join else "")


def _current_id(table: TableEntry) -> str:
    return "NULL" if table.current_snapshot_id is None else str(int(table.current_snapshot_id))


def _named(flight: Flight, inner: str, parameters: list[Any], scope: ReadScope) -> FlightSource:
    """The rows `s` of a subquery with the names of their tables."""
    columns = {name: f's."{name}"' for name in flight.schema.names}
    if (only := scope.only) is None:
        base, where = f"({inner}) s", _NOT_DROPPED if scope.any_dropped else "true"
        sql = f"{base} JOIN tables t ON t.table_key = s.table_key"
        return FlightSource(sql, parameters, columns | TABLE_COLUMNS, where=where, arrow=pins_of(scope), base=base)
    names = ", ".join(f'?::VARCHAR AS "{name}"' for name in TABLE_COLUMNS)
    values = [only.table_catalog, only.table_schema, only.table_name, only.table_id]
    return FlightSource(f"(SELECT *, {names} FROM ({inner})) s", values + parameters, columns, arrow=pins_of(scope))


# Ranking of versions: for pinned snapshots, and for sketches.


def _requested(scope: ReadScope) -> str:
    """Subquery: table_key, snapshot_id, ordinal, schema_hash of the requested snapshot of each table."""
    columns = "n.table_key, n.snapshot_id, n.ordinal, n.schema_hash"
    if scope.current:
        return (
            f"(SELECT {columns} FROM tables p JOIN snapshots n ON n.table_key = p.table_key"
            " AND n.snapshot_id = p.current_snapshot_id)"
        )
    if scope.snapshot is not None:
        return f"(SELECT {columns} FROM snapshots n WHERE n.snapshot_id = {int(scope.snapshot)})"
    joined = "n.table_key = p.table_key AND n.snapshot_id = p.snapshot_id"
    return f"(SELECT {columns} FROM pins p JOIN snapshots n ON {joined})"


def _choice(row: str, hash_: str, scope: ReadScope) -> tuple[str, str, str]:
    """SQL of the freshness, of the condition that the row applies, and of the order with the best row first."""
    label = freshness_sql(row, hash_, "n.ordinal", "a")
    return label, _valid(label, scope), rank_sql(row, hash_, "n.ordinal", "a")


def _valid(label: str, scope: ReadScope) -> str:
    """SQL of the condition that a row of this freshness applies."""
    return f"({label}) IS NOT NULL" if scope.allow_stale else f"({label}) <> 'STALE'"


def _hash(name: str, row: str) -> str:
    return f"coalesce({row}.schema_hash, n.schema_hash)" if "schema_hash" in stored_columns(name) else "n.schema_hash"


def _best_rows(name: str, scope: ReadScope, condition: str) -> str:
    """SQL of the best applicable row of each target, with its freshness; `condition` (on `r`) selects the tables. Rows
    of `GROUPED` have the best distribution, with its labels."""
    label, valid, best = _choice("r", _hash(name, "r"), scope)
    of_distribution, limits = label, ""
    if scope.is_limited and name != "stats.tables":
        of_distribution = distribution_freshness_sql(label, "n.ordinal", "b.oldest")
        limits = f" LEFT JOIN {oldest_sql(_requested(scope))} b ON b.table_key = r.table_key"
    if name not in PARTED:  # sketches
        label, valid = of_distribution, _valid(of_distribution, scope)
    by = ", ".join(["r.table_key", *(f'r."{column}"' for column in IDENTITY[name])])
    rows = (
        f" FROM {BY_SNAPSHOT[name]} r JOIN {_requested(scope)} a"
        " ON a.table_key = r.table_key JOIN snapshots n ON n.table_key = r.table_key AND n.snapshot_id = r.snapshot_id"
        f"{limits} WHERE {condition} AND {valid} QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY "
    )
    if name not in GROUPED:
        return f"SELECT r.*, {label} AS freshness{rows}{best}) = 1"
    has = f"({has_sql('r', DISTRIBUTION)} AND {_valid(of_distribution, scope)})"
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
    """SQL of the rows at requested snapshots. A plain filter for tables that have a record of every target at exactly
    that snapshot; only the versions of other tables are ranked."""
    parameters: list[Any] = []
    if name not in PARTED or scope.only is not None or scope.current:
        return _best_rows(name, scope, limited_to("r", scope, parameters)), parameters
    among = limited_to("r", scope, parameters)
    if scope.snapshot is not None:
        requested, exact = "", f"r.snapshot_id = {int(scope.snapshot)}"  # by which DuckDB skips row groups
    else:
        requested, exact = "JOIN pins p ON p.table_key = r.table_key AND p.snapshot_id = r.snapshot_id", "true"
    view, whole = BY_SNAPSHOT[name], "r.*, 'EXACT' AS freshness"
    if name in GROUPED:
        whole += ", r.snapshot_id AS distribution_snapshot_id, 'EXACT' AS distribution_freshness"
    if scope.lacking is not None:
        rest = f"({', '.join(map(str, scope.lacking))})"
        rows = f"SELECT {whole} FROM {view} r WHERE {exact} AND {among}"
        if scope.lacking:
            chosen = _best_rows(name, scope, f"r.table_key IN {rest} AND {limited_to('r', scope, parameters)}")
            rows += f" AND r.table_key NOT IN {rest} UNION ALL {chosen}"
        return rows, parameters
    lacking = lacking_sql(name, scope, requested, exact)
    inherited = _best_rows(name, scope, "r.table_key IN (SELECT table_key FROM lacking)")
    return (
        f"WITH lacking AS MATERIALIZED ({lacking})"
        f" SELECT {whole} FROM {view} r {requested} WHERE {exact}"
        f" AND {among} AND r.table_key NOT IN (SELECT table_key FROM lacking) UNION ALL"
        f" SELECT * FROM ({inherited}) r WHERE {limited_to('r', scope, parameters)}",
        parameters,
    )


def lacking_sql(name: str, scope: ReadScope, requested: str, exact: str) -> str:
    """SQL of the keys of tables that may inherit records at a requested snapshot. A table with as many records at an
    older snapshot as it has current ones cannot inherit any there; of the flights of `GROUPED` records with both groups
    are counted.

    Args:
        name: A flight of `PARTED`.
        scope: A scope with `snapshot` or `pins`.
        requested: A join that restricts rows `r` to the requested snapshots; may be empty.
        exact: A condition on `r` that does; may be `true`.
    """
    if name in GROUPED:
        exact += f" AND r.ndv IS NOT NULL AND {has_sql('r', COUNTS)}"
    return (
        f"SELECT a.table_key FROM {_requested(scope)} a JOIN tables x ON x.table_key = a.table_key"
        " LEFT JOIN snapshots c ON c.table_key = x.table_key AND c.snapshot_id = x.current_snapshot_id"
        f" LEFT JOIN (SELECT r.table_key, count(*) AS size FROM {BY_SNAPSHOT[name]} r {requested} WHERE {exact}"
        " GROUP BY ALL) e ON e.table_key = a.table_key"
        f" LEFT JOIN (SELECT table_key, count(*) AS size FROM {parts(name)[0]} GROUP BY ALL) k"
        " ON k.table_key = a.table_key WHERE c.ordinal IS NULL OR a.ordinal > c.ordinal"
        " OR coalesce(e.size, 0) <> coalesce(k.size, 0)"
    )


def _by_span(name: str, scope: ReadScope) -> tuple[str, list[Any]]:
    """SQL of the rows of files: of all listings, or of the one that applies to the requested snapshot."""
    parameters: list[Any] = []
    listings = f"SELECT f.table_key, f.snapshot_id, f.pos, f.freshness FROM file_snapshots f WHERE f.family = '{name}'"
    if scope.current:
        fresh = "IS NOT NULL" if scope.allow_stale else "<> 'STALE'"
        listings += f" AND f.freshness {fresh}"
    elif scope.is_stored:
        listings += f" AND {limited_to('f', scope, parameters)}"
    else:
        label, valid, best = _choice("f", "n.schema_hash", scope)
        listings = (
            f"SELECT f.table_key, f.snapshot_id, f.pos, {label} AS freshness"
            f" FROM file_snapshots f JOIN {_requested(scope)} a ON a.table_key = f.table_key JOIN snapshots n"
            " ON n.table_key = f.table_key AND n.snapshot_id = f.snapshot_id"
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
    names = ", ".join(f'"{name}"' for name in stored_columns("stats.sketches"))
    selects, parameters = [], []  # type: list[str], list[Any]
    for family in ("stats.sketches", "file_sketches"):
        own: list[Any] = []
        if family == "file_sketches":
            inner, own = _by_span(family, scope)
        elif scope.is_stored:
            inner = f"SELECT *, NULL AS freshness FROM stats_sketches r WHERE {limited_to('r', scope, own)}"
        else:
            inner = _best_rows(family, scope, limited_to("r", scope, own))
        selects.append(f"SELECT table_key, snapshot_id, freshness, {names} FROM ({inner})")
        parameters += own
    source = _named(flight, " UNION ALL ".join(selects), parameters, scope)
    if scope.is_stored:
        current = "t.current_snapshot_id" if scope.only is None else _current_id(scope.only)
        source.columns = dict(source.columns) | {"freshness": stored_freshness_sql("s.snapshot_id", current)}
    source.order = "s.table_key, s.snapshot_id, s.target_kind = 'FILE' DESC, s.storage_id, s.column_id, s.role"
    return source
