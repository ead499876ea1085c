"""The place of manifests: a directory or bucket of the server's own, in no lake, that engines read too."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from capture.connectors.storage.places import ALIASES
from store.duckdb.database import Database
from store.model.errors import InvalidArgument
from store.places import Place, Use, open_place

_USE: Final = Use("iceberg-manifests", "UPSTREAM", 20, mark=None, mode=0o777)  # engines read it too


def place_at(location: str) -> Place:
    """The place at a path or URL.

    Raises:
        InvalidArgument: The URL's scheme is unknown, or its library is not installed.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        location = f"file://{Path(rest if separator else location).expanduser().absolute()}"
    return open_place(location.rstrip("/"), _USE)


def check_outside(location: str, database: Database) -> None:
    """Checks that a place is in no lake.

    Raises:
        InvalidArgument: It lies in a registered lake, or in a table.
    """
    place = _plain(location)
    rows = database.rows(
        "SELECT DISTINCT root, what FROM (SELECT uri AS root, catalog AS what FROM connectors"
        " UNION ALL SELECT location, table_catalog FROM tables) WHERE root IS NOT NULL"
    )
    for root, catalog in rows:
        lake = _plain(root)
        if place == lake or place.startswith(f"{lake.rstrip('/')}/"):
            raise InvalidArgument(
                f'iceberg-manifests "{location}" lies in the lake "{catalog}", at {root}',
                hint="name a directory or bucket of the server's own: nothing is written into a lake",
            )


def _plain(location: str) -> str:
    """A location in a form in which two of one place begin alike."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        scheme, rest = "file", location.removeprefix("file:")
    scheme = ALIASES.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        rest = os.path.realpath(Path(rest).expanduser())
    return f"{scheme}://{re.sub('/+', '/', rest).rstrip('/')}"
