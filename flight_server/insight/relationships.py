"""`sys.relationships`: foreign keys between columns, declared ones and those that key sketches tell.

A key is a column or group of columns without nulls whose values are all distinct. Another column refers to it if nearly
all of its values are among the key's, which the theta sketches of both tell, and if chance does not explain that: the
numbers 1 to 50 are among those of any counter that goes further. A column of a counter's numbers refers to it only if
it looks like a random sample of them, which reaches close to both ends; one of a sparse key, or of a key that begins
far from zero, needs no such evidence. Of several keys the one that the column covers best is meant.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from flight_server.core.reads.scope import ReadScope, limited_to
from flight_server.core.reads.stats_sources import stats_source
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database
from store.model import sketches
from store.model.errors import InvalidArgument
from store.model.schemas import FLIGHTS
from store.model.targets import Target

CONTAINED: Final = 0.98  # share of a column's values that a key must have: some orphans are usual
BY_CHANCE: Final = 0.01  # probability below which a sample does not end so far from the ends of a key
MANY: Final = 100  # values of a sample beyond which more of them need not come closer to the ends
COVERED: Final = 0.3  # share of the values of a small or text key that a column must have: codes include each other
ALL_COVERED: Final = 0.99  # the same of a text column that is a key itself
LEAST_HASHES: Final = 8  # common hashes of two sketches below which nothing is inferred
MOST_COLUMNS: Final = 5_000  # columns whose sketches are held at once, 32 kB each
REUSED: Final = 20  # times its own duration for which a result is reused across writes, when it took REUSED_AFTER
REUSED_AFTER: Final = 0.5  # seconds

_UNIQUE: Final = (
    "null_count = 0 AND row_count >= 2 AND (ndv = row_count OR (NOT coalesce(ndv_exact, false)"
    " AND row_count - ndv <= 2 * (ndv - ndv_lower)))"  # bounds are two standard deviations, this is four
)
# Few values tell little of what they refer to: there must be many rows of them for each of the key's, more if some of
# the key's are not among them.
_TELLING: Final = (
    f"(f.ndv >= {MANY} / 2 OR (f.ndv >= greatest({COVERED} * p.row_count, 2)"
    " AND f.row_count >= CASE WHEN f.ndv >= 0.9 * p.row_count THEN 2 ELSE 10 END * p.row_count))"
)
# f may refer to p. A table has one key of a type, its first. `dense`: p has every number between its bounds. Values
# without gaps that end before the key does are numbered by themselves. Without nulls a hierarchy would have no root.
_PAIRS: Final = f"""
WITH typed AS (SELECT *, {_UNIQUE} AS is_key, logical_type IN ('STRING', 'UUID', 'BINARY') AS is_text,
    TRY_CAST(CASE WHEN NOT is_text THEN min END AS DOUBLE) AS low,
    TRY_CAST(CASE WHEN NOT is_text THEN max END AS DOUBLE) AS high FROM c WHERE ndv >= 1
    AND (is_text OR logical_type = 'INT' OR logical_type LIKE 'DECIMAL(%,0)')),
keys AS (SELECT *, greatest(high - low, 1) AS span, row_count / (high - low + 1) AS density FROM typed WHERE is_key
    QUALIFY row_number() OVER (PARTITION BY table_key, logical_type ORDER BY column_id) = 1)
SELECT f.table_key, f.column_id, p.table_key, p.column_id,
    coalesce(f.low >= p.low AND f.high <= p.high AND p.density >= 1, false) AS dense
