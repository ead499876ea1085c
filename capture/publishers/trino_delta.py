"""Home `trino`: the extended statistics that Trino's Delta connector reads from a file next to the log.

The JSON file `_delta_log/_trino_meta/extended_stats.json`, replaced atomically, has a HyperLogLog per physical column
and the data size of string columns. Trino takes row counts, nulls and bounds from the log, and ignores the file if a
data file has no statistics there. Theta sketches cannot be converted, since they use another hash, so publishing reads
the columns to build the HyperLogLogs.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.delta.extended_statistics import FILE, NEWEST_MODEL
from capture.connectors.delta.lake_table import Outline
from capture.connectors.storage.places import Place, open_place
from capture.publishers.data_pass import scan
from capture.publishers.files import delete_file, read_object, replace_file, sweep
from capture.publishers.spi import ColumnStatistics, Draft, HomeStatistics, Labels, LostRace, Publisher
from store.model.errors import NotFound
from store.model.logical_types import Kind, parse
from store.model.sketches.airlift_hll import HyperLogLog, hash_values, supports

_VARIABLE: Final = (Kind.STRING, Kind.BINARY)


class TrinoDeltaPublisher(Publisher):
    """Trino's extended statistics of a Delta table."""

    home: ClassVar[str] = "trino"
    formats: ClassVar[frozenset[str]] = frozenset({"delta"})
    labels: ClassVar[Labels | None] = None
    reads_data: ClassVar[bool] = True

    def prepare(self) -> Draft:
        statistics = self.statistics
        table, files = self._logged(statistics.snapshot_id)
        newest = self._newest()
        if newest != statistics.snapshot_id and _rows(self._logged(newest)[1]) != _rows(files):
            raise self.moved_on(f"version {newest}")
        without = files["num_records"].null_count
        columns, left_out = self.storable(lambda column: _refusal(table, column))
        detail = f"{without} data files have no statistics in the log: Trino will ignore these" if without else ""
        return Draft(
            statistics.snapshot_id,
            self._place.name,
            dict.fromkeys((c.name for c in columns), None),
            left_out,
            (table, files, columns),
            detail=detail,
        )

    def write(self, draft: Draft) -> int | None:
        table, files, columns = draft.content
        analyzed = self._analyze(columns)
        entries = {}
        for column in columns:
            sketch, size = analyzed[column.name]
            entry: dict[str, Any] = {"ndvSummary": base64.b64encode(sketch.serialize()).decode()}
            if parse(column.logical_type).kind in _VARIABLE:
                entry["totalSizeInBytes"] = size
            leaf = table.schema.leaf(column.name)
            assert leaf is not None
            entries[leaf.physical[0]] = entry
        newest = pc.max(files["modification_time"]).as_py() or 0  # Trino's next ANALYZE reads only newer files
        seen = datetime.fromtimestamp(newest / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._written = {
            "modelVersion": NEWEST_MODEL,
            "alreadyAnalyzedModifiedTimeMax": seen,
            "columnStatistics": entries,
        }
        folder = open_place(self.table_location, self.destination.config.options).below(FILE.rpartition("/")[0])
        self.removed_orphans += sweep(folder, frozenset)
        replace_file(self._place, json.dumps(self._written, separators=(",", ":")).encode())
        return None

    def verify(self, draft: Draft) -> str:
        """Also compares the whole file, because two writers may have written it concurrently."""
        location = super().verify(draft)
        if self._document() != self._written:
            raise LostRace("trino: other statistics were written at the same time")
        return location

    def read(self) -> HomeStatistics | None:
        document = self._document()
        if document is None:
            return None
        schema = self._logged(self._newest())[0].schema
        names = {leaf.physical[0]: leaf.column.name for leaf in schema.columns}
        return HomeStatistics(
            None, self._place.name, {names.get(n, n): None for n in document.get("columnStatistics", {})}
        )

    def withdraw(self) -> bool:
        if self._document() is None:
            return False
        delete_file(self._place)
        return True

    def _analyze(self, columns: list[ColumnStatistics]) -> dict[str, tuple[HyperLogLog, int]]:
        """Column → HyperLogLog of its values and total bytes of its strings, from a pass over the data."""
        types = {column.name: column.logical_type for column in columns}
        analyzed = {name: (HyperLogLog(), 0) for name in types}

        def read(name: str, values: pa.ChunkedArray) -> tuple[HyperLogLog, int]:
            return _of_file(values, types[name])

        about = self.statistics
        ids = {column.name: column.column_id for column in columns}
        parts = scan(self.destination.connector, about.namespace, about.name, about.snapshot_id, ids, read)
        for name, (sketch, size) in parts:
            whole, before = analyzed[name]
            whole.merge(sketch)
            analyzed[name] = whole, before + size
        return analyzed

    def _document(self) -> dict[str, Any] | None:
        """The content of the file; None if it is missing or malformed."""
        return read_object(self._place)

    @cached_property
    def _place(self) -> Place:
        return open_place(self.table_location, self.destination.config.options).below(FILE)

    def _newest(self) -> int:
        """The newest version."""
        version = self.current_snapshot_id()
        assert version is not None, "a Delta table has a version"
        return version

    def _logged(self, version: int) -> tuple[Outline, pa.Table]:
        """Metadata and live files of a version, see `DeltaConnector.logged`."""
        connector: Any = self.destination.connector
        try:
            outline, files = connector.logged(self.statistics.namespace, self.statistics.name, version)
        except NotFound:
            raise self.moved_on("another version") from None
        return outline, files


def _refusal(table: Outline, column: ColumnStatistics) -> str:
    """The reason why Trino cannot use a column's statistics; empty if it can."""
    leaf = table.schema.leaf(column.name)
    if leaf is None or len(leaf.physical) > 1:
        return "Trino keeps statistics of top-level columns only"
    if column.name in table.partitions:
        return "a partition column: Trino counts its values in the log"
    return "" if supports(column.logical_type) else f"{column.logical_type} has no statistics in Trino"


def _of_file(values: pa.ChunkedArray, logical_type: str) -> tuple[HyperLogLog, int]:
    sketch = HyperLogLog()
    size = 0
    for chunk in values.chunks:
        if parse(logical_type).kind in _VARIABLE:
            plain = chunk.cast(chunk.type.value_type) if pa.types.is_dictionary(chunk.type) else chunk
            size += pc.sum(pc.binary_length(plain)).as_py() or 0
        sketch.add(hash_values(pc.unique(chunk), logical_type))
    return sketch, size


def _rows(files: pa.Table) -> list[str]:
    """The live files with their deletion vectors, which determine the rows of a version."""
    return sorted(map(str, files.select(["path", "vectors"]).to_pylist()))
