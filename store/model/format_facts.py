"""Facts about the format of a table, by which all who plan, read or serve it go instead of by the format's name.

A connector states them of each table (`TableDescriptor.facts`). They are stored as JSON in a property of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from store.model.catalog_entries import EXTERNAL

FACTS: Final = "statflight.format"
"""Property of a table with its facts, in JSON."""


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """Facts about the format of a table. The defaults say the least: they are true of a table of any format.

    Attributes:
        reads_by_id: Columns are found in files by their ids, not by their names.
        merges_rows: Readers merge rows of several files, by a key or a row id. A file without a matching row may then
            have the newer version, or other columns, of a row in another file, so that none may be skipped.
        deletes_rows: Files may have row-level deletes, so that a file is read whole only if it is known to have none.
        plain_parquet: All data files are Parquet, and hold what the table has: nothing but row-level deletes and ids
            of columns stands between a reader of Parquet and the rows.
        analyzes_columns: ANALYZE without a list of columns means all columns.
        iceberg_metadata: The table has metadata in Iceberg's form, which the connector reads by `metadata_document`
            and `row_deletes`.
        platform: Name of the format in data catalogs; None: its own.
    """

    reads_by_id: bool = True
    merges_rows: bool = True
    deletes_rows: bool = True
    plain_parquet: bool = False
    analyzes_columns: bool = False
    iceberg_metadata: bool = False
    platform: str | None = None

    @property
    def as_property(self) -> dict[str, str]:
        """The property with these facts."""
        return {FACTS: json.dumps(asdict(self), sort_keys=True)}


UNKNOWN: Final = FormatFacts()
"""Of a table that was stored before there were facts, until the next inspection of its lake."""
OF_PUTS: Final = FormatFacts(reads_by_id=False, merges_rows=False, deletes_rows=False, plain_parquet=True)
"""Of a table that is known from puts only: its files are what their rows say."""
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    field.name: bool if isinstance(field.default, bool) else (str, type(None)) for field in fields(FormatFacts)
}


def facts_in(format: str | None, properties: str | None) -> FormatFacts:
    """The facts of a stored table; those that it lacks, or that cannot be read, say the least.

    Args:
        format: Its format.
        properties: Its properties, in JSON.
    """
    if format == EXTERNAL:
        return OF_PUTS
    stored = _object(_object(properties).get(FACTS))
    return FormatFacts(
        **{name: stored[name] for name, type in _TYPES.items() if isinstance(stored.get(name, ...), type)}
    )


def _object(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
