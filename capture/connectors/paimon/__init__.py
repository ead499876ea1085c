"""Apache Paimon: snapshots, manifests, statistics files."""

from __future__ import annotations

from capture.connectors.storage.folder import Folder


def holds_table(folder: Folder) -> bool:
    """True for a table's directory: it has a subdirectory `schema`, and `snapshot` unless nothing was ever written."""
    return "schema" in folder.folders and ("snapshot" in folder.folders or folder.folders == {"schema"})
