"""The row-level deletes of a snapshot as content files of Iceberg's REST protocol, for readers of planned scans."""

from __future__ import annotations

from typing import Any

from capture.connectors.iceberg.catalogs import LoadedTable
from capture.connectors.iceberg.deletes import DeleteIndex
from capture.connectors.iceberg.manifests import Entry, Manifests
from capture.connectors.storage.places import unknown_snapshot

_CONTENTS = {"POSITION_DELETES": "position-deletes", "EQUALITY_DELETES": "equality-deletes"}


def row_deletes(table: LoadedTable, snapshot_id: int, scope: str) -> dict[str, Any]:
    """The delete files of a snapshot, and which of them apply to which data file.

    Args:
        scope: Prefix of cache keys, see `immutable_cache.scope`.

    Returns:
        `delete_files`: content files, with locations that can be opened; `data_files`: location of a data file with
        deletes → its path, its number of rows with the deleted ones, and indexes into `delete_files`. The path is the
        one in the metadata if a delete file contains it, because readers compare the two as texts.

    Raises:
        Unreadable: The table has no such snapshot, or its manifests cannot be read.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise unknown_snapshot(table.namespace, table.name, snapshot_id)
    manifests = Manifests(table.io, snapshot, scope)
    deletes = manifests.deletes()
    index = DeleteIndex(table.io, table.metadata, deletes)
    numbers = {id(delete): number for number, delete in enumerate(deletes)}
    touched: dict[str, tuple[str, int, list[int]]] = {}
    blocks = (block for manifest in manifests.data for block in manifests.files(manifest)) if deletes else ()
    for block in blocks:
        for entry in block.entries():
            applying = index.positional(entry) + index.equality(entry)
            if applying:
                named = any(delete.content != "EQUALITY_DELETES" and delete.blob is None for delete in applying)
                path = entry.path if named else entry.location
                touched[entry.location] = path, entry.rows, [numbers[id(delete)] for delete in applying]
    return {"delete_files": list(map(_content_file, deletes)), "data_files": touched}


def _content_file(delete: Entry) -> dict[str, Any]:
    file: dict[str, Any] = {
        "spec-id": delete.spec_id,
        "content": _CONTENTS[delete.content],
        "file-path": delete.location,
        "file-format": delete.format.lower(),
        "file-size-in-bytes": delete.size,
        "record-count": delete.rows,
    }
    if delete.equality_ids:
        file["equality-ids"] = list(delete.equality_ids)
    if delete.referenced_data_file:
        file["referenced-data-file"] = delete.referenced_data_file
    if delete.blob is not None:
        file["content-offset"], file["content-size-in-bytes"] = delete.blob
    return file
