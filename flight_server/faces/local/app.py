"""A server's objects in this process: without Flight, and with no more parts than what is asked needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flight_server.core.app import App
from flight_server.core.config import Settings
from flight_server.process.parts import parts
from store.duckdb.database import Database
from store.duckdb.opening import MEMORY
from store.role import Role


def local_app(db: Path | None, needs: frozenset[str] | None = None) -> App:
    """Opens a database of this process alone.

    Args:
        db: Its file; None for one in memory.
        needs: Names of the parts of a server that what is asked needs; None for all.
    """
    settings = Settings(db=Path(MEMORY) if db is None else db.expanduser())
    return App(
        settings,
        join=lambda _: (Database(MEMORY if db is None else settings.db), Role()),
        parts=lambda settings: parts(settings, needs),
        functions=_functions,
    )


def _functions() -> Sequence[Mapping[str, Any]]:
    """Rows of `sys.functions`."""
    from flight_server.core.actions import functions  # loads what captures and writes, for a flight that few read

    return functions()
