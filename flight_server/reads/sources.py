"""The flights' sources: for each flight the FROM clause it is read from and the SQL of each of its columns.

SQL text is made of this file's own words and the schema's own column names; whatever a caller says is a parameter.
`s` is the row, `t` its table; `freshness` is a column of `s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from store.catalog_store import TableEntry
from store.database import BY_SNAPSHOT, BY_SPAN, STORED, stored_columns
from store.freshness import freshness_sql, rank_sql, stored_freshness_sql, usable_for_sql
from store.schemas import FLIGHTS, Flight
from store.stats_store import IDENTITY


@dataclass(frozen=True)
class Scope:
    """Which tables a read is about, and at which snapshot of each.

    `keys` limits the tables (None = all). `pins` are table key → snapshot asked for; None reads every stored row.
    `only` is the one table of a scope that is about no other: what is known of it need not be looked up. `lone` says
    that its only rows are those of the snapshot it is pinned to.
    """

    keys: Sequence[int] | None = None
    pins: Mapping[int, int] | None = None
    allow_stale: bool = False
    only: TableEntry | None = None
    lone: bool = False


@dataclass
class Source:
    """Something to select from. `columns` maps a flight's column to its SQL; `order` is for small, scoped reads."""

    sql: str
    parameters: list[Any] = field(default_factory=list)
    columns: Mapping[str, str] = field(default_factory=dict)
    order: str = ""
    where: str = "true"
    arrow: Mapping[str, pa.Table] = field(default_factory=dict)  # tables the SQL names
    names: tuple[str, ...] = ()  # of the one table: what `:t0` … `:t3` stand for in the SQL of columns


TABLE_COLUMNS: Final = {name: f't."{name}"' for name in ("table_catalog", "table_schema", "table_name", "table_id")}


def stats_source(flight: Flight, scope: Scope, used: Set[str] | None = None) -> Source:
    """The rows of a stored `stats.*` flight, each with its freshness for what the scope asks.

    `used` are the columns that the query speaks of; it has to heed the source's `where` and `names` then.
    """
    if flight.name == "stats.sketches":
        return _sketches(flight, scope)
    if scope.pins is None or scope.lone:
        return _stored(flight, scope, used)
    inner, parameters = (_by_snapshot if flight.name in BY_SNAPSHOT else _by_span)(flight.name, scope)
    sql, parameters, columns = _with_names(flight, inner, parameters, scope)
    columns["usable_for"] = usable_for_sql("s.freshness", "s", flight.schema.names)
    return Source(sql, parameters, columns, _order(flight.name, "s"))


def _order(name: str, with_snapshot: str) -> str:
    return ", ".join(["s.table_key", f"{with_snapshot}.snapshot_id", *(f's."{column}"' for column in IDENTITY[name])])


def _stored(flight: Flight, scope: Scope, used: Set[str] | None) -> Source:
    """All stored rows, without a subquery and with no more joins than the columns need."""
    parameters: list[Any] = []
    sql, at, where = f"{STORED[flight.name]} s", "s", "true"
    if flight.name in BY_SPAN:
        at = "c"
        sql += (
            f" JOIN file_snapshots c ON c.family = '{flight.name}' AND c.table_key = s.table_key"
            " AND c.pos >= s.from_pos AND c.pos < s.to_pos"
        )
    columns = {name: f's."{name}"' for name in flight.schema.names} | {"snapshot_id": f"{at}.snapshot_id"}
    only = scope.only if used is not None else None
    current = "t.current_snapshot_id"
    names: tuple[str, ...] = ()
    if only is not None:
        current = "NULL" if only.current_snapshot_id is None else str(int(only.current_snapshot_id))
        columns |= {name: f":t{number}" for number, name in enumerate(TABLE_COLUMNS)}
        names = (only.table_catalog, only.table_schema, only.table_name, only.table_id)
        where = f"s.table_key = {int(only.table_key)}"
    elif used is None or used & {*TABLE_COLUMNS, "freshness", "usable_for"}:
        sql += f" JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped AND {_keys('s', scope, parameters)}"
        columns |= TABLE_COLUMNS
    else:
        sql += " ANTI JOIN (SELECT table_key FROM tables WHERE dropped) t ON t.table_key = s.table_key"
        where = _keys("s", scope, parameters)
    freshness = stored_freshness_sql(f"{at}.snapshot_id", current)
    if scope.lone:
        freshness = "'EXACT'"
    columns |= {"freshness": freshness, "usable_for": usable_for_sql(freshness, "s", flight.schema.names)}
    return Source(sql, parameters, columns, _order(flight.name, at), where, names=names)


