"""The lakes that `serve PATH…` connects: one for each path, registered before the server says that it listens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from capture.connectors.directories.found import tables_at
from flight_server.core.app import App
from store.model.errors import InvalidArgument, StatflightError

log = logging.getLogger("statflight.server")

WAIT_SECONDS: Final = 60.0  # for the tables to be found; then the server says that it listens all the same
MIXED: Final = "mixed"
POLICY: Final = "on"  # columns are captured once found, and again as they change


class PathLake(NamedTuple):
    """A lake by its path.

    Attributes:
        path: As it was given.
        catalog: Its name: the last part of the path.
    """

    path: str
    catalog: str
    format: str
    uri: str

    def config(self) -> dict[str, Any]:
        """The configuration of its connector."""
        return {"catalog": self.catalog, "format": self.format, "uri": self.uri, "options": {"policy": POLICY}}


def lakes_at(paths: Sequence[str]) -> list[PathLake]:
    """The lakes of paths, each a table or a directory of tables.

    Raises:
        InvalidArgument: Two paths have the same last part.
        StatflightError: A path has no table.
    """
    lakes: dict[str, PathLake] = {}
    for path in dict.fromkeys(paths):
        lake = _lake_at(path)
        if (other := lakes.get(lake.catalog)) is not None and other.uri != lake.uri:
            raise InvalidArgument(
                f"{other.path} and {path} would both be the lake {lake.catalog}",
                hint="serve one of them, and name the other with `statflight connect`",
            )
        lakes[lake.catalog] = lake
    return list(lakes.values())


def _lake_at(path: str) -> PathLake:
    from capture.connectors.storage.places import open_place

    tables = tables_at(path)
    root = open_place(path, {})
    is_table = len(tables) == 1 and tables[0].uri.rstrip("/") == root.name.rstrip("/")
    formats = {table.format for table in tables}
    format = formats.pop() if len(formats) == 1 else MIXED
    return PathLake(path, tables[0].table if is_table else root.stem or "lake", format, root.name)


class Intake:
    """Registers lakes in a thread, since their inspection waits for a worker.

    Attributes:
        error: Why a lake could not be registered; empty while none failed.
    """

    def __init__(self, app: App, lakes: Sequence[PathLake]):
        self._app, self._lakes = app, lakes
        self._ended = threading.Event()
        self.error = ""

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, name="intake", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """True once all lakes are registered, or one failed."""
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            for lake in self._lakes:
                found = self._app.lakes.register(lake.config(), lambda: self._app.queue.closing, discover=True)
                log.info("%s: %d tables in the lake %s", lake.path, len(found["tables"]), lake.catalog)
        except StatflightError as error:
            self.error = str(error)
        except Exception:
            log.exception("the lakes of the command line could not be connected")
            self.error = "the lakes could not be connected"
        finally:
            self._ended.set()
