"""Actions on stored records: delete, expire, describe, merge."""

from __future__ import annotations

from typing import Any

from msgspec import field

from flight_server.core.actions.registry import Call, action
from flight_server.core.actions.sketch_union import SketchedColumn, Theta, theta_of
from flight_server.core.part import Results
from flight_server.core.wire.lag import Read
from store.catalog.sketch_retention import superseded, thin
from store.model import sketches
from store.model.freshness import EXACT
from store.model.structs import Snapshot, Struct, Table, Text, Truth
from store.model.targets import Target


class _Records(Struct):
    table: Table
    snapshot: Snapshot | None = None
    target: dict[str, Any] | None = None


@action(_Records, "Deletes records; how many")
def delete_stats(call: Call, records: _Records) -> Results:
    target = Target.parse(records.target) if records.target is not None else None
    table = call.app.access.table(records.table, call.principal, "stats.write")
    snapshot_id = None if records.snapshot is None else call.app.catalog.snapshot_id(table, records.snapshot)
    yield {"deleted": call.app.store.delete(table, snapshot_id, target)}
    call.app.commit.on_committed(table)


class _Expiry(Struct):
    table: Table | None = None
    dry_run: Truth | None = None


@action(_Expiry, "Deletes records of snapshots that the format itself has expired, and superseded sketches")
def expire(call: Call, expiry: _Expiry) -> Results:
    app = call.app
    if expiry.table is not None:
        tables = [app.access.table(expiry.table, call.principal, "admin")]
    else:
        app.access.require(call.principal, "admin")
        tables = [t for t in app.catalog.tables() if call.principal.sees(*t.name)]
    dry = expiry.dry_run is not False
    expired = app.store.expirable(tables) if dry else app.store.expire(tables)
    thinned = superseded(app.database, tables, app.sketch_retention)
    if thinned and not dry:
        app.database.write(lambda connection: thin(connection, app.catalog, tables, app.sketch_retention))
    for table in tables:
        snapshots, of_sketches = expired.get(table.table_key, []), thinned.get(table.table_key, [])
        if snapshots or of_sketches or len(tables) == 1:
            sketches_of = {"sketches": of_sketches} if of_sketches else {}
            yield {"table": table.full_name, "snapshots": snapshots, **sketches_of, "dry_run": dry}
        if not dry:
            app.commit.on_committed(table)


class _OneRecord(Read, kw_only=True):
    table: Table
    snapshot: Snapshot
    target: dict[str, Any]


@action(_OneRecord, "Content hash, generation and times of a record")
def stats_meta(call: Call, record: _OneRecord) -> Results:
    target = Target.parse(record.target)
    table = call.app.access.table(record.table, call.principal, "stats.read")
    meta = call.app.store.meta(table, call.app.catalog.snapshot_id(table, record.snapshot), target)
    yield {
        "content_hash": meta.content_hash,
        "generation": meta.generation,
        "created_at": meta.created_at and meta.created_at.isoformat(),
        "refreshed_at": meta.refreshed_at and meta.refreshed_at.isoformat(),
    }


class _SketchMerge(Read, kw_only=True):
    table: Table
    snapshot: Snapshot
    column: Text
    partitions: list[Any] | None = None
    allow_partial: Truth | None = None
    other: SketchedColumn | None = field(default=None, name="with")


@action(_SketchMerge, "NDV of the union (and, of two columns, of the intersection) of stored theta sketches")
def merge_sketches(call: Call, merge: _SketchMerge) -> Results:
    allow_partial = bool(merge.allow_partial)
    one = SketchedColumn(table=merge.table, snapshot=merge.snapshot, column=merge.column)
    first = theta_of(call, one, allow_partial, merge.partitions)
    if merge.other is None:
        yield _estimate(first.data, first) | {"snapshot_id": first.snapshot_id, "freshness": first.freshness}
        return
    second = theta_of(call, merge.other, allow_partial)
    estimates = {}
    for name, merged in (("union", sketches.union), ("intersection", sketches.intersection)):
        estimates[name] = _estimate(merged([first.data, second.data]), first, second)
    yield estimates["union"] | estimates


def _estimate(data: bytes, *of: Theta) -> dict[str, Any]:
    """The estimate of a sketch; exact only if its parts hold all rows and were captured at their snapshots."""
    found = sketches.estimate(data)._asdict()
    return found | {"exact": found["exact"] and all(theta.freshness == EXACT and theta.is_whole for theta in of)}
