"""The description of one table of a lake, as inspections report it and discovery stores it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capture.connectors.metadata.comments import comments_in
from capture.connectors.spi import Connector, Snapshot, SnapshotListing
from capture.connectors.storage.places import unknown_snapshot
from capture.connectors.storage.secrets import mask
from store.model.catalog_entries import is_another_table


def look_at_table(
    connector: Connector,
    namespace: str,
    name: str,
    known: frozenset[int] = frozenset(),
    full: bool = False,
    identity: tuple[int, str] | None = None,
    only: frozenset[int] | None = None,
    current: tuple[int, str | None] | None = None,
) -> dict[str, Any]:
    """Describes a table, its snapshots and their schemas in the form that `Discovery.store` takes.

    Args:
        known: Ids of snapshots to leave out.
        full: Lists all snapshots, `known` ones included.
        identity: Id and identity of the known current snapshot (`SnapshotListing.identities`); lists all snapshots if
            this is another table.
        only: Ids of the snapshots to list, besides the current one; None for those that `known` and `full` say.
        current: Id and schema hash of the known current snapshot, which is listed again when it is no longer current
            and has another schema.

    Returns:
        A JSON object; secrets in the table's properties are masked.

    Raises:
        NotFound: The lake does not have the table, or the table not a snapshot of `only`.
        StatflightError: The lake cannot be read.
    """
    described = connector.describe(namespace, name)
    if only is not None:
        listing = _listed(connector, namespace, name, only, known)
    else:
        listing = connector.enumerate_snapshots(namespace, name, full_rescan=full, known_snapshot_ids=known)
        if current is not None and connector.changes_schemas_alone and not full:
            listing = _with_former(connector, namespace, name, listing, *current)
    if identity is not None and is_another_table(
        identity, listing.identities, listing.live_snapshot_ids, listing.current_snapshot_id
    ):
        listing = connector.enumerate_snapshots(namespace, name, full_rescan=True, known_snapshot_ids=known)
    wanted = (max(known & listing.live_snapshot_ids, default=None), listing.current_snapshot_id)
    identities = [
        [i, listing.identities[i]] for i in dict.fromkeys(wanted) if i is not None and i in listing.identities
    ]
    schemas = {s.schema.hash: s.schema for s in listing.snapshots} | {described.schema.hash: described.schema}
    columns = {
        h: [[c.name, c.logical_type, c.nullable, c.field_id, *([list(c.path)] if c.path else ())] for c in s.columns]
        for h, s in schemas.items()
    }
    return {
        "schema": namespace,
        "name": name,
        "format": connector.format_of(namespace, name),
        "table_id": described.table_id,
        "location": described.location,
        "schema_hash": described.schema.hash,
        "schemas": columns,
        "snapshots": [_snapshot(s) for s in listing.snapshots],
        "live_snapshot_ids": sorted(listing.live_snapshot_ids),
        "current_snapshot_id": listing.current_snapshot_id,
        "identities": identities,
        "partition_keys": list(described.partition_keys),
        "properties": mask(described.properties) | described.facts.as_property,
        "metadata_location": described.metadata_location,
        "format_schema": described.format_schema,
        "description": described.description or described.properties.get("comment"),
        "comments": dict(described.comments or comments_in(described.format_schema)),
        "constraints": [[c.kind, c.name, list(c.columns), c.clause] for c in described.constraints],
    }


def _listed(
    connector: Connector, namespace: str, name: str, only: frozenset[int], known: frozenset[int]
) -> SnapshotListing:
    """The listing of some snapshots and the current one."""
    listing = connector.enumerate_snapshots(namespace, name, known_snapshot_ids=known, target_snapshot_ids=only)
    if missing := only - listing.live_snapshot_ids:
        raise unknown_snapshot(namespace, name, min(missing))
    if listing.current_snapshot_id is None or listing.current_snapshot_id in only:
        return listing
    wanted = only | {listing.current_snapshot_id}
    return connector.enumerate_snapshots(namespace, name, known_snapshot_ids=known, target_snapshot_ids=wanted)


def _with_former(
    connector: Connector,
    namespace: str,
    name: str,
    listing: SnapshotListing,
    snapshot_id: int,
    schema_hash: str | None,
) -> SnapshotListing:
    """A listing with the former current snapshot too, if that has another schema now."""
    if snapshot_id == listing.current_snapshot_id:
        return listing
    again = connector.enumerate_snapshots(namespace, name, target_snapshot_ids=frozenset({snapshot_id})).snapshots
    return replace(listing, snapshots=(*listing.snapshots, *(s for s in again if s.schema.hash != schema_hash)))


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "ordinal": snapshot.ordinal,
        "schema_hash": snapshot.schema.hash,
        "parent_snapshot_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": snapshot.committed_at and snapshot.committed_at.isoformat(),
        "operation": snapshot.operation,
        "manifest_list": snapshot.manifest_list,
        "summary": snapshot.summary,
    }
