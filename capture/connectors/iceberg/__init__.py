"""Apache Iceberg: catalogs, manifests, deletes, Puffin."""

from __future__ import annotations

from capture.connectors.storage.folder import Folder


def holds_table(folder: Folder) -> bool:
    """True for the directory of a table."""
    return "metadata" in folder.folders


def holds_file(name: str) -> bool:
    """True for the name of a metadata file."""
    return name.endswith((".metadata.json", ".metadata.json.gz"))
