"""The tables of a source of Iceberg tables: their names, and each with its current metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from capture.connectors.iceberg.io import LakeIO


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table with its current metadata.

    Attributes:
        handle: pyiceberg's table; None without a catalog.
        server_commits: Whether the catalog's server writes the metadata at commits, so that parts unknown to pyiceberg
            are preserved.
    """

    namespace: str
    name: str
    metadata: TableMetadata
    io: LakeIO
    location: str
    handle: Table | None = None
    server_commits: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


class Tables(Protocol):
    """The tables of a URI."""

    def namespaces(self) -> list[str]:
        """Namespaces, sorted, levels joined by dots; a catalog's may have no tables."""

    def names(self, namespace: str) -> list[str]:
        """Tables of a namespace, sorted."""

    def load(self, namespace: str, name: str) -> LoadedTable:
        """Loads a table with its current metadata.

        Raises:
            NotFound: The table does not exist.
        """

    def mark(self, namespace: str, name: str, before: str | None) -> str | None:
        """See `Connector.mark`."""

    def close(self) -> None:
        """Releases connections and parsed metadata."""
