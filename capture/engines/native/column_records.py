"""Records of the columns of a table, from the source's own statistics and the roll-up of its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from capture.compute.partial import fixed_width
from capture.connectors.spi import COUNTED
from capture.engines.native.metadata import Metadata
from capture.engines.rollup import Rollup, combined, is_complete
from capture.spec import has_no_values
from store.model import logical_types
from store.model.columns import SCALAR
from store.model.freshness import UNCONFIRMED
from store.model.logical_types import FLOATING
from store.model.statistics import FLAGS, SIDES, WIDTHS
from store.model.targets import Target


class ColumnRecords:
    """Makes the records of columns.

    Args:
        widths: Ids of columns whose widths are requested.

    Attributes:
        doubts: Column id → reasons why the bounds of its record may be wrong.
    """

    def __init__(self, metadata: Metadata, widths: Collection[int | None] = ()):
        self._metadata, self._native, self._table = metadata, metadata.native, metadata.table
        self._widths = widths
        self.doubts: dict[int, frozenset[str]] = {}

    def without_files(self) -> dict[int, Rollup]:
        """Roll-ups of the columns of a table without files: no rows, no nulls, no bounds."""
        wanted = {i: c for i, c in self._table.by_id.items() if c.is_leaf}
        if self._metadata.wanted is not None:
            wanted = {i: c for i, c in wanted.items() if c.is_among(self._metadata.wanted)}
        return {
            i: Rollup(c.name, c.logical_type, nan_count=0 if c.logical_type in FLOATING else None)
            for i, c in wanted.items()
        }

    def of(self, rollups: Mapping[int, Rollup]) -> dict[int, dict[str, Any]]:
        """Column id → record: from the format's table-level statistics, completed by the roll-up of the files."""
        records = self._containers()
        records |= {i: self._rolled_up(i, rollup) for i, rollup in rollups.items()}
        for row in self._rows_of_source():
            if column_id := self._id_of(row):
                records[column_id] = self._completed(column_id, records.get(column_id, {}), row)
        return records

    def _rolled_up(self, column_id: int, rollup: Rollup) -> dict[str, Any]:
        """The record of a column from its files."""
        native = self._native
        scalars = rollup.scalars(native.data_file_count, native.row_count, native.row_deletes)
        knows_nulls = scalars["null_count"] is not None
        complete = knows_nulls and rollup.complete(native.data_file_count)
        record = self._metadata.provenance(complete, column_id) | scalars | {"column_id": column_id}
        has_bounds = any(scalars[side] is not None for side in SIDES)
        if rollup.doubts and has_bounds:
            self.doubts[column_id] = rollup.doubts
            record |= dict.fromkeys(FLAGS)
            record.setdefault("confidence_level", UNCONFIRMED)
        size = fixed_width(logical_types.parse(rollup.logical_type)) if column_id in self._widths else None
        if size is not None and knows_nulls and not has_no_values(scalars):
            record |= dict(zip(WIDTHS, (float(size), size), strict=True))
        return record

    def _completed(self, column_id: int, record: Mapping[str, Any], of_source: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a column from the source's own statistics, completed by that from its files."""
        row = combined(record, of_source)
        provenance = self._metadata.provenance(is_complete(row), column_id)
        uses_files = any(of_source[side] is None for side in SIDES)  # their bounds, that is
        if column_id in self.doubts and uses_files:
            provenance.setdefault("confidence_level", UNCONFIRMED)
        else:
            self.doubts.pop(column_id, None)
            row.pop("confidence_level", None)
        return row | provenance | {"column_id": column_id}

    def _containers(self) -> dict[int, dict[str, Any]]:
        """Records of containers, for a capture of the whole table. Their nulls are unknown: metadata counts an empty
        list as a null one."""
        if self._metadata.wanted is not None or not self._metadata.is_whole:
            return {}
        rows = self._native.row_count
        nulls = 0 if rows == 0 else None
        return {
            i: self._metadata.provenance(nulls == 0)
            | dict.fromkeys(SCALAR)
            | {
                "column_id": i,
                "column_name": column.name,
                "logical_type": column.logical_type,
                "row_count": rows,
                "null_count": nulls,
            }
            for i, column in self._table.by_id.items()
            if column.logical_type in COUNTED
        }

    def earlier(self) -> Iterator[list[dict[str, Any]]]:
        """Yields records of earlier snapshots, whose statistics the source computed and still has."""
        for earlier in self._native.earlier:
            of_snapshot = {
                "snapshot_id": earlier.snapshot_id,
                "schema_hash": earlier.schema_hash,
                "files_scanned": None,
            }
            rows = [combined({}, kept) for kept in earlier.columns.to_pylist()]
            yield [self._metadata.provenance(is_complete(row)) | row | of_snapshot for row in rows]

    def of_source(self) -> set[int | None]:
        """Ids of the columns of which the source has statistics of its own; None for one that has no id."""
        return {self._id_of(row) for row in self._rows_of_source()}

    def _rows_of_source(self) -> list[dict[str, Any]]:
        return [] if self._native.columns is None else self._native.columns.to_pylist()

    def _id_of(self, row: Mapping[str, Any]) -> int | None:
        return row["column_id"] or self._table.column_ids.get(row["column_name"])

    def sketches(self, columns: Collection[int]) -> list[dict[str, Any]]:
        """Rows of the source's sketches of some columns."""
        return [
            self._table.key
            | {
                "target_kind": "COLUMN",
                "storage_id": Target.column(column_id).storage_id,
                "column_id": column_id,
                "role": role,
                "sketch_type": type,
                "data": data,
                "params": json.dumps(dict(params)),
                "captured_at": self._metadata.now,
            }
            for column_id, role, type, data, params in self._native.sketches
            if column_id in columns
        ]
