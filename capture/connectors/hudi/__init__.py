"""Apache Hudi: copy-on-write tables, by their timeline and the files that it makes visible."""

from __future__ import annotations

from capture.connectors.storage.folder import Folder

METADATA = ".hoodie"


def holds_table(folder: Folder) -> bool:
    """True for the directory of a table."""
    return METADATA in folder.folders
