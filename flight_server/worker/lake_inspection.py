"""Looks at a lake: what a worker answers to `control` leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture.connectors.secrets import mask
from capture.connectors.spi import Connector, Snapshot
from flight_server.worker.connection import first_line
from store.errors import StatflightError


def look(connector: Connector, payload: Mapping[str, Any]) -> dict[str, Any]:
    """What the operation of a lease's payload finds: `validate` or `discover`."""
    match payload["operation"]:
        case "validate":
            return {"namespaces": connector.list_namespaces()}
        case _:
            return _discover(connector, payload)


def _discover(connector: Connector, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with their new snapshots; a table in trouble is an error of its own, the others go on."""
    only = payload["only"]
    names = [tuple(only)] if only else [(n, t) for n in connector.list_namespaces() for t in connector.list_tables(n)]
    tables, errors = [], []
    for namespace, name in names:
        known = frozenset(payload["known"].get(f"{namespace}\0{name}", ()))
        try:
            tables.append(_table(connector, namespace, name, known, payload["full_rescan"]))
        except StatflightError as trouble:
            if only:
                raise
            errors.append({"schema": namespace, "name": name, "reason": str(trouble)})
        except Exception as trouble:  # a library's surprise stays with its table
            if only:
                raise
            reason = f"{type(trouble).__name__}: {first_line(trouble)}"
            errors.append({"schema": namespace, "name": name, "reason": reason})
    return {"tables": tables, "errors": errors}


def _table(connector: Connector, namespace: str, name: str, known: frozenset[int], full: bool) -> dict[str, Any]:
    described_ = connector.describe(namespace, name)
    listing = connector.enumerate_snapshots(namespace, name, full_rescan=full, known_snapshot_ids=known)
    schemas = {s.schema.hash: s.schema for s in listing.snapshots} | {described_.schema.hash: described_.schema}
    told = {
        h: [[c.name, c.logical_type, c.nullable, c.field_id, *([list(c.path)] if c.path else ())] for c in s.columns]
        for h, s in schemas.items()
    }
    return {
        "schema": namespace, "name": name, "table_id": described_.table_id, "location": described_.location,
        "schema_hash": described_.schema.hash,
        "schemas": told,
        "snapshots": [_snapshot(s) for s in listing.snapshots],
        "live_snapshot_ids": sorted(listing.live_snapshot_ids), "current_snapshot_id": listing.current_snapshot_id,
        "partition_keys": list(described_.partition_keys), "properties": mask(described_.properties),
        "constraints": [[c.kind, c.name, list(c.columns), c.clause] for c in described_.constraints],
    }  # fmt: skip


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id, "ordinal": snapshot.ordinal, "schema_hash": snapshot.schema.hash,
        "parent_snapshot_id": snapshot.parent_snapshot_id, "sequence_number": snapshot.sequence_number,
        "committed_at": snapshot.committed_at and snapshot.committed_at.isoformat(), "operation": snapshot.operation,
    }  # fmt: skip
