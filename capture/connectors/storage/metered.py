"""File systems of object stores that count the requests they make (`requests.py`).

pyarrow's own file systems make their requests in C++, out of sight, but a fixed number for each call;
`tests/integration/test_look_costs.py` compares the counts with those of a store. Requests that the library
repeats after an error are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.storage.requests import DELETE, GET, HEAD, LIST, PUT, Meter, meter

PAGE: Final = 1000  # entries of one LIST
PART_BYTES: Final = 10 << 20  # of one request of a write
_WRITE: Final = 2  # requests of a write besides its parts, which begin and end it


def metered(file_system: pafs.FileSystem) -> pafs.FileSystem:
    """The file system, counting its requests."""
    return pafs.PyFileSystem(_Counting(file_system))


class _Counting(pafs.FileSystemHandler):
    """Hands all calls on, and counts their requests with the meter of the caller."""

    def __init__(self, inner: pafs.FileSystem):
        self._inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Counting) and bool(self._inner == other._inner)

    def __hash__(self) -> int:
        return hash(type(self._inner))

    def __reduce__(self) -> Any:
        return _Counting, (self._inner,)

    def get_type_name(self) -> str:
        return str(self._inner.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self._inner.normalize_path(path))

    # Reading.

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        count = _counter()
        count(HEAD, len(paths))
        infos: list[pafs.FileInfo] = self._inner.get_file_info(list(paths))
        if others := sum(info.type != pafs.FileType.File for info in infos):
            count(LIST, others)  # what is no object may be a directory
        return infos

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        infos: list[pafs.FileInfo] = []
        try:
            infos = self._inner.get_file_info(selector)
        finally:
            is_file = (info.type == pafs.FileType.File for info in infos)
            entries = sum(is_file) if selector.recursive else len(infos)  # directories in between are made up
            _counter()(LIST, max(1, -(-entries // PAGE)))
        return infos

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        counted = meter()
        if counted is None:
            return self._inner.open_input_file(path)
        counted.count(HEAD)
        return pa.PythonFile(_CountedReads(self._inner.open_input_file(path), counted), mode="r")

    # Writing.

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        stream, counted = self._inner.open_output_stream(path, metadata=dict(metadata or {})), meter()
        return stream if counted is None else pa.PythonFile(_CountedWrites(stream, counted), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._inner.open_append_stream(path, metadata=dict(metadata or {}))

    def create_dir(self, path: str, recursive: bool) -> None:
        _counter()(PUT)
        self._inner.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        count = _counter()
        count(HEAD)
        self._inner.delete_file(path)
        count(DELETE)
        count(PUT)  # an entry for the directory, which may be empty now

    def delete_dir(self, path: str) -> None:
        self._inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self._inner.delete_dir_contents("", accept_root_dir=True)

    def move(self, src: str, dest: str) -> None:
        count = _counter()
        count(PUT)
        self._inner.move(src, dest)
        count(DELETE)

    def copy_file(self, src: str, dest: str) -> None:
        _counter()(PUT)
        self._inner.copy_file(src, dest)


def _counter() -> Callable[..., None]:
    current = meter()
    return _ignore if current is None else current.count


def _ignore(*_: object) -> None: ...


class _Stream:
    """A stream that hands on all but what is counted."""

    def __init__(self, inner: pa.NativeFile, meter: Meter):
        self._inner, self._meter = inner, meter

    @property
    def closed(self) -> bool:
        return bool(self._inner.closed)

    def tell(self) -> int:
        return int(self._inner.tell())

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.close()


class _CountedReads(_Stream):
    """A file of which each read is a request, in whatever thread."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = 0) -> int:
        return int(self._inner.seek(position, whence))

    def read(self, size: int | None = None) -> pa.Buffer:
        data: pa.Buffer | None = None
        try:
            data = self._inner.read_buffer(size)
        finally:
            if data is None or data.size:  # nothing is asked for beyond the end
                self._meter.count(GET, 1, 0 if data is None else data.size)
        return data


class _CountedWrites(_Stream):
    """A file that is written in parts."""

    _size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._size += memoryview(data).nbytes
        return int(self._inner.write(data) or 0)

    def close(self) -> None:
        if not self._inner.closed:
            self._meter.count(PUT, _WRITE + max(1, -(-self._size // PART_BYTES)), self._size)
        self._inner.close()
