"""File access for pyiceberg: rewrites paths of moved tables and removes metadata that pyiceberg cannot load.

pyiceberg creates a `FileIO` of the class in property `py-io-impl` for every table. `LakeIO` is that class in all our
catalogs, so it handles all paths, including the metadata files of SQL and Glue catalogs. REST catalogs return metadata
in responses, which `rest` handles.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import urlsplit

from pyarrow.fs import LocalFileSystem
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.statistics import BlobMetadata

from capture.connectors.metadata.comments import OWN_MARK
from capture.connectors.options import PathRewrite, is_storage_option, timeout_of
from capture.connectors.progress import reading
from capture.connectors.storage.metered import metered
from capture.connectors.storage.places import ALIASES, Place, local_path, open_place
from capture.connectors.storage.requests import OPEN, requested

REWRITE = "statflight.path-rewrite"
INNER_IO = "statflight.py-io-impl"

_SUFFIXES = (".metadata.json", ".metadata.json.gz")
# Option names of other formats' libraries → pyiceberg's names.
_S3_NAMES = {
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_region": "s3.region",
    "aws_endpoint": "s3.endpoint",
    "aws_endpoint_url": "s3.endpoint",
}
_GZIP = b"\x1f\x8b"
_VARIANT = b'"variant"'
_STRUCT_DEFAULT = re.compile(rb'"(?:initial|write)-default"\s*:\s*\{')
STRUCT_DEFAULT = f"{OWN_MARK}initial-default {{}}"
"""Marker, in the doc of a struct, of a default that consists of its fields' defaults; pyiceberg cannot load those."""
_MANIFESTS = re.compile(rb'"manifests"\s*:\s*\[')
_LISTED_HERE = "statflight:manifests:"
# Blob types in pyiceberg's model; it cannot load a table that lists another type.
_KNOWN_BLOBS = frozenset(get_args(BlobMetadata.model_fields["type"].annotation))


def io_properties(options: Mapping[str, str], rewrite: str) -> dict[str, str]:
    """Catalog or table properties with which pyiceberg opens files through `LakeIO`."""
    properties = {_S3_NAMES.get(name.lower(), name): value for name, value in options.items() if name != PY_IO_IMPL}
    if own := options.get(PY_IO_IMPL):
        properties[INNER_IO] = own
    seconds = timeout_of(options)
    properties.setdefault("s3.request-timeout", f"{seconds / 3:g}")  # three attempts
    properties.setdefault("s3.connect-timeout", f"{min(5.0, seconds):g}")
    return properties | {PY_IO_IMPL: f"{LakeIO.__module__}.{LakeIO.__qualname__}", REWRITE: rewrite}


class LakeIO(FileIO):
    """A `FileIO` with path rewriting and tolerant reading of metadata files."""

    def __init__(self, properties: dict[str, str] | None = None):
        super().__init__(properties or {})
        self._rewrite = PathRewrite.of({"path_rewrite": rewrite} if (rewrite := self.properties.get(REWRITE)) else {})
        self._inner: dict[str, FileIO] = {}

    def resolve(self, location: str) -> str:
        """The current location of a path in the metadata; a plain path if local."""
        return local_path(self._rewrite(location))

    def new_input(self, location: str) -> InputFile:
        return self.new_input_here(self.resolve(location))

    def new_input_here(self, location: str) -> InputFile:
        """An input for a location that needs no rewriting, because it was found by listing."""
        reading(location)
        if not urlsplit(location).scheme:
            requested(OPEN)
        file = self._file_io(location).new_input(location)
        return _MetadataInput(file) if location.endswith(_SUFFIXES) else file

    def lost_on_commit(self, location: str) -> list[str]:
        """Descriptions of metadata content that pyiceberg's model lacks and its commits would lose."""
        content = self._read(location)
        document = json.loads(content)
        blobs = [
            blob for statistics in document.get("statistics") or () for blob in statistics.get("blob-metadata") or ()
        ]
        unknown = {f"statistics of type {blob.get('type')}" for blob in blobs if blob.get("type") not in _KNOWN_BLOBS}
        unknown |= {"columns of type variant"} if _VARIANT in content else set()
        unknown |= {"lists of manifests within it, as in tables of format 1"} if _MANIFESTS.search(content) else set()
        return sorted(unknown | ({"defaults of structs"} if _STRUCT_DEFAULT.search(content) else set()))

    def read_document(self, location: str) -> dict[str, Any]:
        """The complete JSON of a metadata file."""
        document: dict[str, Any] = json.loads(self._read(location))
        return document

    def _read(self, location: str) -> bytes:
        location = self.resolve(location)
        with self._file_io(location).new_input(location).open() as stream:
            return _unzipped(stream.read())

    def new_output(self, location: str) -> OutputFile:
        resolved = self.resolve(location)
        return self._file_io(resolved).new_output(resolved)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        resolved = self.resolve(location if isinstance(location, str) else location.location)
        self._file_io(resolved).delete(resolved)

    def storage(self, location: str) -> dict[str, str]:
        """The storage options an executor needs to open `location`; empty for a local path."""
        if not urlsplit(location).scheme:
            return {}
        # only dotted and underscored names: a plain `token` belongs to the catalog
        return {n: v for n, v in self.properties.items() if ("." in n or "_" in n) and is_storage_option(n)}

    def place(self, location: str) -> Place:
        """The place of a file, opened with the options of `storage`."""
        return open_place(location, self.storage(location))

    def _file_io(self, location: str) -> FileIO:
        scheme = urlsplit(location).scheme
        if scheme not in self._inner:
            properties = {n: v for n, v in self.properties.items() if n not in (PY_IO_IMPL, INNER_IO, REWRITE)}
            if own := self.properties.get(INNER_IO):
                properties[PY_IO_IMPL] = own
            ours = not own and ALIASES.get(scheme, scheme) in ("gs", "abfss")
            self._inner[scheme] = PlaceIO(properties) if ours else _metered(load_file_io(properties, location))
        return self._inner[scheme]


