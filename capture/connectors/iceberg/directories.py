"""Iceberg tables without a catalog: the directories of a lake, or a single metadata file."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from pathlib import PurePosixPath

from pyarrow.fs import FileSelector
from pyiceberg.table.metadata import TableMetadata

from capture.connectors.iceberg import holds_table
from capture.connectors.iceberg.io import LakeIO, read_metadata
from capture.connectors.iceberg.tables import LoadedTable, Tables
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.lake_directories import Lake, listing_digest
from capture.connectors.storage.places import Place, Unreadable, unknown_table
from capture.connectors.storage.secrets import mask_uri
from store.duckdb.lru import LruCache
from store.model.errors import NotFound

_HINT = "version-hint.text"
_ENDINGS = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
_METADATA = re.compile(r"v?(?P<number>\d+).*\.metadata\.json(?:\.gz)?")
_VERSION = re.compile(r"v(?P<number>\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
PARSED = 8
"""Number of tables whose parsed metadata is cached."""


class Directory(Lake):
    """The directory of a table, or a directory with tables at any depth."""

    def __init__(self, config: ConnectorConfig, io: LakeIO):
        super().__init__(config.format, config.uri, config.options, holds_table)
        self._io = io
        self._parsed: LruCache[str, TableMetadata] = LruCache(PARSED)

    def load(self, namespace: str, name: str) -> LoadedTable:
        """The table with the newest metadata file of its directory."""
        location = self._latest(self.find(namespace, name).below("metadata"))
        metadata = self._parsed.get(location)
        if metadata is None:  # cached by location, because metadata files are immutable
            metadata = read_metadata(self._io, location)
            self._parsed.put(location, metadata)
        return LoadedTable(namespace, name, metadata, self._io, location)

    def mark(
        self,
        namespace: str,
        name: str,
        before: str | None,
        state: Callable[[Place], str] = lambda place: listing_digest(place, "metadata"),
    ) -> str | None:
        return super().mark(namespace, name, before, state)

    def close(self) -> None:
        """Drops parsed metadata."""
        self._parsed.clear()

    def _latest(self, folder: Place) -> str:
        """The newest metadata file, by `version-hint.text`, else by its number."""
        names = {info.base_name for info in folder.file_system.get_file_info(FileSelector(folder.path))}
        if _HINT in names:
            with folder.file_system.open_input_stream(folder.below(_HINT).path) as stream:
                hint = stream.read(4096).decode().strip()
            for named in (hint, *(f"{v}{hint}{ending}" for v in ("v", "") for ending in _ENDINGS)):
                if named in names:
                    return folder.below(_newest(named, names)).name
        numbered = [(int(match["number"]), name) for name in names if (match := _METADATA.fullmatch(name))]
        if not numbered:
            raise Unreadable("its directory has no metadata file")
        return folder.below(max(numbered)[1]).name


def _newest(name: str, names: Container[str]) -> str:
    """The last of the consecutive files `v<n>`, since writers update the hint only after creating the next file."""
    while (match := _VERSION.fullmatch(name)) is not None:
        following = (f"v{int(match['number']) + 1}{ending}" for ending in _ENDINGS)
        newest = next((other for other in following if other in names), None)
        if newest is None:
            break
        name = newest
    return name


class OneFile(Tables):
    """A single metadata file; the table is named after the parent directory of `metadata/`."""

    def __init__(self, location: str, io: LakeIO):
        self._location, self._io = location, io
        folder = PurePosixPath(location).parent
        self._name = (folder.parent if folder.name == "metadata" else folder).name or "table"

    def namespaces(self) -> list[str]:
        if not self._io.new_input_here(self._location).exists():
            raise NotFound(f'uri "{mask_uri(self._location)}" is not a metadata file', params={"field": "uri"})
        return ["default"]

    def names(self, namespace: str) -> list[str]:
        return [self._name] if namespace == "default" else []

    def load(self, namespace: str, name: str) -> LoadedTable:
        if name not in self.names(namespace):
            raise unknown_table(namespace, name, [self._name])
        return LoadedTable(namespace, name, read_metadata(self._io, self._location), self._io, self._location)

    def mark(self, namespace: str, name: str, before: str | None) -> str | None:  # noqa: ARG002  nothing to look up
        if name not in self.names(namespace):
            raise unknown_table(namespace, name, [self._name])
        return self._location if self._io.new_input_here(self._location).exists() else None

    def close(self) -> None: ...