def _with_names(
    flight: Flight, inner: str, parameters: list[Any], scope: Scope
) -> tuple[str, list[Any], dict[str, str]]:
    """FROM clause, parameters and columns of rows `s` with the names of their tables."""
    columns = {name: f's."{name}"' for name in flight.schema.names}
    if (only := scope.only) is None:
        sql = f"({inner}) s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped"
        return sql, parameters, columns | TABLE_COLUMNS
    names = ", ".join(f'?::VARCHAR AS "{name}"' for name in TABLE_COLUMNS)
    told = [only.table_catalog, only.table_schema, only.table_name, only.table_id]
    return f"(SELECT *, {names} FROM ({inner})) s", told + parameters, columns


def _stored_label(row: str, scope: Scope) -> tuple[str, str]:
    """Freshness of stored rows, and the join it needs."""
    current, join = "x.current_snapshot_id", f"JOIN tables x ON x.table_key = {row}.table_key"
    if scope.only is not None:
        known = scope.only.current_snapshot_id
        current, join = "NULL" if known is None else str(int(known)), ""
    return stored_freshness_sql(f"{row}.snapshot_id", current), join


def _keys(alias: str, scope: Scope, parameters: list[Any]) -> str:
    """A condition on table keys; an integer list, so that DuckDB skips row groups by it."""
    keys = scope.keys
    if scope.pins is not None:
        pinned = scope.pins.keys()
        keys = list(pinned) if keys is None else [key for key in keys if key in pinned]
    if keys is None:
        return "true"
    if len(keys) <= 16:
        return f"{alias}.table_key IN ({', '.join(str(int(key)) for key in keys)})" if keys else "false"
    parameters.append(list(keys))
    return f"{alias}.table_key IN (SELECT unnest(?::BIGINT[]))"


def _asked(scope: Scope, parameters: list[Any]) -> str:
    """Subquery: table_key, snapshot_id, ordinal, schema_hash of the snapshot asked for of each table."""
    assert scope.pins is not None
    parameters += [list(scope.pins.keys()), list(scope.pins.values())]
    return (
        "(SELECT n.table_key, n.snapshot_id, n.ordinal, n.schema_hash FROM"
        " (SELECT unnest(?::BIGINT[]) AS table_key, unnest(?::BIGINT[]) AS snapshot_id) p"
        " JOIN snapshots n ON n.table_key = p.table_key AND n.snapshot_id = p.snapshot_id)"
    )


_HASH: Final = "coalesce({row}.schema_hash, n.schema_hash)"
# never a newer one; of another schema only where stale answers are allowed
_VALID: Final = "({row}.snapshot_id = a.snapshot_id OR (n.ordinal < a.ordinal AND ({hash} = a.schema_hash OR {stale})))"


def _by_snapshot(name: str, scope: Scope) -> tuple[str, list[Any]]:
    table, parameters = BY_SNAPSHOT[name], []  # type: str, list[Any]
    if scope.pins is None:
        condition = _keys("r", scope, parameters)
        label, join = _stored_label("r", scope)
        return f"SELECT r.*, {label} AS freshness FROM {table} r {join} WHERE {condition}", parameters
    row_hash = _HASH.format(row="r") if "schema_hash" in stored_columns(name) else "n.schema_hash"
    asked = _asked(scope, parameters)
    condition = _keys("r", scope, parameters)
    stale = "true" if scope.allow_stale else "false"
    identity = "".join(f', r."{column}"' for column in IDENTITY[name])
    label = freshness_sql("r", row_hash, "n.ordinal", "a")
    best = "ORDER BY " + rank_sql("r", row_hash, "n.ordinal", "a")
    return (
        f"SELECT r.*, {label} AS freshness FROM {table} r JOIN {asked} a"
        " ON a.table_key = r.table_key JOIN snapshots n ON n.table_key = r.table_key AND n.snapshot_id = r.snapshot_id"
        f" WHERE {condition} AND {_VALID.format(row='r', hash=row_hash, stale=stale)}"
        f" QUALIFY row_number() OVER (PARTITION BY r.table_key{identity} {best}) = 1",
        parameters,
    )


