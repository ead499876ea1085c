"""A Paimon table at one snapshot: files, row counts and statistics file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from capture.connectors.file_columns import partition_json
from capture.connectors.paimon.analyzed import Analyzed, parse_analyzed
from capture.connectors.paimon.library import quiet, read_snapshots, snapshot_ids
from capture.connectors.spi import delete_file
from capture.connectors.storage.places import Place, local_path

MERGE_BYTES: Final = 256 << 20
"""Total size of files up to which they are merged to count the rows of a primary-key table; above, the row count stays
unknown until an engine scans the table."""

_LOOK_BACK: Final = 64  # snapshots read at once in search of one with statistics
_SAME_ROWS: Final = "ANALYZE"  # kind of commit that changes no rows; compactions may expire rows


@dataclass(frozen=True, slots=True)
class FoundStatistics:
    """A statistics file and the snapshot whose rows it describes."""

    analyzed: Analyzed
    snapshot: Any


@dataclass(frozen=True, slots=True)
class File:
    """A live data file; `live` is its row count, None if it is merged with others."""

    meta: Any
    path: str
    split: Any
    live: int | None
    partition: Mapping[str, Any]
    deletion: Any

    @property
    def is_whole(self) -> bool:
        """True if every row of the file is live."""
        return bool(self.live == self.meta.row_count)

    @property
    def content(self) -> str:
        """Text that changes whenever the live rows of the file may change."""
        vector = self.deletion
        deletions = "" if vector is None else f"{vector.dv_index_path}\0{vector.offset}\0{vector.length}"
        return f"{self.path}\0{self.meta.file_size}\0{self.meta.level}\0{deletions}"

    def row(self) -> dict[str, Any]:
        """The file as a row of `stats.files`."""
        return {
            "file_path": self.path,
            "file_format": self.path.rpartition(".")[2].upper(),
            "file_content": "DATA",
            "row_count": self.live,
            "size_bytes": self.meta.file_size,
            "partition_data_json": partition_json(self.partition) if self.partition else None,
            "sequence_number": self.meta.max_sequence_number,
            "delete_files": []
            if self.deletion is None
            else [
                delete_file(
                    local_path(str(self.deletion.dv_index_path)),
                    "DELETION_VECTOR",
                    self.deletion.offset,
                    self.deletion.length,
                )
            ],
        }


class SnapshotView:
    """One snapshot of a table; `table` is configured to read it."""

    def __init__(self, table: Any, place: Place, snapshot: Any):
        self.table, self.place, self.snapshot = table, place, snapshot
        self.remarks: list[str] = []  # statistics files that were refused, and why

    @cached_property
    def units(self) -> list[list[File]]:
        """Groups of files that must be read together: single files, and buckets that are merged."""
        units = []
        with quiet():
            splits = self.table.new_read_builder().new_scan().plan().splits()
        evolving = self.table.options.data_evolution_enabled()
        for split in splits:
            if not split.raw_convertible or evolving:
                whole = [self._file(split, meta, None) for meta in split.files]
                units.append(whole)
                continue
            for at, meta in enumerate(split.files):
                deletion = split.data_deletion_files[at] if split.data_deletion_files else None
                own = split.filter_file(lambda f, name=meta.file_name: f.file_name == name)
                units.append([self._file(own, meta, deletion, raw=True)])
        return units

    @cached_property
    def files(self) -> list[File]:
        """All live files; those of a merged bucket are adjacent."""
        return [f for unit in self.units for f in unit]

    def _file(self, split: Any, meta: Any, deletion: Any, *, raw: bool = False) -> File:
        live: int | None = None
        if raw and deletion is None:
            live = meta.row_count
        elif raw and deletion.cardinality is not None:
            live = meta.row_count - deletion.cardinality
        path = local_path(str(meta.external_path or meta.file_path))
        return File(meta, path, split, live, split.partition.to_dict(), deletion)

    def live_rows(self, *, merge: bool) -> int | None:
        """Live rows from metadata, with `merge` by merging keys where necessary; None if that does not tell, or if more
        than `MERGE_BYTES` would be read."""
        total, pending = 0, []
        for unit in self.units:
            count = unit[0].live if len(unit) == 1 else None
            if count is None:
                count = unit[0].split.merged_row_count()
            if count is None:
                pending.append(unit)
            total += count or 0
        if not pending:
            return total
        if not merge or sum(file.meta.file_size for unit in pending for file in unit) > MERGE_BYTES:
            return None
        keys = list(self.table.primary_keys) or [self.table.field_names[0]]
        with quiet():
            reader = self.table.new_read_builder().with_projection(keys).new_read()
            for unit in pending:
                total += sum(batch.num_rows for batch in reader.to_arrow_batch_reader([unit[0].split]))
        return total

    def merged_size(self, rows: int | None) -> int | None:
        """Bytes of the live rows as Paimon's ANALYZE estimates them: size of the files × live rows / records; None if
        the live rows are unknown."""
        records = self.snapshot.total_record_count or sum(file.meta.row_count for file in self.files)
        if rows is None or not records or rows > records:
            return None if rows != 0 else 0
        return int(sum(file.meta.file_size for file in self.files) * (rows / records))

    def analyzed(self) -> FoundStatistics | None:
        """The statistics file that applies to this snapshot, with the analyzed snapshot.

        ANALYZE creates a snapshot right after the one it read. Later commits inherit its file, so the file that a
        snapshot references often describes older rows. It describes the rows of this snapshot if its id says so, or if
        only ANALYZE commits, which change no rows, followed the analyzed one.
        """
        if self.table.table_schema.id != self.snapshot.schema_id:
            return None  # the columns of that file are those of another schema
        referenced = self._referenced()
        if referenced is not None and referenced.snapshot is self.snapshot:
            return referenced
        return self._analyzed_next() or referenced

    def _referenced(self) -> FoundStatistics | None:
        """Statistics referenced by this snapshot, or by the newest earlier one that references any."""
        for snapshot in self._back():
            if snapshot.schema_id != self.snapshot.schema_id:
                return None
            if snapshot.statistics:
                analyzed = self._read_analyzed(snapshot.statistics)
                if analyzed is None or analyzed.snapshot_id is None or analyzed.snapshot_id > self.snapshot.id:
                    return None
                return self._labelled(analyzed)
        return None

    def _analyzed_next(self) -> FoundStatistics | None:
        """Statistics of this snapshot that are referenced by ANALYZE commits directly after it."""
        manager = self.table.snapshot_manager()
        for later in range(self.snapshot.id + 1, self.snapshot.id + _LOOK_BACK):
            snapshot = manager.get_snapshot_by_id(later)
            if snapshot is None or snapshot.commit_kind != _SAME_ROWS or snapshot.schema_id != self.snapshot.schema_id:
                return None
            analyzed = self._read_analyzed(snapshot.statistics) if snapshot.statistics else None
            if analyzed is not None and analyzed.snapshot_id == self.snapshot.id:
                return FoundStatistics(analyzed, self.snapshot)
        return None

    def _labelled(self, analyzed: Analyzed) -> FoundStatistics | None:
        assert analyzed.snapshot_id is not None
        if analyzed.snapshot_id == self.snapshot.id:
            return FoundStatistics(analyzed, self.snapshot)
        manager, since = self.table.snapshot_manager(), range(analyzed.snapshot_id, self.snapshot.id)
        between: dict[int, Any] = {}
        if len(since) <= _LOOK_BACK:
            between = read_snapshots(manager, list(since))
        later = [*(between.get(i) for i in since[1:]), self.snapshot]
        if len(since) <= _LOOK_BACK and all(s is not None and s.commit_kind == _SAME_ROWS for s in later):
            return FoundStatistics(analyzed, self.snapshot)
        gathered = between.get(analyzed.snapshot_id) or manager.get_snapshot_by_id(analyzed.snapshot_id)
        if gathered is None or gathered.schema_id != self.snapshot.schema_id:
            return None
        if analyzed.rows is not None and analyzed.rows > gathered.total_record_count:
            return None  # contradicts the snapshot
        return FoundStatistics(analyzed, gathered)

    def _back(self) -> Iterator[Any]:
        """Yields this snapshot and the existing earlier ones, newest first."""
        yield self.snapshot
        manager = self.table.snapshot_manager()
        older = sorted((i for i in snapshot_ids(self.table) if i < self.snapshot.id), reverse=True)
        for start in range(0, len(older), _LOOK_BACK):
            snapshots = read_snapshots(manager, older[start : start + _LOOK_BACK])
            yield from (snapshots[i] for i in sorted(snapshots, reverse=True) if snapshots[i] is not None)

    def _read_analyzed(self, name: str) -> Analyzed | None:
        """Reads a statistics file; None if it is missing or malformed, since statistics are optional."""
        try:
            text = self.table.file_io.read_file_utf8(f"{self.table.table_path.rstrip('/')}/statistics/{name}")
            analyzed = parse_analyzed(text)
            return analyzed if analyzed.schema_id in (None, self.snapshot.schema_id) else None
        except FileNotFoundError:
            self.remarks.append(f"the statistics file {name} is missing")
        except (ValueError, RecursionError) as error:
            self.remarks.append(f"the statistics file {name} is refused: {str(error)[:200]}")
        return None


def fingerprint(unit: Sequence[File]) -> str:
    """Digest of the files of a unit, independent of their order."""
    return hashlib.sha256("\0\0".join(sorted(f.content for f in unit)).encode()).hexdigest()
