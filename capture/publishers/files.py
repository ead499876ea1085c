"""Files of publishers: written whole or not at all, and swept when a writer was killed before it named them."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.storage.places import Place
from capture.publishers.publishing import ORPHAN_SECONDS
from store.errors import UpstreamError

MARK = "statflight"  # part of the name of every file that is named by another one


def unique_name(prefix: str, suffix: str = "") -> str:
    """A file name that no other writer uses and that `sweep` knows as ours.

    Args:
        prefix: Its beginning, before `MARK`.
        suffix: Its end, such as an extension with its dot.
    """
    return f"{prefix}{MARK}-{uuid.uuid4()}{suffix}"


def write_file(place: Place, data: bytes) -> None:
    """Writes a file that did not exist; other readers see it when it is named.

    Args:
        place: Of the file; its directory is created.
        data: Its whole content.

    Raises:
        OSError: It cannot be written.
    """
    _create_parent(place)
    with place.file_system.open_output_stream(place.path) as stream:
        stream.write(data)


def replace_file(place: Place, data: bytes) -> None:
    """Puts a file in place as a whole: readers see the old content or the new one.

    An object store does so by itself; on a local disk a temporary file is renamed.

    Args:
        place: Of the file, which may exist.
        data: Its whole content.

    Raises:
        OSError: It cannot be written; the old file is as it was.
    """
    if not place.is_local:
        write_file(place, data)
        return
    target = Path(place.path)
    target.parent.mkdir(exist_ok=True)
    temporary = target.parent / unique_name(f".{target.name}.", ".tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def create_file(place: Place, data: bytes) -> bool:
    """Creates a file as a whole unless it exists. For local disks.

    Args:
        place: Of the file.
        data: Its whole content.

    Returns:
        True if this call created it.

    Raises:
        OSError: It cannot be written.
        UpstreamError: The file system cannot do it in one step.
    """
    if not place.is_local:
        raise UpstreamError("a file can be created in one step on a local disk only")
    target = Path(place.path)
    temporary = target.parent / unique_name(f".{target.name}.", ".tmp")
    try:
        temporary.write_bytes(data)
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            return False
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_file(place: Place) -> bytes | None:
    """The content of a file, None when there is no such file."""
    try:
        with place.file_system.open_input_stream(place.path) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def delete_file(place: Place) -> None:
    """Deletes a file that nothing names; one that is gone is fine."""
    with contextlib.suppress(OSError, pa.ArrowException):
        place.file_system.delete_file(place.path)


def sweep(
    folder: Place, named: Callable[[], Container[str]], *, older_than: float = ORPHAN_SECONDS,
    now: Callable[[], float] = time.time,
) -> list[str]:  # fmt: skip
    """Deletes files of ours that nothing names and that are too old to be of a writer at work.

    Args:
        folder: Looked into, not below.
        named: Gives the names of files that something refers to; asked only when there is a candidate.
        older_than: Seconds since a candidate was written.

    Returns:
        The names of the deleted files.
    """
    selector = pafs.FileSelector(folder.path, allow_not_found=True, recursive=False)
    candidates = [
        info for info in folder.file_system.get_file_info(selector)
        if info.type == pafs.FileType.File and MARK in info.base_name and _age(info, now()) >= older_than
    ]  # fmt: skip
    if not candidates:
        return []
    keep = named()
    gone = [info.base_name for info in candidates if info.base_name not in keep]
    for name in gone:
        delete_file(folder.below(name))
    return gone


def _age(info: Any, now: float) -> float:
    return now - info.mtime.timestamp() if info.mtime is not None else 0.0


def _create_parent(place: Place) -> None:
    if place.is_local:
        Path(place.path).parent.mkdir(exist_ok=True)