def _by_span(name: str, scope: Scope) -> tuple[str, list[Any]]:
    """Rows of files: of every listing, or of the one listing that answers for the snapshot asked for."""
    table, parameters = BY_SPAN[name], []  # type: str, list[Any]
    if scope.pins is None:
        label, join = _stored_label("f", scope)
        listings = (
            f"SELECT f.table_key, f.snapshot_id, f.pos, {label} AS freshness FROM file_snapshots f {join}"
            f" WHERE f.family = '{name}' AND {_keys('f', scope, parameters)}"
        )
    else:
        asked = _asked(scope, parameters)
        stale = "true" if scope.allow_stale else "false"
        hash_ = "n.schema_hash"
        label, best = (each("f", hash_, "n.ordinal", "a") for each in (freshness_sql, rank_sql))
        listings = (
            f"SELECT f.table_key, f.snapshot_id, f.pos, {label} AS freshness"
            f" FROM file_snapshots f JOIN {asked} a ON a.table_key = f.table_key JOIN snapshots n"
            " ON n.table_key = f.table_key AND n.snapshot_id = f.snapshot_id"
            f" WHERE f.family = '{name}' AND {_VALID.format(row='f', hash=hash_, stale=stale)}"
            f" QUALIFY row_number() OVER (PARTITION BY f.table_key ORDER BY {best}) = 1"
        )
    condition = _keys("r", scope, parameters)
    columns = ", ".join(f'r."{column}"' for column in stored_columns(name))
    return (
        f"SELECT r.table_key, c.snapshot_id, c.freshness, {columns} FROM {table} r JOIN ({listings}) c"
        " ON c.table_key = r.table_key AND c.pos >= r.from_pos AND c.pos < r.to_pos"
        f" WHERE {condition}",
        parameters,
    )


def _sketches(flight: Flight, scope: Scope) -> Source:
    """Sketches of columns, expressions and groups, and those of files, as one."""
    stored = list(stored_columns("stats.sketches"))
    parts, parameters = [], []  # type: list[str], list[Any]
    names = ", ".join(f'"{name}"' for name in stored)
    for inner, own in (_by_snapshot("stats.sketches", scope), _by_span("file_sketches", scope)):
        parts.append(f"SELECT table_key, snapshot_id, {names} FROM ({inner})")
        parameters += own
    sql, parameters, columns = _with_names(flight, " UNION ALL ".join(parts), parameters, scope)
    order = "s.table_key, s.snapshot_id, s.target_kind = 'FILE' DESC, s.storage_id, s.column_id, s.role"
    return Source(sql, parameters, columns, order)


# information_schema and sys: everything else that DuckDB holds.

_CONSTRAINT_NAME: Final = {
    "constraint_catalog": "t.table_catalog", "constraint_schema": "t.table_schema", "constraint_name": "s.name",
}  # fmt: skip
_NAMES: Final = {name: f"t.{name}" for name in ("table_catalog", "table_schema", "table_name")}
_CONSTRAINTS: Final = "table_constraints s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped AND {scope}"


def _plain(sql: str, columns: Mapping[str, str], order: str = "") -> Callable[[Scope], Source]:
    """A source that names `{scope}`, the condition on table keys, once."""

    def source(scope: Scope) -> Source:
        parameters: list[Any] = []
        return Source(sql.replace("{scope}", _keys("t", scope, parameters)), parameters, columns, order)

    return source


def _snapshots(scope: Scope) -> Source:
    parameters: list[Any] = []
    captured = " UNION ".join(
        f"SELECT table_key, snapshot_id FROM {table} c WHERE {_keys('c', scope, parameters)}"
        for table in ("stats_tables", "stats_columns", "stats_expressions", "stats_column_groups", "file_snapshots")
    )
    condition = _keys("t", scope, parameters)
    sql = (
        f"snapshots s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped LEFT JOIN ({captured}) c"
        " ON c.table_key = s.table_key AND c.snapshot_id = s.snapshot_id"
    )
    columns = TABLE_COLUMNS | {name: f's."{name}"' for name in FLIGHTS["sys.snapshots"].schema.names
                                if name not in TABLE_COLUMNS}  # fmt: skip
    columns["is_current"] = "(s.snapshot_id = t.current_snapshot_id)"
    columns["captured"] = "(c.snapshot_id IS NOT NULL)"
    where = f"{condition} AND (s.is_live OR c.snapshot_id IS NOT NULL)"
    return Source(sql, parameters, columns, "s.table_key, s.ordinal", where)


def _tables(scope: Scope) -> Source:
    parameters: list[Any] = []
    columns = _NAMES | {name: f"t.{name}" for name in FLIGHTS["sys.tables"].schema.names}
    columns["snapshot_id"] = "t.current_snapshot_id"
    return Source("tables t", parameters, columns, "t.table_key", f"NOT t.dropped AND {_keys('t', scope, parameters)}")


def _publications(scope: Scope) -> Source:
    """The newest publications; STALE once the table is at another snapshot than theirs or the one that they made."""
    parameters: list[Any] = []
    columns = TABLE_COLUMNS | {name: f's."{name}"' for name in FLIGHTS["sys.publications"].schema.names
                               if name not in TABLE_COLUMNS}  # fmt: skip
    columns["state"] = (
        "CASE WHEN s.state = 'CURRENT' AND s.snapshot_id IS DISTINCT FROM t.current_snapshot_id"
        " AND s.made_snapshot_id IS DISTINCT FROM t.current_snapshot_id THEN 'STALE'"
        " ELSE s.state END"
    )
    among = _keys("t", scope, parameters)
    sql = f"publications s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped AND {among}"
    return Source(sql, parameters, columns, "s.table_key, s.home")


