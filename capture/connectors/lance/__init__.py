"""Lance: versions, zone maps, statistics in the config."""

from __future__ import annotations

from capture.connectors.storage.folder import Folder


def holds_table(folder: Folder) -> bool:
    """True for the directory of a dataset."""
    return "_versions" in folder.folders
