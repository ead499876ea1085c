"""Reads the theta sketches and NDVs that a table's metadata references for a snapshot, from Puffin files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from capture.connectors.iceberg.io import LakeIO
from capture.connectors.iceberg.puffin import UNREADABLE, Blob, read_file
from capture.connectors.iceberg.schema import IcebergLeaf
from capture.connectors.spi import COLUMN_SCHEMA
from store.model import figures
from store.model.columns import THETA
from store.model.errors import StatflightError, first_line
from store.model.sketches.theta import estimate

Sketch = tuple[int, str, str, bytes, Mapping[str, Any]]
"""Column id, role, sketch type, data, params."""


class SourceStatistics(NamedTuple):
    """Statistics of single columns that a table's metadata has for a snapshot.

    Attributes:
        sketches: The readable theta sketches.
        columns: NDVs as rows of COLUMN_SCHEMA: of the sketch, with its bounds, else of the metadata; None without any.
        remarks: The sketches that were refused, and why.
        files: The Puffin files that have them, in words.
    """

    sketches: list[Sketch]
    columns: pa.Table | None
    remarks: list[str]
    files: list[str]


def source_statistics(
    io: LakeIO, metadata: TableMetadata, snapshot_id: int, leaves: Sequence[IcebergLeaf], row_count: int | None
) -> SourceStatistics:
    """Reads the sketches and NDVs of a snapshot; damaged sketches and those with another seed are left out.

    Blobs that were computed for an older snapshot and copied to its statistics file describe other rows; they are
    ignored.
    """
    of_id = {leaf.field_id: leaf for leaf in leaves}
    sketches: dict[int, Sketch] = {}
    columns: dict[int, dict[str, Any]] = {}
    remarks: list[str] = []
    files = []

    def is_ours(blob: Any) -> bool:
        is_single = len(blob.fields) == 1 and blob.fields[0] in of_id
        return blob.type == THETA and blob.snapshot_id == snapshot_id and is_single

    for file in metadata.statistics:
        if file.snapshot_id != snapshot_id or not any(map(is_ours, file.blob_metadata)):
            continue
        for blob in filter(is_ours, file.blob_metadata):
            if (ndv := _number(blob.properties)) is not None:
                columns[blob.fields[0]] = {"ndv": ndv, "ndv_exact": False}
        name = file.statistics_path.rpartition("/")[2]
        files.append(f"the Puffin file {name}")
        for sketch in filter(is_ours, _blobs(io, file.statistics_path, remarks)):
            try:
                found = figures.distinct(estimate(sketch.data))
            except StatflightError as error:
                remarks.append(f'the sketch of "{of_id[sketch.fields[0]].name}" in {name} is refused: {error}')
                continue
            column_id = sketch.fields[0]
            sketches[column_id] = column_id, "NDV", THETA, sketch.data, dict(sketch.properties)
            columns[column_id] = found
    rows = [
        {"column_id": i, "column_name": of_id[i].name, "logical_type": of_id[i].logical.text, "row_count": row_count}
        | columns[i]
        for i in sorted(columns)
    ]
    of_columns = pa.Table.from_pylist(rows, COLUMN_SCHEMA) if rows else None
    return SourceStatistics(list(sketches.values()), of_columns, remarks, files if rows else [])


def _blobs(io: LakeIO, path: str, remarks: list[str]) -> Sequence[Blob]:
    """The blobs of a statistics file; none if it cannot be read, and `remarks` receive the reason."""
    name = path.rpartition("/")[2]
    try:
        return read_file(io, path)
    except FileNotFoundError:
        remarks.append(f"the statistics file {name} is missing")
    except UNREADABLE as error:
        remarks.append(f"the statistics file {name} is refused: {first_line(error)}")
    return ()


def _number(properties: Mapping[str, str] | None) -> float | None:
    """The property `ndv`, which the format requires of theta sketches; None if missing or invalid."""
    try:
        ndv = float((properties or {}).get("ndv", ""))
    except ValueError:
        return None
    return ndv if 0 <= ndv < 2**63 else None
