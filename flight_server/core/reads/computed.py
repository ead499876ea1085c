"""Flights that are computed rather than stored: histograms, most common values, quantiles, the server's own state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.auth.principal import Principal
from flight_server.core.reads.catalog_sources import SOURCES
from flight_server.core.reads.query import Queries
from flight_server.core.reads.scope import FlightSource, ReadScope
from flight_server.core.reads.stats_sources import stats_source
from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import query
from store.duckdb.database import Database
from store.duckdb.layout import STORED
from store.model import bounds, logical_types, sketches
from store.model.columns import KEY, OF_OTHERS, PROVENANCE
from store.model.errors import InvalidArgument
from store.model.figures import not_nan
from store.model.freshness import EXACT, PLANNING
from store.model.schemas import FLIGHTS
from store.model.statistics import COUNTED, SIDES

BUCKETS: Final = 32
COMMON: Final = 100
_WIDE: Final = Context(prec=128)  # digits of any decimal
RANKS: Final = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)  # of `stats.quantiles`


Rows = Sequence[Mapping[str, Any]]

MaySee: TypeAlias = Callable[[str, str, Callable[[str, str, str], bool]], bool]
"""A rule, the full name of its table, and which tables a caller sees → whether the caller may see its results."""


def register(
    queries: Queries,
    *,
    engines: Callable[[], Rows],
    functions: Callable[[], Rows],
    live_jobs: Callable[[], Rows],
    replication: Callable[[], Mapping[str, Any]],
    may_see: MaySee,
) -> None:
    """Registers the sources of computed flights.

    Args:
        live_jobs: Returns the rows of `sys.capture_jobs` that are in memory (synchronous work and leased jobs), each
            with a `table_key`, None for the inspection of a lake.
        replication: Returns the row of `sys.replication`.
        may_see: Tells whether a caller may see the results of a rule about other tables.
    """
    database = queries.database
    queries.arrow_sources |= {
        "stats.histograms": lambda scope: _expanded(database, scope, "stats.histograms", "QUANTILES", _buckets),
        "stats.most_common_values": lambda scope: _expanded(
            database, scope, "stats.most_common_values", "MCV", _common
        ),
        "stats.partitions": _partitions,
        "stats.quantiles": lambda scope: _expanded(database, scope, "stats.quantiles", "QUANTILES", _quantiles),
        "sys.relationships": lambda _: _table("sys.relationships", []),  # the part `insight` finds them
        "sys.engines": lambda _: _table("sys.engines", engines()),
        "sys.flights": lambda scope: _table("sys.flights", list(_flights(queries, scope))),
        "sys.functions": lambda _: _table("sys.functions", functions()),
        "sys.replication": lambda _: _table("sys.replication", [replication()]),
        "sys.connectors": lambda scope: _connectors(queries, scope),
        "sys.checks": lambda scope: _checks(queries, scope, may_see),
        "sys.capture_jobs": lambda scope: _jobs(scope, live_jobs),
    }


def _table(flight: str, rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, FLIGHTS[flight].schema)


def _checks(queries: Queries, scope: ReadScope, may_see: MaySee) -> FlightSource:
    """The results of checks, without those that may come from tables that the caller does not see."""
    source = SOURCES["sys.checks"](scope)
    if scope.caller is None:
        return source
    shown = shown_rules(queries.database, queries.catalog, scope.keys or (), scope.caller, may_see)
    is_shown = "EXISTS (FROM shown_rules r WHERE r.table_key = s.table_key AND r.rule = s.rule)"
    return replace(source, where=f"s.measure NOT IN {OF_OTHERS} OR {is_shown}", arrow={"shown_rules": shown})


def shown_rules(
    database: Database, catalog: Catalog, keys: Sequence[int], caller: Principal, may_see: MaySee
) -> pa.Table:
    """The rules (`table_key`, `rule`) of measures in OF_OTHERS whose results a caller may see.

    Args:
        keys: Keys of the tables.
    """
    rules = database.rows(
        "SELECT DISTINCT table_key, rule FROM checks WHERE list_contains(?::VARCHAR[], measure)"
        " AND table_key IN (SELECT unnest(?::BIGINT[]))",
        list(OF_OTHERS),
        list(keys),
    )
    seen = [(key, rule) for key, rule in rules if may_see(rule, catalog.by_key(key).full_name, caller.sees)]
    columns = {"table_key": [key for key, _ in seen], "rule": [rule for _, rule in seen]}
    return pa.table(columns, pa.schema([("table_key", pa.int64()), ("rule", pa.string())]))


def _connectors(queries: Queries, scope: ReadScope) -> FlightSource:
    """The connectors; without options, which may name any table of a lake, where the caller does not see all of it."""
    source = SOURCES["sys.connectors"](scope)
    if scope.caller is None:
        return source
    whole = pa.table({"catalog": pa.array(whole_lakes(queries.database, scope.caller), pa.string())})
    options = f"CASE WHEN s.catalog IN (SELECT catalog FROM whole_lakes) THEN {source.columns['options']} END"
    return replace(source, columns={**source.columns, "options": options}, arrow={"whole_lakes": whole})


def whole_lakes(database: Database, caller: Principal) -> list[str]:
    """The catalogs with a connector of which a caller sees all tables."""
    catalogs = [name for (name,) in database.rows("SELECT DISTINCT catalog FROM connectors")]
    return list(filter(caller.sees_catalog, catalogs))


def _jobs(scope: ReadScope, live: Callable[[], Rows]) -> FlightSource:
    """Jobs in memory and stored jobs; of a leased durable job the row in memory, which has its progress.

    Memory is read first, because work that ends in between is stored by then.
    """
    live_rows = [row for row in live() if scope.keys is None or row["table_key"] in scope.keys]
    stored, names = SOURCES["sys.capture_jobs"](scope), FLIGHTS["sys.capture_jobs"].schema.names
    chosen = ", ".join(f'{stored.columns[name]} AS "{name}"' for name in names)
    sql = (
        "(WITH live AS (SELECT * FROM live_jobs l WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.job_id = l.job_id"
        " AND j.state NOT IN ('RUNNING', 'CANCELLING')))"
        f" SELECT {chosen} FROM {stored.sql} WHERE {stored.where}"
        f" AND {stored.columns['job_id']} NOT IN (SELECT job_id FROM live)"
        " UNION ALL BY NAME SELECT * FROM live) s"
    )
    columns = {name: f's."{name}"' for name in names}
    arrow = {"live_jobs": _table("sys.capture_jobs", live_rows)}
    return FlightSource(sql, stored.parameters, columns, "s.queued_at, s.job_id", arrow=arrow)


_IS_DATA: Final = "coalesce(file_content, 'DATA') = 'DATA'"
_OF_PARTITION: Final = {
    "row_count": f"CASE WHEN bool_and(row_count IS NOT NULL) FILTER ({_IS_DATA}) IS DISTINCT FROM false"
    f" THEN TRY_CAST(coalesce(sum(row_count) FILTER ({_IS_DATA}), 0) AS BIGINT) END",
    "file_count": f"count(*) FILTER ({_IS_DATA})",
    "size_bytes": f"CASE WHEN bool_and(size_bytes IS NOT NULL) FILTER ({_IS_DATA}) IS DISTINCT FROM false"
    f" THEN TRY_CAST(coalesce(sum(size_bytes) FILTER ({_IS_DATA}), 0) AS BIGINT) END",
    "delete_file_count": f"count(*) FILTER (NOT {_IS_DATA})",
    "last_sequence_number": "max(sequence_number)",
    "completeness": "CASE WHEN bool_and(completeness = 'COMPLETE') THEN 'COMPLETE' ELSE 'PARTIAL' END",
    "captured_at": "max(captured_at)",
    "refreshed_at": "max(refreshed_at)",
    **{
        name: f"TRY_CAST(sum({name}) AS BIGINT)"
        for name in ("rows_scanned", "files_scanned", "row_groups_sampled", "bytes_scanned")
    },
}
"""SQL of a partition's columns over its files, null for a sum beyond 64 bits; of others, which all its files share, the
least."""


_OF_EMPTY_TABLE: Final = {
    "partition_data_json": "NULL::VARCHAR",
    "partition_spec_id": "NULL::INTEGER",
    "row_count": "0::BIGINT",
    "file_count": "0::BIGINT",
    "size_bytes": "0::BIGINT",
    "delete_file_count": "0::BIGINT",
    "last_sequence_number": "NULL::BIGINT",
}
"""SQL of the only row of a table without partitions and files; of other columns, that of its row of stats.tables."""


def _partitions(scope: ReadScope) -> FlightSource:
    files, names = stats_source(FLIGHTS["stats.files"], scope), FLIGHTS["stats.partitions"].schema.names
    chosen = ", ".join(f'{sql} AS "{name}"' for name, sql in files.columns.items())
    groups = [*KEY, "partition_data_json", "partition_spec_id"]
    values = ", ".join(
        f'"{name}"' if name in groups else f'{_OF_PARTITION.get(name, f"min({name})")} AS "{name}"' for name in names
    )
    empty = stats_source(FLIGHTS["stats.tables"], scope)
    of_table = ", ".join(f'{_OF_EMPTY_TABLE.get(name) or empty.columns[name]} AS "{name}"' for name in names)
    at = " AND f.snapshot_id = s.snapshot_id" if scope.is_stored else ""
    sql = (
        f"(WITH files AS (SELECT s.table_key, {chosen} FROM {files.sql} WHERE {files.where})"
        f" SELECT table_key, {values}"
        f" FROM files GROUP BY table_key, {', '.join(groups)} UNION ALL"
        f" SELECT s.table_key, {of_table} FROM {empty.sql} WHERE {empty.where} AND s.data_file_count = 0"
        f" AND NOT EXISTS (SELECT 1 FROM files f WHERE f.table_key = s.table_key{at}) AND NOT EXISTS (SELECT 1"
        " FROM tables p WHERE p.table_key = s.table_key AND len(p.partition_keys) > 0)) s"
    )
    order = "s.table_key, s.snapshot_id, s.partition_data_json, s.partition_spec_id"
    parameters, arrow = [*files.parameters, *empty.parameters], {**files.arrow, **empty.arrow}
    return FlightSource(sql, parameters, {name: f's."{name}"' for name in names}, order, arrow=arrow)


def _flights(queries: Queries, scope: ReadScope) -> Iterator[dict[str, Any]]:
    """A row for each flight; no row estimate in a limited scope, because it counts the rows of all tables."""
    for flight in FLIGHTS.values():
        estimate = queries.estimate(flight.name) if flight.name in STORED and scope.keys is None else None
        yield {
            "name": flight.name,
            "column_count": len(flight.schema),
            "row_estimate": estimate,
            "writable": flight.writable,
            "description": flight.description,
        }


# Sketches expanded into rows.


def _expanded(
    database: Database,
    scope: ReadScope,
    flight: str,
    role: str,
    rows_of: Callable[[Mapping[str, Any]], list[dict[str, Any]]],
) -> pa.Table:
    """One row per bucket, value or quantile of each column's sketch, with key and provenance of the column's record of
    the sketch's snapshot, and with the sketch's freshness."""
    columns = stats_source(FLIGHTS["stats.columns"], ReadScope(scope.keys, any_dropped=scope.any_dropped))
    stored = stats_source(FLIGHTS["stats.sketches"], scope)
    used = ("logical_type", *COUNTED, *SIDES)  # by `rows_of`
    names = (*KEY, *PROVENANCE, "column_id", "column_name", *used)
    chosen = ", ".join(f'{columns.columns[name]} AS "{name}"' for name in names)
    records = f"SELECT s.table_key, {chosen} FROM {columns.sql} WHERE {columns.where}"
    label = f"{stored.columns['freshness']} AS label"
    sql = (
        f"SELECT c.*, k.data, k.params, k.label FROM ({records}) c"
        f" JOIN (SELECT s.table_key, s.snapshot_id, s.column_id, s.data, s.params, {label}"
        f" FROM {stored.sql} WHERE ({stored.where}) AND s.role = ? AND s.target_kind = 'COLUMN') k"
        " ON k.table_key = c.table_key AND k.snapshot_id = c.snapshot_id AND k.column_id = c.column_id"
        " ORDER BY c.table_key, c.snapshot_id, c.column_id"
    )
    with database.reading() as cursor:
        for name, table in {**columns.arrow, **stored.arrow}.items():
            cursor.register(name, table)
        found = query(cursor, sql, [*columns.parameters, *stored.parameters, role])
    places, rows = [], []  # of each row, the place of its record
    for place, record in enumerate(found.select([*used, "data", "params"]).to_pylist()):
        if record["logical_type"] is not None:
            with suppress(InvalidArgument):  # an unreadable sketch, put before sketches were validated
                expanded = rows_of(record)
                rows += expanded
                places += [place] * len(expanded)
    schema = FLIGHTS[flight].schema
    if not rows:
        return schema.empty_table()
    own = pa.Table.from_pylist(rows, pa.schema([field for field in schema if field.name in rows[0]]))
    partial = pa.array(map(sketches.is_partial, found["params"].to_pylist()), pa.bool_())
    is_whole = pc.and_not(pc.equal(found["label"], EXACT).fill_null(False), partial)
    labels = {  # a sketch of a sample may be in a complete record
        "freshness": found["label"],
        "completeness": pc.if_else(partial, "PARTIAL", found["completeness"]),
        "usable_for": pc.if_else(is_whole, found["usable_for"], PLANNING),
    }
    given = {name: labels.get(name, found[name]) for name in schema.names if name not in own.column_names}
    taken = pa.table(given).take(places)
    return pa.table([(own if name in own.column_names else taken)[name] for name in schema.names], schema.names).cast(
        schema
    )


@lru_cache(4096)
def _histogram(data: bytes) -> tuple[tuple[float, float, float], ...]:
    return tuple(sketches.histogram(data, BUCKETS))


def _buckets(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per bucket; values at the ends of the sketch are the bounds of the record, which doubles may exceed."""
    buckets = _histogram(record["data"])
    if not buckets:
        return []
    values = not_nan(record)
    total = sum(count for _, _, count in buckets)
    scale = values / total if values is not None and total else 1.0
    rows, running = [], 0.0
    least, most = (record.get(side) for side in SIDES)
    ends = {buckets[-1][1]: most, buckets[0][0]: least}
    parsed, before, high = logical_types.parse(record["logical_type"]), None, None
    for number, (lower, upper, count) in enumerate(buckets):
        running += count * scale
        low = high if lower == before else ends.get(lower) or _text(lower, parsed)
        before, high = upper, ends.get(upper) or _text(upper, parsed)
        rows.append(
            {
                "bucket": number,
                "lower": low,
                "upper": high,
                "row_count": count * scale,
                "cumulative_row_count": running,
            }
        )
    rows[-1]["upper"] = most or high  # both ends may be one double
    return rows


