"""The metadata of a table at a snapshot, as one capture reads it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from capture.connectors.spi import NativeStats
from capture.spi import CaptureRequest, Mode, TableHandle
from store.model.freshness import CONTRADICTED, WHOLE_TABLE
from store.model.targets import TargetKind

log = logging.getLogger("statflight.worker")


@dataclass(frozen=True)
class Metadata:
    """A table's metadata as a capture reads it, and the origin that its rows tell.

    Attributes:
        wanted: Names of the columns that are read; None for all.
        native: The statistics.
        now: When the capture began.
        is_whole: The table or a file is captured, so that rows of all files are.
        other_rows: The data has other rows than the metadata says.
    """

    engine_id: str
    mode: Mode
    table: TableHandle
    wanted: frozenset[str] | None
    native: NativeStats
    now: datetime
    is_whole: bool
    other_rows: bool

    @classmethod
    def read(cls, engine_id: str, requests: Sequence[CaptureRequest]) -> Metadata:
        """Reads the metadata that requests of one snapshot need, and logs its remarks."""
        now, table = datetime.now(UTC), requests[0].table
        wanted = _wanted(requests)
        native = table.native_stats(wanted)
        for remark in native.remarks:
            log.warning("%s.%s.%s: %s", table.catalog, table.schema, table.name, remark)
        is_whole = any(request.target.kind in (TargetKind.TABLE, TargetKind.FILE) for request in requests)
        other_rows = WHOLE_TABLE in table.contradicted
        return cls(engine_id, requests[0].mode, table, wanted, native, now, is_whole, other_rows)

    def provenance(self, complete: bool, column_id: int | None = None) -> dict[str, Any]:
        """Key and provenance of a row about the table, or about a column."""
        doubted = self.other_rows or column_id in self.table.contradicted
        doubt = {"confidence_level": CONTRADICTED} if doubted else {}
        provenance = {
            "producer": self.native.producer,
            "completeness": "COMPLETE" if complete else "PARTIAL",
            "engine_id": self.engine_id,
            "capture_mode": str(self.mode),
            "files_scanned": self.native.data_file_count,
            "captured_at": self.now,
            "refreshed_at": self.now,
            "schema_hash": self.table.columns.hash,
        }
        return self.table.key | doubt | provenance

    @property
    def provenance_of_files(self) -> dict[str, Any]:
        """Key and provenance of the rows of files."""
        return self.provenance(True) | {"files_scanned": None}


def _wanted(requests: Sequence[CaptureRequest]) -> frozenset[str] | None:
    """Names of the columns to read: the requested ones, and the selected ones of a table or file; None for all."""
    table = requests[0].table
    requested = {r.target.column_id for r in requests if r.target.kind is TargetKind.COLUMN}
    names = frozenset(column.name for i, column in table.by_id.items() if i in requested and column.is_leaf)
    for request in requests:
        if request.target.kind is not TargetKind.COLUMN:
            if not request.spec.column_selectors:
                return None
            names |= table.selected(request.spec.column_selectors)
    return names