def _metered(file_io: FileIO) -> FileIO:
    """The `FileIO`, counting its requests to object stores if they are pyarrow's."""
    if isinstance(file_io, PyArrowFileIO):
        opened = file_io.fs_by_scheme

        def counted(scheme: str, netloc: str | None = None) -> Any:
            file_system = opened(scheme, netloc)
            return file_system if isinstance(file_system, LocalFileSystem) else metered(file_system)

        file_io.fs_by_scheme = counted
    return file_io


class PlaceIO(PyArrowFileIO):
    """Files on the file systems of `places`; pyiceberg needs another library for Azure and supports fewer options."""

    def new_input(self, location: str) -> PyArrowFile:
        place = open_place(location, self.properties)
        return PyArrowFile(location=location, path=place.path, fs=place.file_system)

    def new_output(self, location: str) -> PyArrowFile:
        return self.new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        place = open_place(location if isinstance(location, str) else location.location, self.properties)
        place.file_system.delete_file(place.path)


def read_metadata(file_io: LakeIO, location: str) -> TableMetadata:
    """Reads table metadata at a location found by listing."""
    with file_io.new_input_here(location).open() as stream:
        content = stream.read()
    return TableMetadataUtil.parse_raw(_unzipped(content).decode())


class _MetadataInput(InputFile):
    def __init__(self, inner: InputFile):
        super().__init__(inner.location)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return bool(self._inner.exists())

    def open(self, seekable: bool = True) -> InputStream:
        with self._inner.open(seekable) as stream:
            content: bytes = stream.read()
        if not content.startswith(_GZIP):
            return io.BytesIO(tolerable(content))
        # compress again, because pyiceberg decompresses by file name
        return io.BytesIO(gzip.compress(tolerable(gzip.decompress(content))))


def _unzipped(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(_GZIP) else content


def tolerable(content: bytes) -> bytes:
    """A metadata document, or a response with one, without the parts that pyiceberg cannot load."""
    words = (_VARIANT, b"blob-metadata", b"initial-default", b"write-default", b'"manifests"')
    if not any(word in content for word in words):
        return content
    return json.dumps(json.loads(content, object_hook=_without_foreign)).encode()


def listed_manifests(manifest_list: str) -> list[str] | None:
    """The paths of the manifests of a snapshot that lists them in the metadata file, as format 1 allows; None if it has
    a manifest list.

    Args:
        manifest_list: `Snapshot.manifest_list` of `tolerable` metadata.
    """
    if not manifest_list.startswith(_LISTED_HERE):
        return None
    paths: list[str] = json.loads(manifest_list.removeprefix(_LISTED_HERE))
    return paths


def _without_foreign(item: dict[str, Any]) -> dict[str, Any]:
    """Drops blobs of unknown types and defaults of structs, replaces the type variant by unknown, and gives snapshots
    that list their manifests themselves a `manifest-list` with these (`listed_manifests`)."""
    if isinstance(blobs := item.get("blob-metadata"), list) and _KNOWN_BLOBS:
        item["blob-metadata"] = [blob for blob in blobs if blob.get("type") in _KNOWN_BLOBS]
    if isinstance(manifests := item.get("manifests"), list) and "snapshot-id" in item:
        item.setdefault("manifest-list", _LISTED_HERE + json.dumps(manifests))
    if isinstance(item.get("type"), dict):
        if item["type"].get("type") == "struct" and item.get("initial-default") is not None:
            item["doc"] = STRUCT_DEFAULT
        item.pop("initial-default", None)
        item.pop("write-default", None)
    for place in ("type", "element", "value"):
        if item.get(place) == "variant":
            item[place] = "unknown"
    return item