def _text(value: float, type: logical_types.LogicalType) -> str | None:
    """A quantile as a canonical bound; None if it is not one. KLL has doubles: numbers, days, or microseconds."""
    kinds = logical_types.Kind
    try:
        match type.kind:
            case kinds.INT:  # 2^63 stands for what is just below; unsigned ones beyond are no bounds
                whole = round(value) - (value == 2.0**63)
                return str(whole) if -(2**63) <= whole < 2**63 else None
            case kinds.DECIMAL:
                unit = Decimal(1).scaleb(-(type.scale or 0))
                return bounds.canonical(str(Decimal(value).quantize(unit, context=_WIDE)), type)
            case kinds.DATE:
                return bounds.canonical(str(round(value)), type)
            case kinds.TIME | kinds.TIMESTAMP | kinds.TIMESTAMPTZ:
                zone = UTC if type.kind is kinds.TIMESTAMPTZ else None
                at = datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=round(value))
                return bounds.canonical((at.time() if type.kind is kinds.TIME else at).isoformat(), type)
            case kinds.BOOLEAN:
                return "true" if value >= 0.5 else "false"
            case kinds.FLOAT | kinds.DOUBLE:
                return bounds.java_float(value) if type.kind is kinds.FLOAT else bounds.java_double(value)
            case _:
                return None
    except (ValueError, OverflowError, ArithmeticError):
        return None