FROM typed f JOIN keys p ON f.logical_type = p.logical_type
AND (f.table_key, f.column_id) <> (p.table_key, p.column_id) AND f.ndv <= 1.1 * p.row_count
AND (f.table_key <> p.table_key OR f.null_count > 0)
WHERE (f.is_text AND {_TELLING}) OR (f.low <= p.high AND f.high >= p.low
    AND NOT (f.is_key AND f.row_count > 1 AND f.low IN (0, 1) AND f.row_count > 0.9 * (f.high - f.low + 1))
    AND (p.low > p.row_count OR f.ndv * ln(least(p.density, 1)) < ln(1e-3) OR (
        {_TELLING} AND NOT (f.ndv = f.high - f.low + 1 AND f.high < p.high)
        AND (f.ndv >= {MANY} OR (f.low >= p.low AND f.high <= p.high))
        AND pow(1 - least(greatest(p.high - f.high, 0) / p.span, 1), least(f.ndv, {MANY})) >= {BY_CHANCE}
        AND pow(1 - least(greatest(f.low - p.low, 0) / p.span, 1), least(f.ndv, {MANY})) >= {BY_CHANCE})))
"""

Place = tuple[int, tuple[int, ...]]
"""Table key, and ids of a column or of the columns of a group."""


class Containment(NamedTuple):
    """The share of a column's distinct values that a key has, with 95 % bounds; equal if both sketches are exact."""

    share: float
    low: float
    high: float


