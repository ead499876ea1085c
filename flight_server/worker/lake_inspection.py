"""A worker's look at a lake: the answer to `control` and `watch` leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from capture.connectors.secrets import mask
from capture.connectors.spi import Connector, Snapshot
from flight_server.worker.connection import first_line
from store.errors import Cancelled, StatflightError

Progress = Callable[[float | None, str], None]
"""Called with the share that is done, 0 to 1 (None: not known), and a few words; raises Cancelled to stop."""


def inspect(connector: Connector, payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Findings of the operation that a lease's payload names.

    Args:
        connector: The lake.
        payload: `operation` (`validate` or `discover`) and its arguments.
        progress: Hears how far the look is.

    Returns:
        The findings, as JSON: `namespaces`, `tables` and `errors`.

    Raises:
        StatflightError: The lake cannot be reached, or the look was cancelled.
    """
    match payload["operation"]:
        case "validate":
            return {"namespaces": connector.list_namespaces()}
        case _:
            return _discover(connector, payload, progress)


def _discover(connector: Connector, payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Tables with their new snapshots; one that cannot be read is an error of its own, the others go on."""
    tables: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    only = payload["only"]
    namespaces = [] if only else connector.list_namespaces()
    names: list[tuple[str, str]] = [tuple(only)] if only else []
    for namespace in namespaces:
        with _troubles_of(namespace, None, errors):
            names += [(namespace, name) for name in connector.list_tables(namespace)]
    for done, (namespace, name) in enumerate(names):
        progress(done / len(names), f"{done} of {len(names)} tables")
        known = frozenset(payload["known"].get(f"{namespace}\0{name}", ()))
        if only:
            tables.append(_table(connector, namespace, name, known, payload["full_rescan"]))
            continue
        with _troubles_of(namespace, name, errors):
            tables.append(_table(connector, namespace, name, known, payload["full_rescan"]))
    return {"tables": tables, "errors": errors, "namespaces": namespaces}


@contextmanager
def _troubles_of(namespace: str, name: str | None, errors: list[dict[str, Any]]) -> Iterator[None]:
    """Turns whatever goes wrong with one table, or with the list of a namespace (name None), into an entry."""
    try:
        yield
    except (Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except StatflightError as trouble:
        errors.append({"schema": namespace, "name": name, "reason": str(trouble)})
    except BaseException as trouble:  # a library's surprise or panic stays with its table
        reason = f"{type(trouble).__name__}: {first_line(trouble)}"
        errors.append({"schema": namespace, "name": name, "reason": reason})


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
