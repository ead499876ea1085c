"""Delta Lake: transaction log, deletion vectors, Unity catalogs."""

from __future__ import annotations

from capture.connectors.storage.folder import Folder


def holds_table(folder: Folder) -> bool:
    """True for the directory of a table."""
    return "_delta_log" in folder.folders