def containment(values: sketches.Theta, key: sketches.Theta) -> Containment | None:
    """The share of a column's values that a key has; None if the sketches have too few hashes in common to tell."""
    limit = np.uint64(min(values.theta, key.theta))
    ours = values.hashes[: np.searchsorted(values.hashes, limit)]
    theirs = key.hashes[: np.searchsorted(key.hashes, limit)]
    count, common = len(ours), int(np.isin(ours, theirs, assume_unique=True).sum())
    if values.exact and key.exact and count:
        return Containment(common / count, common / count, common / count)
    if count < LEAST_HASHES:
        return None
    z = 1.96  # Wilson's interval
    share, spread = common / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / count / 4) / (1 + spread)
    return Containment(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


class Relationships:
    """Computes the flight from the current statistics of all tables that a caller sees, and keeps the last result."""

    def __init__(self, database: Database):
        self._database = database
        self._last: tuple[Any, int, float, float, pa.Table] | None = None

    def __call__(self, scope: ReadScope) -> pa.Table:
        """The rows of `sys.relationships` between tables of a scope."""
        asked = None if scope.keys is None else tuple(scope.keys)
        epoch, started, last = self._database.versions.epoch, time.monotonic(), self._last
        if last is not None and last[0] == asked:
            _, of_epoch, at, took, table = last
            if of_epoch == epoch or (took > REUSED_AFTER and started - at < REUSED * took):
                return table
        with self._database.reading() as cursor:
            table = pa.Table.from_pylist(list(_rows(cursor, scope)), FLIGHTS["sys.relationships"].schema)
        now = time.monotonic()
        self._last = (asked, epoch, now, now - started, table)
        return table


def _rows(cursor: Connection, scope: ReadScope) -> Iterator[dict[str, Any]]:
    """Rows of the flight: the declared keys, then the inferred ones of other columns."""
    at = ReadScope(scope.keys, current=True, any_dropped=scope.any_dropped, failing=scope.failing)
    known = _known(cursor, at)
    declared = _declared(cursor, at, known)
    judged: dict[tuple[Place, Place], bool] = {
        ((f, (i,)), (p, (j,))): dense for f, i, p, j, dense in cursor.execute(_PAIRS).fetchall()
    }
    groups = [place for place in known if len(place[1]) > 1]
    pairs = [*judged, *_pairs_of_groups(groups, known)]
    thetas = _thetas(cursor, at, list(dict.fromkeys(place for pair in [*declared, *pairs] for place in pair)))
    found: defaultdict[Place, list[_Candidate]] = defaultdict(list)
    for values, key in pairs:
        share = _share_of(thetas, values, key)
        if share is None and judged.get((values, key)):
            share = Containment(1.0, 1.0, 1.0)  # by the bounds
        if share is not None and (candidate := _candidate(known, values, key, share)) is not None:
            found[values].append(candidate)
    for values, key in declared:
        yield _row(known[values], known[key], "DECLARED", _share_of(thetas, values, key))
        found.pop(values, None)
    for values, candidates in found.items():
        for best in _best(candidates, known, values):
            yield _row(known[values], known[best.key], "INFERRED", best.share)


class _Candidate(NamedTuple):
    """A key to which a column may refer; `covered` is the share of the key's values that the column has."""

    covered: float
    key: Place
    share: Containment


def _share_of(thetas: Mapping[Place, sketches.Theta], values: Place, key: Place) -> Containment | None:
    """Containment of a column in a key by their sketches; None if one has no sketch, or they cannot tell."""
    return containment(thetas[values], thetas[key]) if values in thetas and key in thetas else None


def _candidate(
    known: Mapping[Place, dict[str, Any]], values: Place, key: Place, share: Containment
) -> _Candidate | None:
    """The key as a candidate of the column; None if the evidence is too weak, or they are copies of each other."""
    of, to = known[values], known[key]
    covered = min(of["ndv"] * share.share / to["row_count"], 1.0)
    are_same = of["is_key"] and covered >= ALL_COVERED
    if are_same and (of["table_catalog"] != to["table_catalog"] or values < key):
        return None  # a copy of the table in another lake; or two keys of the same values, of which one refers
    least = 0.0
    if of["logical_type"] in ("STRING", "UUID", "BINARY"):
        least = ALL_COVERED if of["is_key"] else COVERED
    return _Candidate(covered, key, share) if share.share >= CONTAINED and covered >= least else None


def _best(
    candidates: Sequence[_Candidate], known: Mapping[Place, dict[str, Any]], values: Place
) -> Sequence[_Candidate]:
    """The candidates that the column covers best, of its own schema or lake rather than of another lake's copy."""
    most = max(candidate.covered for candidate in candidates)
    best = [candidate for candidate in candidates if candidate.covered >= 0.99 * most]
    for same in (("table_catalog", "table_schema"), ("table_catalog",)):
        near = [one for one in best if all(known[one.key][name] == known[values][name] for name in same)]
        best = near or best
    return best


def _row(of: dict[str, Any], to: dict[str, Any], kind: str, share: Containment | None) -> dict[str, Any]:
    names = ("catalog", "schema", "table"), ("table_catalog", "table_schema", "table_name")
    ends = {
        f"{end}_{ours}": row[theirs]
        for end, row in (("from", of), ("to", to))
        for ours, theirs in zip(*names, strict=True)
    }
    share_of = (None, None, None) if share is None else share
    return ends | {
        "from_columns": of["names"],
        "to_columns": to["names"],
        "kind": kind,
        "cardinality": None if of["is_key"] is None else "ONE_TO_ONE" if of["is_key"] else "MANY_TO_ONE",
        "containment": share_of[0],
        "containment_low": share_of[1],
        "containment_high": share_of[2],
        "from_ndv": of["ndv"],
        "to_ndv": to["ndv"],
    }


def _known(cursor: Connection, scope: ReadScope) -> dict[Place, dict[str, Any]]:
    """The current rows of columns, which `c` names afterwards, and of column groups."""
    known: dict[Place, dict[str, Any]] = {}
    shared = (
        "table_catalog",
        "table_schema",
        "table_name",
        "logical_type",
        "row_count",
        "null_count",
        "ndv",
        "ndv_exact",
        "ndv_lower",
    )
    for flight, own in (
        ("stats.columns", ("column_id", "column_name", "min", "max")),
        ("stats.column_groups", ("column_ids", "column_names")),
    ):
        source = stats_source(FLIGHTS[flight], scope)
        for name, table in source.arrow.items():
            cursor.register(name, table)
        chosen = ", ".join(f'{source.columns[name]} AS "{name}"' for name in (*shared, *own))
        sql = f"SELECT s.table_key, {chosen} FROM {source.sql} WHERE {source.where}"
        rows = query(cursor, sql, source.parameters)
        if flight == "stats.columns":
            cursor.register("c", rows)
        judged = query(cursor, f"SELECT *, {_UNIQUE} AS is_key FROM {{rows}} ORDER BY table_key", rows=rows)
        for row in judged.to_pylist():
            ids = row.get("column_ids") or (row.get("column_id"),)
            row["names"] = row.get("column_names") or [row.get("column_name")]
            known[row["table_key"], tuple(ids)] = row
    return known


def _pairs_of_groups(groups: Sequence[Place], known: dict[Place, dict[str, Any]]) -> Iterator[tuple[Place, Place]]:
    """Pairs of groups whose columns have equal types; the second is a key, the first is not."""

    def types(place: Place) -> tuple[Any, ...]:
        members = (known.get((place[0], (column_id,)), {}) for column_id in place[1])
        return tuple(member.get("logical_type") for member in members)

    for key in groups:
        for values in groups:
            if known[key]["is_key"] and not known[values]["is_key"] and types(key) == types(values):
                yield values, key


def _declared(cursor: Connection, scope: ReadScope, known: dict[Place, dict[str, Any]]) -> list[tuple[Place, Place]]:
    """The declared foreign keys whose columns are known, from clauses as of `capture.connectors.spi.Constraint`."""
    parameters: list[Any] = []
    among = limited_to("s", scope, parameters)
    rows = cursor.execute(
        "SELECT s.table_key, any_value(s.clause), list(s.column_name ORDER BY s.ordinal_position) FROM"
        f" table_constraints s WHERE s.kind = 'FOREIGN KEY' AND s.clause IS NOT NULL AND {among}"
        " GROUP BY s.table_key, s.name ORDER BY 1",
        parameters,
    ).fetchall()
    if not rows:
        return []
    tables = {
        tuple(row[n] for n in ("table_catalog", "table_schema", "table_name")): key for (key, _), row in known.items()
    }
    catalogs = {key: name[0] for name, key in tables.items()}
    ids: dict[tuple[int, str], tuple[int, ...]] = {
        (key, row["names"][0]): columns for (key, columns), row in known.items() if len(columns) == 1
    }
    pairs = []
    for table_key, clause, columns in rows:
        schema, table, referred = json.loads(clause)
        key = tables.get((catalogs.get(table_key), schema, table))
        ends = [_place(ids, table_key, columns), None if key is None else _place(ids, key, referred)]
        if all(end in known for end in ends):
            pairs.append((ends[0], ends[1]))
    return pairs  # type: ignore[return-value]  # ends that are known are not None


def _place(ids: dict[tuple[int, str], tuple[int, ...]], key: int, columns: Iterable[str]) -> Place | None:
    found = [ids.get((key, column)) for column in columns]
    return None if None in found else (key, tuple(i for one in found if one for i in one))


def _thetas(cursor: Connection, scope: ReadScope, places: Sequence[Place]) -> dict[Place, sketches.Theta]:
    """The theta sketches of columns and groups, but those of samples."""
    places = places[:MOST_COLUMNS]
    if not places:
        return {}
    ids = [(Target.column(i[0]) if len(i) == 1 else Target.column_group(list(i))).storage_id for _, i in places]
    wanted = pa.table({"place": range(len(places)), "key": [key for key, _ in places], "id": ids})
    source = stats_source(FLIGHTS["stats.sketches"], scope)
    for name, table in {**source.arrow, "wanted": wanted}.items():
        cursor.register(name, table)
    rows = cursor.execute(
        f"SELECT w.place, s.data, s.params FROM {source.sql} JOIN wanted w ON w.key = s.table_key"
        f" AND w.id = s.storage_id WHERE ({source.where}) AND s.role IN ('NDV', 'TUPLE_NDV')",
        source.parameters,
    )
    thetas = {}
    while batch := rows.fetchmany(256):
        for place, data, params in batch:
            if not sketches.is_partial(params):
                try:
                    thetas[places[place]] = sketches.read_theta(data)
                except InvalidArgument:  # put before sketches were validated
                    continue
    return thetas
