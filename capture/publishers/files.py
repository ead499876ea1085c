"""Files of publishers: atomic writes, and cleanup of orphans that killed writers left behind."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.storage.places import Place
from store.model.errors import UpstreamError

MARK = "statflight"  # part of the names of files that are referenced by another file
ORPHAN_SECONDS: Final = 600.0  # age from which an unreferenced file of ours counts as an orphan of a killed writer


def unique_name(prefix: str, suffix: str = "") -> str:
    """Creates a unique file name that `sweep` recognizes as ours, between a prefix and a suffix with its dot."""
    return f"{prefix}{MARK}-{uuid.uuid4()}{suffix}"


def write_file(place: Place, data: bytes) -> None:
    """Writes a new file, with its directory, not visible to readers until another file references it.

    Raises:
        OSError: The file cannot be written.
    """
    if place.is_local:
        Path(place.path).parent.mkdir(exist_ok=True)
    with place.file_system.open_output_stream(place.path) as stream:
        stream.write(data)


def replace_file(place: Place, data: bytes) -> None:
    """Writes or replaces a file atomically: readers see the old content or the new one.

    Object stores write atomically; on a local disk a temporary file is renamed.

    Raises:
        OSError: The file cannot be written; an old file is unchanged.
    """
    if not place.is_local:
        write_file(place, data)
        return
    target = Path(place.path)
    target.parent.mkdir(exist_ok=True)
    with _temporary(target, data) as temporary:
        temporary.replace(target)


def create_file(place: Place, data: bytes) -> bool:
    """Creates a file atomically, on a local disk only; False if it exists.

    Raises:
        OSError: The file cannot be written.
        UpstreamError: The file system is not local.
    """
    if not place.is_local:
        raise UpstreamError("a file can be created atomically on a local disk only")
    target = Path(place.path)
    with _temporary(target, data) as temporary:
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            return False
    return True


@contextlib.contextmanager
def _temporary(target: Path, data: bytes) -> Iterator[Path]:
    """A file beside the target, which is gone at the end."""
    temporary = target.parent / unique_name(f".{target.name}.", ".tmp")
    try:
        temporary.write_bytes(data)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_file(place: Place) -> bytes | None:
    """The content of a file; None if it does not exist."""
    try:
        return place.read()
    except FileNotFoundError:
        return None


def read_object(place: Place) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file does not exist or contains something else."""
    try:
        document = json.loads(read_file(place) or b"null")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def delete_file(place: Place) -> None:
    """Deletes an unreferenced file; ignores errors."""
    with contextlib.suppress(OSError, pa.ArrowException):
        place.file_system.delete_file(place.path)


def sweep(folder: Place, referenced: Callable[[], Container[str]]) -> list[str]:
    """Deletes files of ours that are unreferenced and too old to be of a running writer; returns their names.

    Args:
        folder: Directory to clean, without subdirectories.
        referenced: Returns the names of referenced files; called only if there are candidates.
    """
    selector = pafs.FileSelector(folder.path, allow_not_found=True, recursive=False)
    now = time.time()
    candidates = [
        info
        for info in folder.file_system.get_file_info(selector)
        if info.type == pafs.FileType.File
        and MARK in info.base_name
        and now - (now if info.mtime is None else info.mtime.timestamp()) >= ORPHAN_SECONDS
    ]
    if not candidates:
        return []
    keep = referenced()
    orphans = [info.base_name for info in candidates if info.base_name not in keep]
    for name in orphans:
        delete_file(folder.below(name))
    return orphans
