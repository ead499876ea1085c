"""One Delta table of a lake: locates its files and translates errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.delta.log import DeltaSchema
from capture.connectors.footers.statistics import ListedFile
from capture.connectors.options import PathRewrite
from capture.connectors.storage.lake_directories import Tables
from capture.connectors.storage.places import Place, open_place, plain_path, reading_files


@dataclass(frozen=True, slots=True)
class Outline:
    """Metadata and schema of a table version, without files; `commit_file` is the address of its commit, if it is still
    there."""

    table_id: str
    schema: DeltaSchema
    partitions: tuple[str, ...]
    configuration: Mapping[str, str]
    commit_file: str | None = None
    description: str | None = None

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return 500 + 400 * len(self.schema.columns) + 100 * len(self.configuration)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table with its name and directory."""

    lake: Tables
    rewrite: PathRewrite
    place: Place
    namespace: str
    name: str

    @property
    def storage(self) -> dict[str, str]:
        """Storage options for the table's files."""
        return self.lake.storage_of(self.place)

    def reading(self) -> AbstractContextManager[None]:
        """Translates errors of the log."""
        return self.lake.reading_table(self.namespace, self.name, self.place)

    # Files.

    def paths(self, logged: pa.Array) -> pa.Array:
        """Full paths of data files, from the paths in the log."""
        if not pc.any(pc.match_substring_regex(logged, "[%:]|^/")).as_py():  # plain relative paths
            return pc.binary_join_element_wise(f"{self.place.name.rstrip('/')}/", logged, "")
        return pa.array([self.file(path).name for path in logged.to_pylist()], pa.string())

    def file(self, path: str) -> Place:
        """The place of a data file, from its path in the log: percent-encoded, relative to the table or a full URI."""
        path = plain_path(path)
        if path.startswith("/") or "://" in path:
            path = self.rewrite(path)
            if path.startswith("/"):
                return Place(self.place.file_system, path, path)
            return open_place(path, self.storage)
        return self.place.below(path)

    def listed(self, actions: pa.Table, positions: Sequence[int]) -> list[ListedFile]:
        """Data files at some positions of the files of a log."""
        selected = actions.select(["path", "size_bytes", "modification_time"]).take(pa.array(positions, pa.int64()))
        columns = (column.to_pylist() for column in selected.columns)
        return [ListedFile(self.file(path), size, time) for path, size, time in zip(*columns, strict=True)]

    def reading_files(self) -> AbstractContextManager[None]:
        """Prefixes errors of data files with the table's name."""
        return reading_files(self.namespace, self.name)
