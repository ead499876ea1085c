"""The content of a directory, from which a table is recognized."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Folder:
    """Names of the files and subdirectories of a directory, from which tables are recognized."""

    files: AbstractSet[str]
    folders: AbstractSet[str]