def _own(flight: str, table: str, order: str, **changed: str) -> Callable[[Scope], Source]:
    """A flight whose columns are those of a table of the same shape, that names its table in columns of its own."""
    columns = {name: f's."{name}"' for name in FLIGHTS[flight].schema.names} | changed
    keyed = "table_name" in columns

    def source(scope: Scope) -> Source:
        parameters: list[Any] = []
        condition = _keys("s", scope, parameters) if keyed else "true"
        return Source(f"{table} s", parameters, columns, order, condition)

    return source


def _connectors(scope: Scope) -> Source:
    """The connectors of the scope's tables; all where it is not limited, those without tables too."""
    parameters: list[Any] = []
    condition = "true"
    if scope.keys is not None:
        condition = f"s.catalog IN (SELECT t.table_catalog FROM tables t WHERE {_keys('t', scope, parameters)})"
    columns = {name: f's."{name}"' for name in FLIGHTS["sys.connectors"].schema.names}
    return Source("connectors s", parameters, columns, "s.catalog", condition)


SOURCES: Final[dict[str, Callable[[Scope], Source]]] = {
    "information_schema.schemata": _plain(
        "(SELECT DISTINCT t.table_catalog, t.table_schema FROM tables t WHERE NOT t.dropped AND {scope}) s",
        {"catalog_name": "s.table_catalog", "schema_name": "s.table_schema"},
        "s.table_catalog, s.table_schema"),
    "information_schema.tables": _plain(
        "(SELECT * FROM tables t WHERE NOT t.dropped AND {scope}) t", _NAMES | {"table_type": "'BASE TABLE'"},
        "t.table_key"),
    "information_schema.columns": _plain(
        "table_columns s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped AND {scope}",
        _NAMES | {name: f"s.{name}" for name in ("column_name", "data_type", "ordinal_position", "is_nullable",
                                                 "column_id")}
        | {"column_path": "coalesce(s.column_path, CASE WHEN NOT contains(s.column_name, '.')"
                          " THEN [s.column_name] END)"},
        "t.table_key, s.ordinal_position"),
    "information_schema.table_constraints": _plain(
        "(SELECT DISTINCT table_key, kind, name FROM table_constraints) s JOIN tables t ON t.table_key = s.table_key"
        " AND NOT t.dropped AND {scope}",
        _CONSTRAINT_NAME | _NAMES | {"constraint_type": "s.kind", "is_deferrable": "'NO'",
                                     "initially_deferred": "'NO'", "enforced": "'NO'"}, "t.table_key, s.name"),
    "information_schema.key_column_usage": _plain(
        _CONSTRAINTS + " AND s.kind IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')",
        _CONSTRAINT_NAME | _NAMES | {"column_name": "s.column_name", "ordinal_position": "s.ordinal_position",
                                     "position_in_unique_constraint": "NULL::BIGINT"},
        "t.table_key, s.name, s.ordinal_position"),
    "information_schema.referential_constraints": _plain(
        _CONSTRAINTS + " AND s.kind = 'FOREIGN KEY'",
        _CONSTRAINT_NAME | dict.fromkeys(FLIGHTS["information_schema.referential_constraints"].schema.names[3:],
                                         "NULL::VARCHAR")),
    "information_schema.check_constraints": _plain(
        "(SELECT DISTINCT table_key, kind, name, clause FROM table_constraints) s JOIN tables t"
        " ON t.table_key = s.table_key AND NOT t.dropped AND {scope} AND s.kind = 'CHECK'",
        _CONSTRAINT_NAME | {"check_clause": "s.clause"}, "t.table_key, s.name"),
    "information_schema.constraint_column_usage": _plain(
        _CONSTRAINTS + " AND s.column_name IS NOT NULL", _NAMES | {"column_name": "s.column_name"} | _CONSTRAINT_NAME,
        "t.table_key, s.name, s.ordinal_position"),
    "information_schema.constraint_table_usage": _plain(
        "(SELECT DISTINCT table_key, kind, name FROM table_constraints) s JOIN tables t ON t.table_key = s.table_key"
        " AND NOT t.dropped AND {scope}", _NAMES | _CONSTRAINT_NAME, "t.table_key, s.name"),
    "sys.tables": _tables,
    "sys.publications": _publications,
    "sys.snapshots": _snapshots,
    "sys.capture_jobs": _own("sys.capture_jobs", "jobs", "s.queued_at, s.job_id"),
    "sys.capture_decisions": _own("sys.capture_decisions", "capture_decisions", "s.decided_at"),
    "sys.column_usage": _own("sys.column_usage", "column_usage", "s.table_key, s.column_name"),
    "sys.connectors": _connectors,
}  # fmt: skip