@lru_cache(4096)
def _ranked(data: bytes) -> tuple[float, ...]:
    return tuple(sketches.quantiles(data, RANKS))


def _quantiles(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per rank; the first and last value are the bounds of the record if it has them."""
    type = logical_types.parse(record["logical_type"])
    values = [_text(value, type) for value in _ranked(record["data"])]
    if values:
        least, most = (record[side] for side in SIDES)
        values[0], values[-1] = least or values[0], most or values[-1]
        values = _within(values, type)
    return [{"quantile": rank, "value": value} for rank, value in zip(RANKS, values, strict=False)]


def _within(values: list[str | None], type: logical_types.LogicalType) -> list[str | None]:
    """The values clamped to the first and last one, which the doubles of a sketch may exceed."""
    first, last = values[0], values[-1]
    if first is None or last is None or not type.orderable:
        return values
    keys = bounds.sort_keys(pa.array(values, pa.string()), type)
    low, high = keys[0], keys[-1]
    below, above = pc.less(keys, low).fill_null(False).to_pylist(), pc.greater(keys, high).fill_null(False).to_pylist()
    return [
        first if under else last if over else value for value, under, over in zip(values, below, above, strict=True)
    ]


def _common(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = sketches.frequent_items(record["data"], COMMON)
    return [
        {"rank": rank, "value": item.value, "count": item.count, "count_lower": item.lower, "count_upper": item.upper}
        for rank, item in enumerate(items, 1)
    ]
