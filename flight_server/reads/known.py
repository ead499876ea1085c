"""Columns of one table's rows that the server knows without DuckDB: whose rows they are, and how fresh.

Every constant and every CASE that DuckDB has to bind costs as much as a stored column, and a lookup has few rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.reads.sources import TABLE_COLUMNS, Scope
from flight_server.wire.scan_request import ScanRequest
from store.catalog_store import TableEntry
from store.database import STORED
from store.freshness import USABLE_COLUMNS, usable_for_arrow
from store.predicates import tree

_KNOWN: Final = frozenset({*TABLE_COLUMNS, "freshness", "usable_for"})
_FLIGHTS: Final = STORED.keys() - {"stats.sketches"}


def stored_part(request: ScanRequest, scope: Scope) -> ScanRequest | None:
    """The request for what has to be read for it; None where all of it has to."""
    if scope.only is None or request.rows or request.part is not None or request.flight.name not in _FLIGHTS:
        return None
    if (scope.pins is not None and not scope.lone) or request.plan.name is None:
        return None
    rest = request.plan.unnamed
    if any(column.strip().lower() in _KNOWN for column in tree.columns_of(rest)):
        return None
    names = [name for name in request.names if name not in _KNOWN]
    if "usable_for" in request.names:
        names += [name for name in USABLE_COLUMNS if name in request.flight.schema.names]
    return replace(request, columns=tuple(dict.fromkeys([*names, "snapshot_id"])), node=rest)


def completed(batch: pa.RecordBatch, request: ScanRequest, scope: Scope) -> pa.RecordBatch:
    """The rows of `stored_part` with all that the request asks for, in its order."""
    only = scope.only
    assert only is not None
    made: dict[str, pa.Array] = {}
    if "freshness" in request.names or "usable_for" in request.names:
        exact = _exact(batch, only, scope)
        made["freshness"] = pc.if_else(exact, "EXACT", "STALE")
        if "usable_for" in request.names:
            made["usable_for"] = usable_for_arrow(made["freshness"], batch)
    for name in TABLE_COLUMNS:
        if name in request.names:
            made[name] = pa.repeat(pa.scalar(getattr(only, name), pa.string()), batch.num_rows)
    arrays = [made[name] if name in made else batch[name] for name in request.names]
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=request.schema)


def _exact(batch: pa.RecordBatch, only: TableEntry, scope: Scope) -> pa.Array:
    """Whether each row is of the snapshot asked for, or where none is, of the current one."""
    if scope.lone or only.current_snapshot_id is None:
        return pa.repeat(True, batch.num_rows)
    return pc.equal(batch["snapshot_id"], only.current_snapshot_id)
