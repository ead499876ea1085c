"""Progress of long actions on a terminal. The action runs in a thread, so that Ctrl-C ends the command at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.client import StatsClient

T = TypeVar("T")
POLL_SECONDS: Final = 0.3


def with_bars(client: StatsClient, names: Mapping[tuple[str, str, str], str], work: Callable[[], T]) -> T:
    """Does the work; on a terminal a bar per table shows how far its capture is.

    Args:
        client: Reads `sys.capture_jobs` meanwhile.
        names: Catalog, schema and name of each table, and its full name.
        work: The call that captures.

    Returns:
        What the work returns; its exception is raised.
    """

    def show(is_done: Callable[[], bool]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        words = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*words, console=Console(stderr=True), transient=True) as progress:
            bars = {key: progress.add_task(name, total=None) for key, name in names.items()}
            while not is_done():
                for job in _running(client):
                    bar = bars.get((job["table_catalog"], job["table_schema"], job["table_name"]))
                    if bar is not None and job["progress"] is not None:
                        progress.update(bar, total=1.0, completed=job["progress"])

    return _while_working(work, show)


def with_spinner(client: StatsClient, catalog: str, work: Callable[[], T]) -> T:
    """Does the work; on a terminal a line shows how far the look at a lake is.

    Args:
        client: Reads `sys.capture_jobs` meanwhile.
        catalog: The lake.
        work: The call that looks at it.

    Returns:
        What the work returns; its exception is raised.
    """

    def show(is_done: Callable[[], bool]) -> None:
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(f"{escape(catalog)}: looking") as status:
            while not is_done():
                for job in _running(client):
                    if (job["table_catalog"], job["mode"]) == (catalog, "LOOK") and job["message"]:
                        status.update(escape(f"{catalog}: {job['message']}"))

    return _while_working(work, show)


def _running(client: StatsClient) -> list[dict[str, Any]]:
    running = [{"column": "state", "op": "EQ", "values": ["RUNNING"]}]
    try:
        return client.read("sys.capture_jobs", where=running).to_pylist()
    except (pa.ArrowException, flight.FlightError):
        return []  # the action itself reports what is wrong


def _while_working(work: Callable[[], T], show: Callable[[Callable[[], bool]], None]) -> T:
    done: list[T] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def is_done() -> bool:
        thread.join(POLL_SECONDS)
        return not thread.is_alive()

    if sys.stderr.isatty() and not is_done():
        show(is_done)
    while not is_done():
        pass
    if trouble:
        raise trouble[0]
    return done[0]
