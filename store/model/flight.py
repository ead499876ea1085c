"""A flight, and the ways to make one: with the key and provenance of records, or with its own columns only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from store.model.columns import COMPUTED, KEY, PROVENANCE
from store.model.statistics import TEXT

TABLE_NAME: Final = {"table_catalog": TEXT, "table_schema": TEXT, "table_name": TEXT}


@dataclass(frozen=True)
class Flight:
    """A named dataset: its Arrow schema, whether DoPut accepts it, and the columns that identify a record."""

    name: str
    schema: pa.Schema
    description: str
    writable: bool = False
    identity: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The first part of the name: stats, information_schema or sys."""
        return self.name.split(".")[0]

    @property
    def payload(self) -> tuple[str, ...]:
        """The stored columns between key and provenance."""
        return tuple(n for n in self.schema.names if n not in KEY and n not in PROVENANCE and n not in COMPUTED)


def schema_of(columns: dict[str, pa.DataType]) -> pa.Schema:
    """The schema of columns that may all be null."""
    return pa.schema(list(columns.items()))


def stats_flight(
    name: str,
    description: str,
    columns: dict[str, pa.DataType],
    *identity: str,
    writable: bool = True,
    added: dict[str, pa.DataType] | None = None,
) -> Flight:
    """A flight of records: their key, its own columns, provenance, and the columns of later versions.

    Args:
        identity: The columns that, with table and snapshot, identify a record.
        added: Columns of later versions.
    """
    return Flight(name, schema_of(KEY | columns | PROVENANCE | (added or {})), description, writable, identity)


def plain_flight(name: str, description: str, columns: dict[str, pa.DataType]) -> Flight:
    """A flight that is computed when it is read, with these columns only."""
    return Flight(name, schema_of(columns), description)
