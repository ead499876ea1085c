"""Tables with the statistics that tell keys: counts, bounds and theta sketches of each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from capture.compute import kernels
from flight_server.core.app import App
from store.model import logical_types, sketches
from store.model.columns import THETA
from store.model.targets import Target
from tests.flight_server.serving import put


def put_columns(
    app: App, name: str, rows: pa.Table, groups: Sequence[Sequence[int]] = (), catalog: str = "lake"
) -> None:
    """Puts the statistics of a table's columns, whose ids are their positions from 1, and of groups of them."""
    key = {"table_catalog": catalog, "table_schema": "s", "table_name": name, "snapshot_id": 1}
    records, thetas = [], []
    for column_id, column in enumerate(rows.column_names, 1):
        lt = logical_types.from_arrow(rows[column].type)
        part = kernels.summarise(rows[column], lt)
        found = None if part.theta is None else sketches.estimate(part.theta)
        counted = _counted(found, part.row_count - part.null_count)
        records.append(
            key
            | {
                "column_id": column_id,
                "column_name": column,
                "logical_type": lt.text,
                "row_count": part.row_count,
                "null_count": part.null_count,
                "min": part.min,
                "max": part.max,
            }
            | counted
        )
        if part.theta is not None:
            thetas.append(key | _sketch(Target.column(column_id), "NDV", part.theta) | {"column_id": column_id})
    put(app, records)
    put(app, thetas, "stats.sketches")
    for group in groups:
        members = [rows.column_names[i - 1] for i in group]
        hashed = [kernels.row_hashes(rows[n], logical_types.from_arrow(rows[n].type)) for n in members]
        combined = sketches.murmur3.combine([hashes for hashes, _ in hashed], [nulls for _, nulls in hashed])
        found = sketches.estimate(theta := sketches.theta(combined))
        put(
            app,
            [
                key
                | {
                    "column_ids": list(group),
                    "column_names": members,
                    "logical_type": "STRUCT",
                    "row_count": len(rows),
                    "null_count": 0,
                }
                | _counted(found, len(rows))
            ],
            "stats.column_groups",
        )
        put(app, [key | _sketch(Target.column_group(list(group)), "TUPLE_NDV", theta)], "stats.sketches")


def _counted(found: sketches.Estimate | None, most: int) -> dict[str, Any]:
    if found is None:
        return {"ndv": None, "ndv_exact": None, "ndv_lower": None, "ndv_upper": None}
    values = {"ndv": found.ndv, "ndv_lower": found.lower, "ndv_upper": found.upper}
    return {name: min(value, most) for name, value in values.items()} | {"ndv_exact": found.exact}


def _sketch(target: Target, role: str, data: bytes) -> dict[str, Any]:
    return {
        "target_kind": str(target.kind),
        "storage_id": target.storage_id,
        "role": role,
        "sketch_type": THETA,
        "data": data,
    }
