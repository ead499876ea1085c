"""Statistics that a table's metadata registers for a snapshot: theta sketches in a Puffin file, with their NDV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from capture.connectors.iceberg.io import LakeIO
from capture.connectors.iceberg.puffin import Blob, read_if_any
from capture.connectors.iceberg.schema import IcebergLeaf
from capture.connectors.spi import COLUMN_SCHEMA
from store.errors import StatflightError
from store.schemas import THETA
from store.sketches.theta import Estimate, estimate

Sketch = tuple[int, str, str, bytes, Mapping[str, Any]]
"""Column id, role, sketch type, data, params."""


class SourceStatistics:
    """Sketches and NDV of one snapshot, of columns one at a time.

    A statistics file may contain blobs that were computed for an older snapshot and carried over: they describe other
    rows and are left out.
    """

    def __init__(self, io: LakeIO, metadata: TableMetadata, snapshot_id: int, leaves: Sequence[IcebergLeaf]):
        self._io, self._snapshot_id = io, snapshot_id
        self._leaves = {leaf.field_id: leaf for leaf in leaves}
        self._files = [file for file in metadata.statistics if file.snapshot_id == snapshot_id]

    @property
    def sketches(self) -> list[Sketch]:
        """The readable theta sketches; none where the registered file is gone."""
        return [
            (blob.fields[0], "NDV", THETA, blob.data, dict(blob.properties)) for blob, _ in self._estimated.values()
        ]

    def columns(self, row_count: int | None) -> pa.Table | None:
        """NDV of each column that has one: with the sketch's own bounds, else the number that the metadata gives.

        Args:
            row_count: Live rows of the snapshot.

        Returns:
            Rows of COLUMN_SCHEMA; None where no column has an NDV.
        """
        columns: dict[int, dict[str, Any]] = {}
        for file in self._files:
            for blob in file.blob_metadata:
                if self._is_ours(blob) and (ndv := _number(blob.properties)) is not None:
                    columns[blob.fields[0]] = {"ndv": ndv, "ndv_exact": False}
        for column_id, (_, counted) in self._estimated.items():
            columns[column_id] = {
                "ndv": counted.ndv, "ndv_exact": counted.exact, "ndv_lower": counted.lower, "ndv_upper": counted.upper,
            }  # fmt: skip
        rows = [
            {"column_id": i, "column_name": self._leaves[i].name, "logical_type": self._leaves[i].logical.text,
             "row_count": row_count} | ndv for i, ndv in sorted(columns.items())
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, COLUMN_SCHEMA) if rows else None

    @cached_property
    def _estimated(self) -> dict[int, tuple[Blob, Estimate]]:
        """Column id → its sketch and what the sketch estimates. One of another seed, or damaged, is left out."""
        estimates = {}
        for file in self._files:
            if any(self._is_ours(blob) for blob in file.blob_metadata):
                for blob in read_if_any(self._io, file.statistics_path):
                    if self._is_ours(blob):
                        with suppress(StatflightError):
                            estimates[blob.fields[0]] = blob, estimate(blob.data)
        return estimates

    def _is_ours(self, blob: Any) -> bool:
        return (
            blob.type == THETA
            and blob.snapshot_id == self._snapshot_id
            and len(blob.fields) == 1
            and blob.fields[0] in self._leaves
        )


def _number(properties: Mapping[str, str] | None) -> float | None:
    """The `ndv` that the format asks writers of theta sketches for."""
    try:
        ndv = float((properties or {}).get("ndv", ""))
    except ValueError:
        return None
    return ndv if 0 <= ndv < 2**63 else None
