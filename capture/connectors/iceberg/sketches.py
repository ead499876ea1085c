"""Reads the theta sketches and NDVs that a table's metadata references for a snapshot, from Puffin files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from capture.connectors.iceberg.io import LakeIO
from capture.connectors.iceberg.puffin import UNREADABLE, Blob, read_file
from capture.connectors.iceberg.schema import IcebergLeaf
from capture.connectors.spi import COLUMN_SCHEMA
from store.model.errors import StatflightError, first_line
from store.model.schemas import THETA
from store.model.sketches.theta import Estimate, estimate

Sketch = tuple[int, str, str, bytes, Mapping[str, Any]]
"""Column id, role, sketch type, data, params."""


class SourceStatistics:
    """Sketches and NDVs of single columns at one snapshot.

    Blobs that were computed for an older snapshot and copied to its statistics file describe other rows; they are
    ignored.
    """

    def __init__(self, io: LakeIO, metadata: TableMetadata, snapshot_id: int, leaves: Sequence[IcebergLeaf]):
        self._io, self._snapshot_id = io, snapshot_id
        self._leaves = {leaf.field_id: leaf for leaf in leaves}
        self.remarks: list[str] = []  # sketches that were refused, and why
        self._files = [file for file in metadata.statistics if file.snapshot_id == snapshot_id]

    @property
    def sketches(self) -> list[Sketch]:
        """The readable theta sketches; empty if the registered file is missing."""
        return [
            (blob.fields[0], "NDV", THETA, blob.data, dict(blob.properties)) for blob, _ in self._estimated.values()
        ]

    def columns(self, row_count: int | None) -> pa.Table | None:
        """NDVs as rows of COLUMN_SCHEMA: of the sketch, with its bounds, else of the metadata; None without any."""
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
        """Column id → sketch and its estimate; damaged sketches and those with another seed are left out."""
        estimates = {}
        for file in self._files:
            if not any(self._is_ours(blob) for blob in file.blob_metadata):
                continue
            name = file.statistics_path.rpartition("/")[2]
            try:
                blobs = read_file(self._io, file.statistics_path)
            except FileNotFoundError:
                self.remarks.append(f"the statistics file {name} is missing")
                continue
            except UNREADABLE as error:
                self.remarks.append(f"the statistics file {name} is refused: {first_line(error)}")
                continue
            for blob in filter(self._is_ours, blobs):
                try:
                    estimates[blob.fields[0]] = blob, estimate(blob.data)
                except StatflightError as error:
                    column = self._leaves[blob.fields[0]].name
                    self.remarks.append(f'the sketch of "{column}" in {name} is refused: {error}')
        return estimates

    def _is_ours(self, blob: Any) -> bool:
        return (
            blob.type == THETA
            and blob.snapshot_id == self._snapshot_id
            and len(blob.fields) == 1
            and blob.fields[0] in self._leaves
        )


def _number(properties: Mapping[str, str] | None) -> float | None:
    """The property `ndv`, which the format requires of theta sketches; None if missing or invalid."""
    try:
        ndv = float((properties or {}).get("ndv", ""))
    except ValueError:
        return None
    return ndv if 0 <= ndv < 2**63 else None
